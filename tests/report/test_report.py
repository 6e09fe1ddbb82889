"""The files of a report: tables, claims, figures, examples, and messages for what is missing."""

import csv
import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.cli import main
from oddlm.report import claims, tables
from oddlm.report.cells import read_results
from oddlm.report.examples import changed, pick_examples
from oddlm.report.released_runs import import_released
from oddlm.report.write import write_report
from oddlm.store import Store

from ..growth import QUADRATIC, growth
from .made import grid, released, spec, write_released, write_run


def made(folder):
    results = read_results(folder / "runs")
    write_report(results, folder / "out")
    return results, lambda name: (folder / "out" / name).read_text()


def test_a_whole_report(tmp_path):
    grid(tmp_path / "runs")
    grid(tmp_path / "runs", task="minicode")
    _, text = made(tmp_path)
    rows = list(csv.reader(text("pass4.csv").splitlines()))
    assert tuple(rows[0]) == tables.PASS_COLUMNS
    assert {tuple(row[:4]) for row in rows[1:]} == {
        (task, *setting, t)
        for task in ("countdown", "minicode")
        for setting in (("none", "0"), ("odd", "8"), ("odd", "32"))
        for t in ("0.5", "2")
    }
    assert {row[6] for row in rows[1:]} == {"2"}
    page = text("report.md")
    for heading in ("Pass@4", "Coverage", "Latency", "Robustness", "Transfer", "Figures"):
        assert f"## {heading}\n" in page
    pictures = re.findall(r"\]\((figures/\S+\.png)\)", page)
    assert len(pictures) == 2 * 5
    for name in pictures:
        data = (tmp_path / "out" / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert (tmp_path / "out" / name.replace(".png", ".pdf")).read_bytes().startswith(b"%PDF")
    assert "the runs do not differ in n, length or steps" in page
    assert "countdown: every cell has 2 runs" in text("pass4.md")


HOSTILE = (
    "=1+cmd|'/C calc'!A0 <img src=x onerror=1> [x](javascript:1) "
    "$\\frac{$ \\input{x}\n\n`*_ \x1b[2J"
)


@pytest.mark.filterwarnings("ignore:Glyph")  # missing glyphs are drawn as boxes
def test_names_are_names_in_every_format(tmp_path):
    """A task may be a file of any name."""
    for task in (HOSTILE, "данные", "тесты", "x" * 300):
        for alpha in (0.0, 8.0):
            write_run(
                tmp_path / "runs", spec(task=task, alpha=alpha), [[True, False, False, False]]
            )
    _, text = made(tmp_path)
    tasks = {row[0] for row in csv.reader(text("pass4.csv").splitlines())}
    assert any(task.startswith("'=1+cmd") for task in tasks)
    assert not any(task.startswith("=") for task in tasks)
    for name in ("pass4.md", "claims.md", "report.md"):
        page = text(name)
        assert r"\<img src=x onerror=1\> \[x\](javascript:1)" in page
        assert not re.search(r"(?<!\\)(<img|\[x\]|`\*)", page)
        assert "\x1b" not in page
    tex = text("pass4.tex")
    assert r"\$\textbackslash{}frac\{\$ \textbackslash{}input\{x\}  `*\_" in tex
    assert "\n\n`" not in tex
    pictures = re.findall(r"\]\((figures/\S+\.png)\)", text("report.md"))
    assert len(set(pictures)) == len(pictures) == 4 * 2
    assert all((tmp_path / "out" / name).exists() for name in pictures)


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("+3.1 [+0.4, +5.9]", "+3.1 [+0.4, +5.9]"),
        ("-0.3 (θ = 1.5)", "-0.3 (θ = 1.5)"),
        ("+5.8 %", "+5.8 %"),
        ("-", "-"),
        (-2.5, "-2.5"),
        ("odd", "odd"),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+A1", "'+A1"),
    ],
)
def test_no_cell_of_a_csv_is_a_formula(cell, written):
    assert next(csv.reader([tables.as_csv(("x",), [(cell,)]).splitlines()[1]])) == [written]


def test_a_new_report_takes_the_old_tables_away_and_nothing_else(tmp_path):
    grid(tmp_path / "runs", problems=3, seeds=1)
    for name in ("pass16.csv", "transfer.tex", "mine.csv", "pass.md"):
        tmp_path.joinpath("out").mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_text("old")
    results = read_results(tmp_path / "runs")
    files = write_report(results, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").glob("*.*")} == {"mine.csv", "pass.md"} | {
        path.name for path in files if path.parent == tmp_path / "out"
    }
    assert set((tmp_path / "out" / "figures").iterdir()) == {
        path for path in files if path.parent.name == "figures"
    }


def test_tables_say_what_the_cells_say(tmp_path):
    plain = [[True, False, False, False], [False] * 4, [False] * 4, [False] * 4]
    for temperature, solved in ((0.0, 1), (1.0, 2)):
        write_run(tmp_path, spec(alpha=0.0, temperature=temperature), plain)
        pushed = [[i < solved] * 4 for i in range(4)]
        write_run(tmp_path, spec(alpha=8.0, temperature=temperature), pushed, seconds=1.1)
        write_run(
            tmp_path, spec(alpha=2.0, temperature=temperature), [[True] * 4] * 3 + [[False] * 4]
        )
    (bench,) = read_results(tmp_path).benchmarks
    layout = tables.pass_table(bench)
    assert layout.columns == ("alpha", "θ = 0", "θ = 1")
    assert layout.rows == (
        ("mini, plain",),
        ("0", "25.0", "25.0"),
        ("odd",),
        ("2", "75.0", "75.0"),
        ("8", "25.0", "50.0"),
    )
    assert layout.bold == {(3, 1), (3, 2)}
    assert "| **75.0** |" in layout.markdown()
    assert r"2 & \textbf{75.0} & \textbf{75.0} \\" in layout.latex()
    coverage = {row[0]: row[1:5] for row in tables.coverage_table(bench).rows}
    assert coverage["odd α8"] == ("2", "8", "2", "50.0 %")
    assert coverage["plain α0"] == ("2", "8", "1", "25.0 %")
    robust = {row[0]: row for row in tables.robustness_table(bench).rows}
    assert robust["odd α8"][3:] == ("+0.0 (θ = 0)", "37.5", "50.0")
    assert robust["odd α2"][4:] == ("0.0", "0.0")
    latency = {row[0]: row for row in tables.latency_table(bench).rows}
    assert latency["odd"][3] == "+5.0 %", "two alphas, one a tenth slower, one as fast"


def test_transfer_uses_the_alpha_that_is_best_elsewhere(tmp_path):
    for task, best in (("a", 2.0), ("b", 8.0)):
        for alpha in (0.0, 2.0, 8.0):
            right = 0 if alpha == 0 else 4 if alpha == best else 1
            write_run(tmp_path, spec(task=task, alpha=alpha), [[i < right] * 4 for i in range(4)])
    rows = tables.transfer_table(read_results(tmp_path)).rows
    first = next(row for row in rows if row[1] == "a")
    assert first[:4] == ("odd", "a", "2", "b")
    assert first[4].startswith("+25.0 [")
    assert first[5:] == ("8", "75.0")


def test_verdicts(tmp_path):
    rng = np.random.default_rng(3)
    for seed in range(3):
        for temperature in (0.0, 1.0, 2.0):
            weak = rng.random((40, 4)) < 0.05 * (1 + temperature)
            write_run(
                tmp_path,
                spec(seed, alpha=0.0, temperature=temperature),
                weak,
                seconds=1 + 0.01 * seed,
            )
            strong = rng.random((40, 4)) < 0.5
            write_run(
                tmp_path,
                spec(seed, alpha=8.0, temperature=temperature),
                strong | weak,
                seconds=1.05 + 0.01 * seed,
            )
            worse = weak & (rng.random((40, 4)) < 0.1)
            write_run(tmp_path, spec(seed, task="bad", alpha=8.0, temperature=temperature), worse)
            write_run(tmp_path, spec(seed, task="bad", alpha=0.0, temperature=temperature), weak)
    found = {
        (one.claim.split(" (")[0], one.benchmark): one
        for one in claims.findings(read_results(tmp_path))
    }
    names = list(dict.fromkeys(name for name, _ in found))
    verdicts = [[found[name, task].verdict for name in names] for task in ("countdown", "bad")]
    assert verdicts[0] == ["holds", "holds", "holds", "holds", "insufficient data"]
    assert verdicts[1][0] == verdicts[1][2] == verdicts[1][3] == "fails"
    assert all(
        re.search(r"[+-]\d+\.\d \[[+-]", one.evidence)
        for one in found.values()
        if one.verdict != "insufficient data"
    )


@pytest.mark.parametrize(("slower", "verdict"), [(0.1, "holds"), (0.5, "fails")])
def test_overhead_in_steps(tmp_path, slower, verdict):
    for steps in (4, 8):
        for seed in range(4):
            plain = steps * (1 + 0.001 * seed)
            write_run(
                tmp_path / "runs",
                spec(seed, alpha=0.0, steps=steps),
                [[True] * 4] * 2,
                seconds=plain,
            )
            more = 1.1 if steps == 4 else 1 + slower
            write_run(
                tmp_path / "runs", spec(seed, steps=steps), [[True] * 4] * 2, seconds=plain * more
            )
    results, text = made(tmp_path)
    last = claims.findings(results)[-1]
    assert (last.verdict, last.claim) == (
        verdict,
        "The relative overhead is flat in the number of steps",
    )
    assert "figures/countdown-overhead.png" in text("report.md")


def test_examples_follow_the_rule_and_mark_what_changed(tmp_path):
    plain = [["1+1=3"] * 4, ["a", "b", "c", "d"], ["9"] * 4]
    pushed = [["1+1=3", "1+1=2", "2", "<script>|x"], ["a", "b", "c", "e"], ["9"] * 4]
    write_run(
        tmp_path / "runs", spec(alpha=0.0), [[False] * 4, [False] * 4, [True] * 4], texts=plain
    )
    write_run(
        tmp_path / "runs",
        spec(),
        [[False, True, True, False], [False, False, False, True], [True] * 4],
        texts=pushed,
    )
    results, text = made(tmp_path)
    (example,) = pick_examples(results, results.benchmarks[0])
    assert (example.problem, example.seed, example.setting) == ("p/0", 0, "odd α8 T1")
    assert [(shown.times, shown.correct) for shown in example.plain] == [(4, False)]
    assert example.diverse[0].pieces == (("1+1=", False), ("2", True))
    page = text("examples.md")
    assert "<ins>2</ins>" in page
    assert "<script>" not in page
    assert "&#60;" in page
    assert "&#124;x" in page


def test_changed_words():
    assert changed("a b c", "a x c") == (("a ", False), ("b", True), (" c", False))
    assert changed("same", "same") == (("same", False),)
    assert changed("", "x") == ()
    assert changed("x", "") == (("x", True),)


@given(st.text("ab \n", max_size=30), st.text("ab \n", max_size=30))
def test_changed_words_leave_the_text_as_it_is(text, plain):
    pieces = changed(text, plain)
    assert "".join(piece for piece, _ in pieces) == text
    assert all(one[1] != next_[1] for one, next_ in pairwise(pieces))
    rest = iter(re.findall(r"\s+|\w+|[^\w\s]", plain))
    kept = [
        word for piece, new in pieces if not new for word in re.findall(r"\s+|\w+|[^\w\s]", piece)
    ]
    assert all(word in rest for word in kept), (
        "what is not marked stands in the plain text, in this order"
    )


def test_changed_words_of_repetitive_texts():
    """The time must not be cubic, as it is for a recursive search for the longest common block."""
    make = lambda n: ("a b c d " * (n // 8), ("a b c d " * (n // 8))[::-1])  # noqa: E731
    assert growth(lambda both: changed(*both), make, 128, 8) < QUADRATIC


def test_a_single_run(tmp_path):
    write_run(tmp_path / "runs", spec(), [[True] * 4, [False] * 4])
    _, text = made(tmp_path)
    page = text("report.md")
    assert "countdown: gains and regret are not available" in page
    assert "only one run" in page
    assert "Transfer of an alpha is not available" in page
    assert "`odd` and its plain baseline share no temperature" in text("claims.md")
    assert next(csv.DictReader(text("pass4.csv").splitlines()))["se"] == ""


def test_a_run_without_a_baseline_of_its_own(tmp_path):
    write_run(tmp_path / "runs", spec(alpha=0.0), [[True] * 4, [False] * 4])
    write_run(tmp_path / "runs", spec(temperature=2.0), [[True] * 4, [False] * 4])
    results, text = made(tmp_path)
    assert all(not cell.gains for cell in results.benchmarks[0].cells)
    assert "insufficient data" in text("claims.md")
    assert "| odd | 1.00 | 8.0 | - |" in text("latency.md")


def test_imported_runs_say_what_cannot_be_had(tmp_path):
    rows = [released(when=i) for i in range(3)] + [
        released("batched_orth", 8, when=10 + i, pass_at_2=0.7) for i in range(3)
    ]
    import_released(write_released(tmp_path / "logs.csv", rows), Store(tmp_path / "runs"), "gsm8k")
    _, text = made(tmp_path)
    assert "gsm8k: coverage is not available" in text("coverage.md")
    assert not (tmp_path / "out" / "coverage.csv").exists()
    assert "gsm8k has no Pass@1" in text("report.md")
    assert "No problem of these runs" in text("examples.md")
    assert list(csv.DictReader(text("pass2.csv").splitlines()))[-1]["mean"] == "70.0"


def test_the_commands(tmp_path, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["oddlm", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    empty = released(when=2, pass_at_1="", pass_at_2="")
    path = write_released(tmp_path / "logs.csv", [released(), ["trial_2\x1b[2J", *empty[1:]]])
    code, out, err = call("import-released", path, "--store", tmp_path / "runs")
    assert (
        code,
        "1 run imported" in out,
        "left out 1 row without a result: trial_2␛[2J" in err,
    ) == (0, True, True)
    write_run(tmp_path / "runs", spec(), [[True] * 4], finish=False)
    code, out, err = call("report", tmp_path / "runs", "--out", tmp_path / "out")
    assert code == 0
    assert "report.md" in out
    assert "not complete: 1 of 1 problems" in err
    assert (tmp_path / "out" / "report.md").exists()
    code, out, err = call("report", tmp_path / "none")
    assert (code, out) == (2, "")
    assert err.startswith(f"oddlm: there is no store {tmp_path}/none")
    err = call("report", tmp_path / "runs", "--out", path)[2]
    assert err.startswith(f"oddlm: cannot write a report to {path}")
    assert call("import-released", tmp_path / "none.csv")[0] == 2


def test_a_report_needs_no_torch(tmp_path):
    grid(tmp_path / "runs", problems=2, seeds=1)
    code = "import sys; from oddlm.cli import main\n"
    code += "sys.argv = ['oddlm', 'report', 'runs', '--out', 'out']\n"
    code += "try: main()\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, check=False, capture_output=True
        ).returncode
        == 0
    )
    assert (tmp_path / "out" / "report.md").exists()

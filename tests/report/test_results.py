"""The result files of the repository: from a store to lines, from lines to pages."""

import importlib
import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from oddlm import SampleParams, metrics, presets
from oddlm.cli import main
from oddlm.report.result_files import Result, export, read_file, read_folder
from oddlm.store import Store

from .made import spec, write_run

ROOT = Path(__file__).parents[2]
PLAIN = {"objective": "none", "fork": False, "alpha": 0.0}
DEFAULT = {name: getattr(SampleParams(), name) for name in presets.PRESETS["auto"]}


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "recipes" / "results"))
    monkeypatch.delitem(sys.modules, "page", raising=False)
    return importlib.import_module("page")


@pytest.fixture
def made(tmp_path):
    """A store with a tune split, on which temperature 1 is best, and a test split of two seeds."""
    rng = np.random.default_rng(0)
    verdicts = {}

    def run(chance: float, seed: int = 0, split: str | None = None, **params) -> None:
        what = spec(seed, **params).model_copy(update={"split": split})
        verdicts[what.id] = rng.random((20, 4)) < chance
        write_run(tmp_path / "runs", what, verdicts[what.id])

    for temperature, chance in ((0.5, 0.1), (1.0, 0.6)):
        run(chance, split="tune", temperature=temperature, **PLAIN)
        for seed in (0, 1):
            run(0.3, seed, temperature=temperature, **PLAIN)
    for seed in (0, 1):
        run(0.7, seed, temperature=0.5, **DEFAULT)
    return tmp_path, verdicts


def test_pages_are_those_of_the_stored_results(page, tmp_path):
    written = page.write(ROOT, tmp_path)
    assert {Path("docs/results.md"), Path("README.md")} <= set(written)
    for path in written:
        assert (tmp_path / path).read_text() == (ROOT / path).read_text(), (
            f"{path}: run `make results`"
        )


def test_the_page_on_blocks_has_the_tables_of_its_recipe():
    recipe = runpy.run_path(str(ROOT / "recipes" / "mini-block" / "report.py"))
    folders = [ROOT / "results" / "blocks" / "mini-block", ROOT / "results" / "mini"]
    written = (ROOT / "docs" / "concepts" / "blocks.md").read_text().replace("\\", "")
    for table in recipe["tables"](folders):
        lines = table.markdown().replace("\\", "").splitlines()
        assert len(table.rows) > 1
        assert "\n".join(line for line in lines if line.startswith("|")) in written


def test_lines_hold_the_verdicts_in_one_order(made):
    root, verdicts = made
    done = export(Store(root / "runs"), root / "results" / "mini")
    assert (done.runs, done.left_out) == (8, ())
    results = read_folder(root / "results" / "mini")
    assert [result.run for result in results if result.split] == [
        result.run for result in results[-2:]
    ]
    order = np.argsort([f"p/{i}" for i in range(20)])
    for result in results:
        assert (result.correct == verdicts[result.run][order]).all()
        assert (result.problems, result.n, result.nfe, set(result.distinct)) == (20, 4, 8.0, {4})
        assert result.params["length"] == 8
    assert len({result.problems_digest for result in results}) == 1
    text = (root / "results" / "mini" / "countdown.jsonl").read_text()
    assert "ask " not in text
    assert str(root) not in text


def test_exporting_again_changes_nothing_and_keeps_the_others(made):
    root, _ = made
    out, store = root / "results" / "mini", Store(root / "runs")
    export(store, out)
    before = (out / "countdown.jsonl").read_bytes()
    assert export(store, out).files == {out / "countdown.jsonl": 8}
    assert (out / "countdown.jsonl").read_bytes() == before
    shutil.rmtree(root / "runs" / store.ids()[0])
    export(store, out)
    assert (out / "countdown.jsonl").read_bytes() == before


def test_the_page_has_the_figures(page, made):
    root, _ = made
    export(Store(root / "runs"), root / "results" / "mini")
    (root / "README.md").write_text(
        "<!-- results:begin gain mini countdown -->\nold\n<!-- results:end -->\n"
    )
    assert set(page.write(root, root)) == {Path("docs/results.md"), Path("README.md")}
    text = (root / "docs" / "results.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    table = {(row[0].strip("*"), row[1]): row for row in rows if len(row) == 8}
    base, default = table["plain, tuned baseline", "1"], table["default (`auto`)", "0.5"]
    assert ("plain", "0.5") in table
    runs = [result for result in read_folder(root / "results" / "mini") if result.split is None]
    default_runs = [run for run in runs if run.method != "plain"]
    plain_runs = [run for run in runs if run.method == "plain" and run.params["temperature"] == 1]
    assert len(default_runs) == len(plain_runs) == 2
    own, plain = (
        np.mean([metrics.pass_at_k(run.correct, 4) for run in some], axis=0)
        for some in (default_runs, plain_runs)
    )
    assert default[3].startswith(f"{100 * own.mean():.1f} [")
    assert base[3].startswith(f"{100 * plain.mean():.1f} [")
    difference, low, high = metrics.paired_interval(own, plain)
    assert default[5] == f"{100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    assert base[5:7] == ["", ""]
    assert default[7] == "8"
    readme = (root / "README.md").read_text()
    assert "old" not in readme
    assert default[5] in readme


def test_the_command_writes_and_says_what_it_left_out(made, capsys, monkeypatch):
    root, _ = made
    unfinished = write_run(root / "runs", spec(7, alpha=2.0), np.zeros((20, 4)), finish=False)
    words = ["runs", "export", "--store", str(root / "runs"), "--out", str(root / "out")]
    monkeypatch.setattr(sys, "argv", ["oddlm", *words])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert end.value.code in (0, None)
    assert f"{root / 'out' / 'countdown.jsonl'}: 8 runs" in said.out
    assert unfinished in said.err
    assert len(read_file(root / "out" / "countdown.jsonl")) == 8


def test_other_weights_are_refused(made):
    root, _ = made
    export(Store(root / "runs"), root / "out")
    other = spec(9).model_copy(update={"model_digest": "sha256:other"})
    write_run(root / "others", other, np.ones((20, 4)))
    with pytest.raises(ValueError, match="sha256:other"):
        export(Store(root / "others"), root / "out")
    export(Store(root / "others"), root / "out2", [other.id])
    assert [one.run for one in read_folder(root / "out2")] == [other.id]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"verdicts": ["01"] * 20}, "4 characters"),
        ({"verdicts": ["0121"] * 20}, "4 characters"),
        ({"problems": 19}, "19 problems"),
        ({"schema_version": 2}, "schema_version"),
        ({"text": "a sample"}, "text"),
    ],
)
def test_lines_that_are_no_result_are_refused(made, change, told):
    root, _ = made
    export(Store(root / "runs"), root / "out")
    path = root / "out" / "countdown.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | change)
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 3") + f".*{told}"):
        read_file(path)


def test_runs_of_other_problems_are_not_compared(page, made):
    root, _ = made
    write_run(root / "runs", spec(0, alpha=2.0), np.zeros((5, 4)))
    export(Store(root / "runs"), root / "results" / "mini")
    with pytest.raises(ValueError, match="mini, countdown"):
        page.write(root, root)


def test_a_block_that_is_unknown_or_has_no_end_is_refused(page):
    for text in (
        "<!-- results:begin pie -->\n<!-- results:end -->",
        "<!-- results:begin summary -->\n",
    ):
        with pytest.raises(ValueError, match=r"x\.md"):
            page.filled(text, [], Path("x.md"))


def test_every_field_is_documented():
    text = (ROOT / "results" / "README.md").read_text()
    assert [name for name in Result.model_fields if f"`{name}`" not in text] == []

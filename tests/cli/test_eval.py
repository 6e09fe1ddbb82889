"""eval, sample, generate and runs, as a user types them."""

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

from oddlm import load
from oddlm.cli import app, main
from oddlm.store import Store

from .. import own_task
from ..experiments.test_run import ENV, ROOT

RULE = "tests.own_task.TASK"
TOY = ("--model", "toy")  # for tests of commands, not of models


@pytest.fixture
def oddlm(monkeypatch, capsys, tmp_path):
    """Run commands in a temporary folder; each call returns exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["oddlm", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def test_eval_from_the_grid_to_the_table(oddlm, tmp_path):
    grid = ["--alpha", "0,16", "--temperature", "0,1", "--objective", "odd,dpp", "--seeds", "0,1"]
    code, out, err = oddlm(
        "eval", RULE, *TOY, "--n", "4", "--limit", "3", *grid, "--json", "out.json", "--show", "1"
    )
    assert (code, err) == (0, "")
    runs = [Store(Path("runs")).read(name) for name in Store(Path("runs")).ids()]
    assert len(runs) == 2 * 2 * 3
    assert all(len(run.records) == 3 and run.summary for run in runs)
    assert out.count("baseline") == 2
    assert "own/0" in out
    assert "= 0" in out, "at temperature 0 plain samples are alike"
    results = json.loads(Path("out.json").read_text())
    assert (results["problems"], results["n"], results["seeds"]) == (3, 4, [0, 1])
    assert [s["params"]["objective"] for s in results["settings"]] == ["none", "odd", "dpp"] * 2
    by_id = {run.id: run for run in runs}
    for setting in results["settings"]:
        shares = [by_id[name].summary.passed["pass@4"] for name in setting["runs"]]
        assert setting["pass@n"]["mean"] == pytest.approx(sum(shares) / 2)
        assert f"{100 * setting['pass@n']['mean']:.1f}" in out
    plain, pushed = results["settings"][:2]
    assert pushed["difference"]["difference"] == pytest.approx(
        pushed["pass@n"]["mean"] - plain["pass@n"]["mean"]
    )
    code, again, _ = oddlm("eval", RULE, *TOY, "--n", "4", "--limit", "3", *grid)
    assert code == 0
    *shown, _ = out.splitlines()  # the last line is about the network, which is not asked again
    lines = again.splitlines()
    assert lines == shown[-len(lines) :], "nothing is run again, and the table is the same"


def test_the_baseline_runs_unasked(oddlm):
    setting = ["--alpha", "8", "--objective", "dpp"]
    assert oddlm("eval", RULE, *TOY, "--n", "2", "--limit", "1", *setting)[0] == 0
    stored = [Store(Path("runs")).read(name).spec.params for name in Store(Path("runs")).ids()]
    assert [(params.objective, params.alpha) for params in stored] == [("none", 0), ("dpp", 8)]


def test_one_is_singular(oddlm):
    shape = ["--n", "1", "--length", "4", *TOY]
    code, out, _ = oddlm("eval", RULE, "--limit", "1", "--alpha", "0", *shape)
    assert (code, "1 problem, 1 sample each, seed 0. " in out) == (0, True)
    Path("prompts.jsonl").write_text('{"prompt": "t5"}\n')
    assert oddlm("generate", "--in", "prompts.jsonl", "--out", "o.jsonl", *shape)[1].startswith(
        "1 sample in o.jsonl"
    )


def test_own_files_count_by_what_they_hold(oddlm):
    for folder, target in (("a", "t7"), ("b", "t7"), ("c", "t8")):
        Path(folder).mkdir()
        Path(folder, "own.jsonl").write_text(json.dumps({"prompt": "t5", "target": target}) + "\n")
        shape = ["--n", "2", "--length", "4", "--alpha", "0"]
        assert oddlm("eval", f"{folder}/own.jsonl", "--scorer", "exact", *shape, *TOY)[0] == 0
    assert len(Store(Path("runs")).ids()) == 2


def test_any_setting_of_the_sampler(oddlm):
    command = ["eval", RULE, *TOY, "--n", "2", "--limit", "1", "--alpha", "0", "--top-k", "3"]
    policy = {"name": "threshold", "threshold": 0.5}
    assert oddlm(*command, "--policy", json.dumps(policy), "--keep-tokens")[0] == 0
    run = Store(Path("runs")).read(Store(Path("runs")).ids()[0])
    assert (run.spec.params.top_k, run.spec.params.policy) == (3, policy)
    assert run.records[0].samples[0].tokens


EVAL = ["eval", RULE, *TOY, "--limit", "1", "--n", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*EVAL, "--metrics", "distinct_txts"], "unknown metric 'distinct_txts'; known: "),
        ([*EVAL, "--objective", "od"], "unknown objective 'od'; known: dpp"),
        ([*EVAL, "--alpha", "8;16"], "alpha: Input should be a valid number, unable to parse"),
        ([*EVAL, "--alpha", ""], "--alpha takes comma-separated values; one is empty"),
        ([*EVAL, "--alpha", "-1"], "alpha: Input should be greater than or equal to 0, not -1"),
        ([*EVAL, "--alpha", "nan"], "alpha: Input should be a finite number, not 'nan'"),
        ([*EVAL, "--seeds", "0.5"], "--seeds takes comma-separated whole numbers, not '0.5'"),
        (
            [*EVAL, "--objective", "odd,,dpp"],
            "--objective takes comma-separated values; one is empty",
        ),
        (
            [*EVAL, "--preset", "carefull"],
            "preset: Input should be 'auto', 'careful' or 'paper'",
        ),
        ([*EVAL, "--policy", "lowest"], "unknown policy 'lowest'; known: "),
        ([*EVAL, "--model", "toi"], "unknown model 'toi'; known: mini, toy"),
        (
            [*EVAL, "--json", "no/where.json"],
            "cannot write no/where.json: its folder does not exist",
        ),
        ([*EVAL, "--store", "file"], "file is a file, but a store is a folder"),
        ([*EVAL, "--data", "x.jsonl"], "task 'own' has no option 'data'; options: limit"),
        (["eval", "own.jsonl"], "there is no file own.jsonl"),
        (
            ["eval", "own.jsonl", "--scorer", "exact"],
            "cannot read own.jsonl: No such file or directory",
        ),
        (["eval", "mine.jsonl"], "mine.jsonl needs a scorer; known: exact, number, python"),
        (["eval", "countdwn"], "unknown task 'countdwn'; known: countdown"),
        (
            ["generate", "--in", "no.jsonl", "--out", "o"],
            "cannot read no.jsonl: No such file or directory",
        ),
        (["generate", "--in", "file", "--out", "o"], "file, line 1: not JSON"),
        (["sample", "t5", *TOY, "--store", "file"], "file is a file, but a store is a folder"),
        (["sample", ""], "prompts[0] is empty"),
        (["runs"], "there is no store runs: create one with `oddlm eval`"),
        (["runs", "show", "x", "--store", "nowhere"], "there is no store nowhere"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(oddlm, tmp_path, arguments, message):
    Path("file").write_text("mine\n")
    Path("mine.jsonl").write_text('{"prompt": "t5", "target": "t6"}\n')
    code, out, err = oddlm(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"oddlm: {message}")
    assert err.count("\n") == 1
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == [tmp_path / "file", tmp_path / "mine.jsonl"]
    assert Path("file").read_text() == "mine\n"


def test_a_failed_problem_has_one_exit_status(oddlm, monkeypatch):
    def broken(problem, text):
        raise RuntimeError("no verdict")

    monkeypatch.setattr(own_task, "TASK", replace(own_task.TASK, score=broken))
    words = ["eval", RULE, *TOY, "--n", "2", "--limit", "1", "--alpha", "0"]
    code, _, err = oddlm(*words)
    assert (code, "own/0" in err) == (1, True)
    code, out, err = oddlm(*words, "--fail-fast")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "own/0" in err


def test_generate_goes_on_and_can_be_scored(oddlm):
    prompts = [{"prompt": f"t{i}", "id": f"p{i}"} for i in range(5, 8)] + [{"prompt": "t3"}]
    Path("prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    files = ["--in", "prompts.jsonl", "--out", "samples.jsonl"]
    command = ["generate", *files, "--n", "3", "--length", "5", *TOY]
    code, out, err = oddlm(*command)
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in Path("samples.jsonl").read_text().splitlines()]
    assert [(line["id"], line["index"]) for line in lines] == [
        (p, i) for p in ("p5", "p6", "p7", "3") for i in range(3)
    ]
    fields = {"id", "index", "text", "length", "finish_reason", "logprob", "seed", "nfe"}
    assert set(lines[0]) == fields
    first = Path("samples.jsonl").read_bytes()
    for name in ("drawn.jsonl", "scores.jsonl"):
        path = next(Path("runs").glob(f"*/{name}"))
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    next(Path("runs").glob("*/summary.json")).unlink()
    Path("samples.jsonl").unlink()
    assert oddlm(*command)[0] == 0
    assert Path("samples.jsonl").read_bytes() == first
    Path("own.jsonl").write_text(
        "".join(json.dumps({"id": "3", **p, "target": "t1"}) + "\n" for p in prompts)
    )
    code, out, _ = oddlm("score", "own.jsonl", "--scorer", "exact", "--in", "samples.jsonl")
    assert (code, out.split(";")[0]) == (0, "0 of 12 answers right (0.0%)")


def test_sample_prints_where_there_is_no_terminal_and_stores(oddlm):
    code, out, err = oddlm("sample", "t5 t6", "--n", "3", "--length", "6", *TOY)
    assert (code, err) == (0, "")
    run = Store(Path("runs")).read(Store(Path("runs")).ids()[0])
    assert (
        out
        == "".join(f"--- {s.index}\n{s.text}\n" for s in run.records[0].samples)
        + f"--- seed {run.records[0].seed}\n"
    )
    assert oddlm("sample", "t5 t6", "--n", "3", "--length", "6", *TOY)[1] == out
    assert len(Store(Path("runs")).read(run.id).records) == 1
    oddlm("sample", "t5 t7", "--n", "3", "--length", "6", *TOY)
    assert len(Store(Path("runs")).ids()) == 2


def test_python_draws_the_samples_of_a_command_by_the_seed_that_it_tells(oddlm):
    settings = ["--length", "6", "--alpha", "2", "--seed", "7", "--policy", "margin", "--pool", "5"]
    _, out, _ = oddlm("sample", "t5 t6", "--n", "3", *settings, *TOY)
    shown, _, seed = out.rpartition("--- seed ")
    (samples,) = load("toy").generate(
        "t5 t6", 3, length=6, alpha=2, policy="margin", pool=5, seed=int(seed)
    )
    assert shown == "".join(f"--- {s.index}\n{s.text}\n" for s in samples)
    (others,) = load("toy").generate("t5 t6", 3, length=6, alpha=2, policy="margin", pool=5, seed=7)
    assert [s.text for s in others] != [s.text for s in samples]
    assert "seed=S" in oddlm("sample", "--help")[1]


def test_sample_draws_on_a_terminal(tmp_path):
    leader, follower = pty.openpty()
    shape = ["--n", "3", "--length", "12", "--temperature", "0"]
    command = [sys.executable, "-m", "oddlm", "sample", "t5 t6", *TOY, *shape]
    env = {**ENV, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=follower, stderr=follower)
    os.close(follower)
    drawn = b""
    while True:
        try:
            part = os.read(leader, 1 << 16)
        except OSError:  # the other end is closed
            break
        drawn += part
    os.close(leader)
    assert process.wait(timeout=60) == 0
    text = drawn.decode()
    steps = {int(number) for number in re.findall(r"step (\d+) of 12", text)}
    assert len(steps) >= 3, "it is shown while it is denoised"
    assert "◆" in text
    assert re.search(r"--- seed \d+\r?\n", text)
    assert "\x1b[1;35m◆" in text, "in colour, too"


def test_runs_are_listed_shown_and_asked(oddlm, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = oddlm("eval", RULE, *TOY, "--n", "2", "--limit", "2", "--alpha", "8")
    assert code == 0
    assert "odd (enough 0.5) + fork" in out
    plain, pushed = Store(Path("runs")).ids()
    code, out, err = oddlm("runs")
    assert (code, err) == (0, "")
    assert plain in out
    assert "odd (enough 0.5) + fork α8 T0.5" in out
    code, out, err = oddlm("runs", "show", pushed[:5], "--samples", "1")
    assert (code, err) == (0, "")
    for words in (f"{pushed}: 2 of 2 problems", "pass@2", "own/0", "alpha", "8.0", "torch"):
        assert words in out
    code, out, _ = oddlm(
        "runs",
        "sql",
        "select run, count(*) as samples from samples group by run order by run",
        "--json",
    )
    assert [json.loads(line) for line in out.splitlines()] == [
        {"run": r, "samples": 4} for r in sorted([plain, pushed])
    ]
    code, out, _ = oddlm("runs", "--store", "runs", "sql", "select 41 + 1 as answer")
    assert "42" in out
    code, out, err = oddlm("runs", "sql", "select nothing from samples")
    assert code == 2
    assert "nothing" in err


def test_a_pipe_gets_whole_words(oddlm, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert oddlm("eval", RULE, *TOY, "--n", "2", "--limit", "1", "--alpha", "8")[0] == 0
    listed = [line for line in oddlm("runs")[1].splitlines()[2:] if line[0] != " "]
    assert [line.split()[:3] for line in listed] == [
        [run, RULE, "toy"] for run in Store(Path("runs")).ids()
    ]
    wide = ", ".join(f"'{'abcdefghij' * 3}' as c{i}" for i in range(9))
    code, out, _ = oddlm("runs", "sql", f"select {wide}")
    assert (code, out.splitlines()[-1].split()) == (0, ["abcdefghij" * 3] * 9)
    long = " ".join(["word"] * 60)
    Path("own.jsonl").write_text(json.dumps({"prompt": long, "target": "x"}) + "\n")
    _, out, _ = oddlm("problems", "own.jsonl", "--scorer", "exact", "--limit", "1")
    assert long in out.splitlines()


def test_a_broken_run_does_not_hide_the_others(oddlm):
    assert oddlm("eval", RULE, *TOY, "--n", "2", "--limit", "1", "--alpha", "8")[0] == 0
    plain, pushed = Store(Path("runs")).ids()
    spec = Path("runs", plain, "spec.json")
    spec.write_text(spec.read_text().replace('"schema_version":2', '"schema_version":1'))
    code, out, err = oddlm("runs")
    assert code == 2
    assert pushed in out
    assert err.startswith(f"oddlm: runs/{plain}/spec.json: ")
    assert "schema 1" in err
    assert err.count("\n") == 1


def test_one_default_model():
    commands = get_command(app).commands
    found = {
        name: param.default
        for name, command in commands.items()
        for param in command.params
        if param.name == "model" and not param.required
    }
    assert {"eval", "sample", "generate", "serve", "record", "tune", "demo"} <= set(found)
    assert set(found.values()) == {"mini"}


def test_a_model_out_of_reach_is_told_before_data_is_read(tmp_path):
    command = [sys.executable, "-m", "oddlm", "eval", "gsm8k", "--model", "nobody/nothing"]
    env = {**ENV, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("oddlm: nobody/nothing ")
    assert done.stderr.count("\n") == 1


def test_the_command_line_starts_light():
    heavy = {"torch", "numpy", "duckdb", "pyarrow", "optuna", "sqlalchemy"}
    heavy |= {"wandb", "mlflow", "tensorboard"}
    code = f"import sys, oddlm.cli; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

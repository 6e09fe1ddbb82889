"""`oddlm runs score` draws nothing again; runs that it cannot score are named and not changed."""

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from oddlm.cli import main
from oddlm.experiments.executors import find_executor
from oddlm.experiments.plan import Plan
from oddlm.experiments.run import run_plan
from oddlm.experiments.work import Bench, Options
from oddlm.store import Failure, Store

from .. import own_task
from ..own_task import TASK
from ..runs import asked, drawn, run, scored
from .test_run import spec


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Store(Path("runs"))


@pytest.fixture
def oddlm(monkeypatch, capsys):
    def call(*line: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["oddlm", *line])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def scorer(monkeypatch):
    """Give the task another version of its scorer."""
    return lambda version: monkeypatch.setattr(
        own_task, "TASK", replace(TASK, scorer_version=version)
    )


def bytes_of(store: Store) -> dict[str, str]:
    """The digests of all files except locks, which name the last writer."""
    paths = [path for path in store.folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in paths}


def counts(store: Store) -> list[tuple[int, int, int, bool]]:
    return [
        (head.problems, head.drawn, head.scored, head.complete)
        for head in map(store.exact_head, store.ids())
    ]


def times(store: Store) -> set[tuple[str, float]]:
    return {(one.problem, one.seconds) for name in store.ids() for one in store.records(name)}


def test_scorers_in_turn_draw_every_problem_once(store, scorer):
    run(store, spec(), limit=3)
    scorer(2)
    run(store, spec(), limit=6)
    scorer(TASK.scorer_version)
    run(store, spec(), limit=6)
    assert counts(store) == [(6, 6, 6, True)] * 2
    assert len(times(store)) == 6, "a problem that were drawn twice would have two times"


def test_all_runs_are_scored_by_the_scorer_of_today(store, scorer, oddlm):
    run(store, spec(), limit=3)
    scorer(2)
    run(store, spec(), limit=6)
    scorer(TASK.scorer_version)
    code, out, _ = oddlm("runs", "score", "--all")
    assert (code, out) == (0, f"{spec().id}\n")
    assert counts(store) == [(6, 6, 6, True)] * 2
    assert len(times(store)) == 6


def test_scoring_that_was_stopped_resumes_beside_its_sibling(store, scorer, oddlm):
    run(store, spec(), limit=3)
    scorer(2)
    assert oddlm("runs", "score", "--all")[0] == 0
    new = store.folder / store.ids()[1]
    (new / "summary.json").unlink()
    (new / "scores.jsonl").write_bytes(
        (new / "scores.jsonl").read_bytes().splitlines(keepends=True)[0]
    )
    code, out, _ = oddlm("runs", "score", "--all")
    assert (code, out) == (0, f"{new.name}\n")
    assert counts(store) == [(3, 3, 3, True)] * 2


def test_a_run_that_is_named_twice_is_scored_once(store, oddlm):
    run(store, spec(), limit=2, stages=("draw",))
    name = store.ids()[0]
    assert oddlm("runs", "score", name, name[:5]) == (0, f"{name}\n", "")


def test_one_bad_run_does_not_hold_up_the_others(store, oddlm):
    for seed in range(4):
        run(store, spec(seed=seed), limit=2, stages=("draw",))
    whole, newer, torn, gone = store.ids()
    for name, file in ((newer, "spec.json"), (torn, "drawn.jsonl")):
        path = store.folder / name / file
        path.write_text(path.read_text().replace('"schema_version":2', '"schema_version":3', 1))
    (store.folder / gone / "spec.json").unlink()
    before = bytes_of(store)
    code, out, err = oddlm("runs", "score", "--all")
    assert (code, out) == (1, f"{whole}\n")
    assert len(err.splitlines()) == 3
    for place in (f"{newer}/spec.json", f"{torn}/drawn.jsonl", f"{gone}/spec.json"):
        assert place in err
    after = bytes_of(store)
    assert {path for path in before if after[path] != before[path]} <= {
        f"runs/{whole}/environment.json"
    }


def test_a_run_of_which_nothing_is_drawn_is_named(store, oddlm):
    run(store, spec(), limit=2)
    (store.folder / spec().id / "drawn.jsonl").unlink()
    for left in ("summary.json", "scores.jsonl"):
        code, out, err = oddlm("runs", "score", spec().id)
        assert (code, out, err.count("\n"), f"{spec().id}/drawn.jsonl" in err) == (1, "", 1, True)
        (store.folder / spec().id / left).unlink()
    code, out, err = oddlm("runs", "score", spec().id)
    assert (code, out, err.count("\n"), f"{spec().id}/drawn.jsonl" in err) == (1, "", 1, True)


def test_who_asked_for_more_is_told(store, oddlm):
    run(store, spec(), limit=4, stages=("draw",))
    path = store.folder / spec().id / "drawn.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    code, out, err = oddlm("runs", "score", "--all")
    assert (code, out, err.count("\n")) == (1, f"{spec().id}\n", 1)
    assert "1 problems" in err
    assert counts(store) == [(4, 3, 3, False)]


def cut(folder: Path, how: str) -> None:
    path = folder / "drawn.jsonl"
    first, rest = path.read_bytes().split(b"\n", 1)
    if how == "torn":
        (folder / "summary.json").unlink()
        path.write_bytes(first + b"\n" + rest[:40])
    elif how == "lines":
        path.write_bytes(first + b"\n")
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["torn", "lines", "folder", "gone"])
def test_a_folder_that_is_refused_is_left_as_it_is(store, scorer, how):
    """Files were lost, more problems were requested, or a sibling has all samples."""
    run(store, spec(), limit=4)
    scorer(2)
    run(store, spec(), limit=4)
    scorer(TASK.scorer_version)
    cut(store.folder / spec().id, how)
    before = bytes_of(store)
    with pytest.raises(ValueError, match=rf"{spec().id}/drawn\.jsonl"):
        run(store, spec(), limit=5)
    assert bytes_of(store) == before


def test_a_sibling_that_cannot_be_read_is_passed_by(store, scorer):
    run(store, spec(), limit=2)
    path = store.folder / spec().id / "spec.json"
    path.write_text(path.read_text().replace('"schema_version":2', '"schema_version":1', 1))
    scorer(2)
    assert len(run(store, spec(), limit=2)) == 2


def test_prompts_that_changed_are_neither_scored_nor_taken_over(store, monkeypatch, oddlm):
    run(store, spec(), limit=2, stages=("draw",))
    monkeypatch.setattr(
        own_task,
        "TASK",
        replace(TASK, scorer_version=2, prompt=lambda problem: problem.prompt + " t9"),
    )
    before = bytes_of(store)
    code, _, err = oddlm("runs", "score", "--all")
    assert (code, err.count("\n"), f"{store.ids()[0]}/drawn.jsonl" in err) == (1, 1, True)
    assert bytes_of(store) == before
    records = run(store, spec(), limit=2)
    assert [record.prompt[-3:] for record in records] == [" t9"] * 2


def test_a_spec_that_was_edited_or_moved_is_noticed_everywhere(store, oddlm):
    run(store, spec(), limit=2)
    name = spec().id
    path = store.folder / name / "spec.json"
    whole = path.read_text()
    for edited in (
        whole.replace('"temperature":1.0', '"temperature":0.9'),
        whole.replace(f'"id":"{name}"', '"id":"0"'),
    ):
        assert edited != whole
        path.write_text(edited)
        for command in (["runs"], ["runs", "score", "--all"], ["runs", "show", name], ["report"]):
            code, _, err = oddlm(*command)
            assert (code > 0, err.count("\n"), f"{name}/spec.json" in err) == (True, 1, True), (
                command
            )
    path.write_text(whole)
    shutil.move(store.folder / name, store.folder / "copy")
    assert "copy/spec.json" in oddlm("runs")[2]


def test_scoring_forgives_no_failure_of_drawing(store):
    run(store, spec(), limit=2, stages=("draw",))
    failures = [
        Failure(problem="own/5", stage=stage, error="E: no", traceback="")
        for stage in ("draw", "score")
    ]
    with store.open(spec(), 2) as writer:
        for failure in failures:
            writer.fail(failure)
    run(store, spec(), limit=2, stages=("score",))
    assert store.failures(spec()) == failures[:1]


@pytest.mark.parametrize("short", [["correct"], ["correct", "solutions", "answers", "details"]])
def test_verdicts_on_fewer_samples_than_there_are(store, oddlm, short):
    run(store, spec(), limit=2)
    path = store.folder / spec().id / "scores.jsonl"
    first, rest = path.read_text().split("\n", 1)
    content = json.loads(first)
    path.write_text(json.dumps(content | {name: content[name][:2] for name in short}) + "\n" + rest)
    code, _, err = oddlm("runs", "show", spec().id)
    assert (code, err.count("\n"), f"{spec().id}/scores.jsonl" in err) == (2, 1, True)


@pytest.mark.parametrize("text", ["x", "nan", "0", "-1", "true"])
def test_a_timeout_is_a_number_of_seconds(text):
    with pytest.raises(ValueError, match="timeout"):
        find_executor(f"local:timeout={text}", Options())


def test_an_option_is_given_once():
    with pytest.raises(ValueError, match="workers is given twice"):
        find_executor("local:workers=1,workers=2", Options())


def lazy(options):
    """An executor that ends after the first batch."""

    class Lazily:
        def outcomes(self, take):
            yield Bench(options).run(take("draw"))

        def close(self):
            pass

    return Lazily()


def no_executor(options):
    return 1


def broken(options):
    raise KeyError("queue")


def test_executors_of_ones_own_that_are_none():
    for name, message in (("no_executor", "has no outcomes"), ("broken", "KeyError: 'queue'")):
        with pytest.raises(ValueError, match=message):
            find_executor(f"tests.experiments.test_rescoring.{name}", Options())


def test_an_executor_that_ends_early_is_told_so(store):
    plan = Plan((asked(spec(), limit=3),))
    with pytest.raises(ValueError, match="3 of 3 problems left"):
        run_plan(plan, store, find_executor("tests.experiments.test_rescoring.lazy", Options()))
    assert (drawn(store.folder), scored(store.folder)) == (1, 0)
    assert len(run(store, spec(), limit=3)) == 3

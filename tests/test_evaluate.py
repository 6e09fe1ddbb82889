"""One run: complete whatever happens to its process, and the same whatever the order."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import oddlm
from oddlm.evaluate import Runner, draw, environment, identified, powers_of_two
from oddlm.models.toy import Toy
from oddlm.params import RunSpec, checked
from oddlm.store import Row, Store, StoreError
from oddlm.tasks import Problem

from . import own_task
from .own_task import TASK
from .starting import interruptible
from .waiting import WAIT_S, wait_until

ROOT = Path(__file__).parent.parent
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def spec(**changes) -> RunSpec:
    params = {"length": 6, "alpha": changes.pop("alpha", 16), "temperature": changes.pop("temperature", 1)}
    return identified(checked(RunSpec, {"model": "toy", "task": "own", "n": 4, "params": params, **changes}))


def content(rows) -> list[dict]:
    """All but how long it took."""
    return [row.model_dump(exclude={"seconds", "score_seconds"}) for row in rows]


@pytest.fixture
def runner(tmp_path):
    return Runner(Store(tmp_path / "runs"), lambda: oddlm.load("toy"))


def test_every_problem_is_drawn_scored_and_stored(runner):
    seen: list[tuple[str, bool]] = []
    rows = runner.run(spec(), TASK, TASK.load(), lambda row, fresh: seen.append((row.problem, fresh)))
    assert [row.problem for row in rows] == [p.id for p in TASK.load()] == [name for name, _ in seen]
    assert all(fresh for _, fresh in seen)
    stored = runner.store.read(spec().id)
    assert list(stored.rows) == rows
    for row in rows:
        assert [s.index for s in row.samples] == [0, 1, 2, 3]
        assert [s.correct for s in row.samples] == [TASK.score(None, s.text).correct for s in row.samples]
        assert row.nfe == 6
    right = [s.correct for row in rows for s in row.samples]
    assert stored.summary.passed["pass@1"] == pytest.approx(sum(right) / len(right))
    assert stored.summary.passed["pass@4"] == pytest.approx(sum(any(row.correct) for row in rows) / 12)
    assert 0 < stored.summary.passed["pass@1"] < stored.summary.passed["pass@4"]
    assert (stored.summary.problems, stored.summary.samples) == (12, 48)


def test_a_stored_sample_is_what_its_seed_gives(runner):
    row = runner.run(spec(), TASK, TASK.load(limit=2))[1]
    again = oddlm.load("toy").generate(row.prompt, 4, params=spec().params, seed=row.seed)[0]
    assert [s.text for s in again] == [s.text for s in row.samples]


def test_order_limit_and_batching_do_not_matter(runner, tmp_path):
    one = runner.run(spec(), TASK, TASK.load())
    backwards = Runner(Store(tmp_path / "b"), runner.lm, together=5).run(spec(), TASK, TASK.load()[::-1])
    few = Runner(Store(tmp_path / "c"), runner.lm).run(spec(limit=3), TASK, TASK.load(limit=3))
    assert content(one) == content(backwards[::-1])
    assert content(one[:3]) == content(few)


@pytest.mark.parametrize(("together", "asked", "most"), [(1, None, 4), (3, None, 12), (1, 3, 3), (3, 3, 3)])
def test_the_network_sees_no_more_than_the_model_was_loaded_for(monkeypatch, together, asked, most):
    seen: list[int] = []
    network = Toy.__call__

    def counted(self, tokens, start, prompt_lengths):
        seen.append(len(tokens))
        return network(self, tokens, start, prompt_lengths)

    monkeypatch.setattr(Toy, "__call__", counted)
    draw(oddlm.load("toy", max_batch=asked), spec(), TASK, TASK.load(limit=together))
    assert max(seen) == most


def test_what_is_stored_is_not_made_again(runner):
    first = runner.run(spec(), TASK, TASK.load())

    def no_model():
        raise AssertionError("a complete run needs no model")

    fresh = []
    again = Runner(runner.store, no_model).run(spec(), TASK, TASK.load(), lambda _, new: fresh.append(new))
    assert again == first
    assert fresh == [False] * 12
    assert len(runner.store.read(spec().id).starts) == 1


def test_an_error_in_scoring_keeps_what_was_done(runner):
    def fail(problem: Problem, text: str):
        if problem.id == "own/3":
            raise RuntimeError("the judge is gone")
        return own_task.score(problem, text)

    from dataclasses import replace

    with pytest.raises(RuntimeError, match="the judge is gone"):
        runner.run(spec(), replace(TASK, score=fail), TASK.load())
    assert [row.problem for row in runner.store.read(spec().id).rows] == ["own/0", "own/1", "own/2"]
    assert runner.store.read(spec().id).summary is None
    assert len(runner.run(spec(), TASK, TASK.load())) == 12
    assert len(runner.store.read(spec().id).starts) == 2


def test_a_model_that_does_not_load_leaves_nothing(tmp_path):
    runner = Runner(Store(tmp_path / "runs"), lambda: oddlm.load("toi"))
    with pytest.raises(ValueError, match="unknown model 'toi'"):
        runner.run(spec(), TASK, TASK.load())
    assert not (tmp_path / "runs").exists()


def test_problems_that_changed_are_not_mixed_in(runner):
    runner.run(spec(), TASK, TASK.load(limit=2))
    with pytest.raises(StoreError, match="problem 'own/0' is not what it was"):
        runner.run(spec(), TASK, [Problem("own/0", "t1 t2", None)])


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ([Problem("a", "t1", None), Problem("a", "t2", None)], "two problems have the id 'a'"),
        ([Problem("\ud800", "t1", None)], "not valid Unicode"),
        ([Problem("a", "t1 \udfff", None)], "not valid Unicode"),
        ([], "there are no problems to run"),
        ([Problem("a", " ", None)], r"problem a: prompts\[0\] is empty"),
        ([Problem("long", "t1 " * 2000, None)], "problem long: .* has 2000 tokens"),
    ],
)
def test_problems_that_cannot_be_run(runner, problems, message):
    with pytest.raises(ValueError, match=message):
        runner.run(spec(), TASK, problems)


def test_without_a_task_nothing_is_scored(runner):
    rows = runner.run(spec(task=None), None, TASK.load(limit=2))
    assert {sample.correct for row in rows for sample in row.samples} == {None}
    assert runner.store.read(spec(task=None).id).summary.passed is None


def test_tokens_are_kept_where_asked(tmp_path):
    rows = Runner(Store(tmp_path), lambda: oddlm.load("toy"), keep_tokens=True).run(spec(), TASK, TASK.load(limit=1))
    assert all(len(sample.tokens) == 6 for sample in rows[0].samples)


def test_the_environment_says_what_ran():
    found = environment(oddlm.load("toy"))
    assert found["versions"]["oddlm"] == oddlm.__version__
    assert found["device"] == "cpu"
    assert found["backend"] is None
    for alpha, backend in ((0, "torch"), (4, "closed_form")):
        params = oddlm.SampleParams(alpha=alpha)
        assert environment(oddlm.load("toy"), params=params)["backend"] == backend
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode == 0:  # an unpacked release has no history
        assert found["git"]["oddlm"]["commit"] == head.stdout.strip()
    assert json.dumps(found)


def test_powers_of_two():
    assert [powers_of_two(n) for n in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]


def start(store: Path, *more: str, hearing: bool = True) -> subprocess.Popen[str]:
    """hearing: Ctrl-C is not ignored, whatever the caller does."""
    command = [
        sys.executable,
        "-m",
        "oddlm",
        "eval",
        "tests.own_task.SLOW",
        "--model",
        "toy",
        "--n",
        "4",
        "--alpha",
        "16",
        *more,
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    begin = interruptible if hearing else subprocess.Popen
    return begin([*command, "--store", str(store)], cwd=ROOT, env=ENV, text=True, **pipes)


def lines(store: Path) -> int:
    """Whole lines of all runs."""
    return sum(path.read_bytes().count(b"\n") for path in store.glob("*/rows.jsonl"))


def stored(store: Path) -> dict[str, list[dict]]:
    return {name: content(Store(store).read(name).rows) for name in Store(store).ids()}


@pytest.mark.parametrize(("kills", "seeds"), [(3, "0"), pytest.param(20, "0,1,2", marks=pytest.mark.soak)])
def test_killed_at_random_moments_and_restarted(tmp_path, kills, seeds):
    """Plain sampling and one setting, 12 problems of about 0.2 s each; every kill comes up to 0.3 s after some row."""
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    whole = start(undisturbed, "--seeds", seeds)
    _, err = whole.communicate(timeout=WAIT_S)
    assert whole.returncode == 0, err
    randomness = random.Random(kills)
    for _ in range(kills):
        process = start(disturbed, "--seeds", seeds)
        target = lines(disturbed) + (1 if kills > 3 else randomness.choice([1, 3, 5]))
        wait_until(lambda target=target: lines(disturbed) >= target, process)
        time.sleep(randomness.uniform(0, 0.3))
        process.kill()
        process.communicate(timeout=WAIT_S)
        assert process.returncode == -signal.SIGKILL
    last = start(disturbed, "--seeds", seeds)
    _, err = last.communicate(timeout=WAIT_S)
    assert last.returncode == 0, err
    assert stored(disturbed) == stored(undisturbed)
    assert lines(disturbed) == lines(undisturbed) == 24 * len(seeds.split(","))
    runs = [Store(disturbed).read(name) for name in Store(disturbed).ids()]
    assert all(run.summary is not None for run in runs)
    assert sum(len(run.starts) for run in runs) > kills, "every start added something"


def test_two_processes_on_one_folder(tmp_path):
    first = start(tmp_path / "runs")
    wait_until(lambda: lines(tmp_path / "runs") >= 1, first)
    first.send_signal(signal.SIGSTOP)  # in mid-run, however long the other takes
    try:
        second = start(tmp_path / "runs")
        _, complaint = second.communicate(timeout=WAIT_S)
    finally:
        first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=WAIT_S)
    assert first.returncode == 0, err
    assert second.returncode == 2
    assert f"is being written by process {first.pid} on" in complaint
    assert complaint.endswith("wait until it ends, or give another --store\n")
    assert [len(rows) for rows in stored(tmp_path / "runs").values()] == [12, 12]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path):
    process = start(tmp_path / "runs")
    wait_until(lambda: lines(tmp_path / "runs") >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert err.startswith("oddlm: stopped; ")
    assert err.endswith("The same command goes on from there.\n")
    assert "Traceback" not in err
    kept = lines(tmp_path / "runs")
    assert 2 <= kept < 24
    before = {name: rows for name, rows in stored(tmp_path / "runs").items() if rows}
    again = start(tmp_path / "runs")
    _, err = again.communicate(timeout=WAIT_S)
    assert again.returncode == 0, err
    after = stored(tmp_path / "runs")
    assert [len(rows) for rows in after.values()] == [12, 12]
    for name, rows in before.items():
        assert after[name][: len(rows)] == rows


def test_rows_are_frozen():
    assert Row.model_config["frozen"]

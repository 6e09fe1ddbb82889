"""Every problem is drawn, scored and stored once, on every executor, even if processes die."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import oddlm
from oddlm.config import checked
from oddlm.experiments.executors import find_executor
from oddlm.experiments.identity import identified
from oddlm.experiments.plan import Plan, drawn_problems, make_plan
from oddlm.experiments.run import Progress, run_plan
from oddlm.experiments.stages import draw, drawing_environment, powers_of_two
from oddlm.experiments.work import Bench, Options, Outcome, Take
from oddlm.models.toy import Toy
from oddlm.spec import RunSpec
from oddlm.store import DamagedRunError, Record, RunHeldError, Store
from oddlm.tasks import Problem

from .. import own_task
from ..own_task import TASK
from ..runs import asked, carry_out, content, run, scored, stored
from ..starting import interruptible
from ..waiting import WAIT_S, wait_until

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def spec(**changes) -> RunSpec:
    params = {
        "length": 6,
        "alpha": changes.pop("alpha", 16),
        "temperature": changes.pop("temperature", 1),
    }
    asked = {"model": "toy", "task": "tests.own_task.TASK", "n": 4, "params": params, **changes}
    return identified(checked(RunSpec, asked))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


@pytest.fixture
def no_model(monkeypatch):
    """Make loading a model fail."""

    def refuse(*_, **__):
        raise AssertionError("no model is needed")

    return lambda: monkeypatch.setattr("oddlm.experiments.work.load", refuse)


def test_every_problem_is_drawn_scored_and_stored(store):
    seen: list[Progress] = []
    records = run(store, spec(), watch=seen.append)
    assert [record.problem for record in records] == [p.id for p in TASK.load()]
    assert sum(one.problems for one in seen) == 12
    assert all(one.fresh for one in seen)
    whole = store.read(spec().id)
    assert list(whole.records) == records
    for record in records:
        assert [s.index for s in record.samples] == [0, 1, 2, 3]
        assert [s.correct for s in record.samples] == [
            TASK.score(None, s.text).correct for s in record.samples
        ]
        assert record.nfe == 6
        assert all(sample.logprob < 0 for sample in record.samples)
    right = [s.correct for record in records for s in record.samples]
    assert whole.summary.passed["pass@1"] == pytest.approx(sum(right) / len(right))
    assert whole.summary.passed["pass@4"] == pytest.approx(
        sum(any(record.correct) for record in records) / 12
    )
    assert 0 < whole.summary.passed["pass@1"] < whole.summary.passed["pass@4"]
    assert (whole.summary.problems, whole.summary.samples) == (12, 48)
    assert whole.complete


def test_a_stored_sample_is_what_its_seed_gives(store):
    record = run(store, spec(), limit=2)[1]
    again = oddlm.load("toy").generate(record.prompt, 4, params=spec().params, seed=record.seed)[0]
    assert [s.text for s in again] == [s.text for s in record.samples]


def test_order_and_batching_do_not_matter(store, tmp_path):
    one = run(store, spec())
    backwards = run(tmp_path / "b", spec(), TASK.load()[::-1], together=5)
    assert content(one) == content(backwards[::-1])


def test_a_larger_limit_adds_to_what_is_there(store, no_model):
    few = run(store, spec(), limit=3)
    assert store.head(spec().id).complete
    seen: list[Progress] = []
    many = run(store, spec(), limit=5, watch=seen.append)
    assert [(one.problems, one.fresh) for one in seen] == [(3, False), (1, True), (1, True)]
    assert many[:3] == few
    head = store.head(spec().id)
    assert (head.complete, head.problems, head.drawn, head.scored, head.summary.problems) == (
        True,
        5,
        5,
        5,
        5,
    )
    no_model()
    assert run(store, spec(), limit=4) == many[:4]
    assert store.head(spec().id).complete, "who asks for fewer takes nothing away"


def test_a_limit_is_no_part_of_a_run(store):
    from oddlm.experiments.grid import expand

    head = {"model": "toy", "task": "tests.own_task.TASK", "n": 2}
    (few,), (many,) = (
        make_plan(expand({**head, "limit": limit}, "grid", {})).runs for limit in (2, 7)
    )
    assert few.spec == many.spec
    assert (len(few.problems), len(many.problems)) == (2, 7)
    both = {**head, "task": [{"name": head["task"], "limit": limit} for limit in (2, 7, 4)]}
    (one,) = make_plan(expand(both, "grid", {})).runs
    assert len(one.problems) == 7


@pytest.mark.parametrize(
    ("together", "most_rows", "most"), [(1, None, 4), (3, None, 12), (1, 3, 3), (3, 3, 3)]
)
def test_the_network_sees_no_more_than_the_model_was_loaded_for(
    monkeypatch, together, most_rows, most
):
    seen: list[int] = []
    network = Toy.__call__

    def counted(self, tokens, start, prompt_lengths):
        seen.append(len(tokens))
        return network(self, tokens, start, prompt_lengths)

    monkeypatch.setattr(Toy, "__call__", counted)
    draw(oddlm.load("toy", max_batch=most_rows), spec(), TASK, TASK.load(limit=together))
    assert max(seen) == most


def test_what_is_stored_is_not_made_again(store, no_model):
    first = run(store, spec())
    no_model()
    seen: list[Progress] = []
    assert run(store, spec(), watch=seen.append) == first
    assert [(one.problems, one.fresh) for one in seen] == [(12, False)]
    assert len(store.read(spec().id).starts) == 2, "one that drew, and one that scored"


def test_drawing_and_scoring_apart_are_both_together(store, tmp_path, no_model):
    """Draw in one place, copy the run, and score it in another, where there is no model."""
    whole = run(tmp_path / "whole", spec())
    run(store, spec(), stages=("draw",), together=5)
    head = store.head(spec().id)
    assert (head.drawn, head.scored, head.complete, head.summary) == (12, 0, False, None)
    assert {sample.correct for record in store.records(spec().id) for sample in record.samples} == {
        None
    }
    shutil.copytree(store.folder, tmp_path / "elsewhere")
    no_model()
    there = Store(tmp_path / "elsewhere")
    plan = Plan((drawn_problems(there.head(spec().id)),))
    assert carry_out(plan, there, stages=("score",)).complete == 1
    assert content(there.read(spec().id).records) == content(whole)
    assert there.head(spec().id).complete
    assert (
        there.head(spec().id).summary.passed
        == Store(tmp_path / "whole").head(spec().id).summary.passed
    )


def test_a_mended_scorer_scores_what_was_drawn(store, monkeypatch, no_model):
    old = run(store, spec())
    wrong = replace(
        TASK, scorer_version=2, score=lambda problem, text: own_task.Score(False, None, "never")
    )
    monkeypatch.setattr(own_task, "TASK", wrong)
    no_model()
    plan = Plan((drawn_problems(store.head(spec(scorer_version=None).id[:8])),))
    (now,) = plan.runs
    assert now.spec.id != old_id(store)
    assert now.spec.draw_id == now.spec.id[:8] == old_id(store)[:8]
    assert carry_out(plan, store, stages=("score",)).complete == 1
    new = store.read(now.spec.id).records
    assert [[s.text for s in r.samples] for r in new] == [[s.text for s in r.samples] for r in old]
    assert {sample.correct for record in new for sample in record.samples} == {False}
    assert list(store.read(old_id(store)).records) == old, "nothing is overwritten"


def old_id(store: Store) -> str:
    return store.ids()[0]


def test_a_new_run_of_a_mended_scorer_draws_nothing_either(store, monkeypatch, no_model):
    run(store, spec())
    monkeypatch.setattr(own_task, "TASK", replace(TASK, scorer_version=2))
    no_model()
    assert len(run(store, spec())) == 12
    assert len(store.ids()) == 2


def test_an_error_in_scoring_keeps_what_was_done(store, monkeypatch):
    broken = replace(TASK, score=lambda problem, text: own_task.score_nine_in_ten(problem, text))
    monkeypatch.setattr(own_task, "TASK", broken)
    with pytest.raises(ValueError, match="no verdict on own/3"):
        run(store, spec())
    head = store.head(spec().id)
    assert (head.drawn, head.scored, head.summary) == (12, 11, None)
    (failure,) = store.failures(spec())
    assert (failure.problem, failure.stage) == ("own/3", "score")
    monkeypatch.setattr(own_task, "TASK", TASK)
    assert len(run(store, spec())) == 12
    assert store.head(spec().id).complete
    assert store.failures(spec()) == []


def test_scoring_overlaps_drawing(store, monkeypatch):
    """Scoring the first problem waits for the third to be drawn: without overlap, it would hang."""
    from threading import Event

    third = Event()
    network = own_task.prompt

    def shown(problem: Problem) -> str:
        if problem.id == "own/3":
            third.set()
        return network(problem)

    def patient(problem: Problem, text: str):
        assert third.wait(WAIT_S)
        return own_task.score(problem, text)

    monkeypatch.setattr(own_task, "TASK", replace(TASK, score=patient))
    problems = tuple(TASK.load(limit=5))
    plan = Plan((asked(spec(), problems),))
    monkeypatch.setattr("oddlm.experiments.stages.prompt_of", lambda task, problem: shown(problem))
    assert carry_out(plan, store).complete == 1


def test_a_model_that_does_not_load_leaves_nothing(tmp_path):
    lost = spec().model_copy(update={"model": "toi"})
    with pytest.raises(ValueError, match="unknown model 'toi'"):
        run(tmp_path / "runs", lost, TASK.load())
    assert list((tmp_path / "runs").iterdir()) == []


def test_problems_that_changed_are_not_mixed_in(store):
    run(store, spec(), limit=2)
    before = (store.folder / spec().id / "drawn.jsonl").read_bytes()
    for other in (Problem("own/0", "t1 t2", None), Problem("own/0", "t5 t9", "another target")):
        with pytest.raises(ValueError, match=r"drawn\.jsonl: .* problem 'own/0' "):
            run(store, spec(), [other])
    assert (store.folder / spec().id / "drawn.jsonl").read_bytes() == before


def test_a_task_that_changed_is_not_scored(store, monkeypatch):
    run(store, spec(), stages=("draw",))
    head = store.head(spec().id)
    for changed in (replace(TASK, version=2), replace(TASK, load=lambda: TASK.load()[1:])):
        monkeypatch.setattr(own_task, "TASK", changed)
        with pytest.raises(DamagedRunError) as told:
            drawn_problems(head)
        assert str(head.folder) in str(told.value)
        assert len(str(told.value).splitlines()) == 1
    assert store.head(spec().id).scored == 0


def test_data_that_changed_are_not_scored(store, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "t5", "target": "t6"}\n')
    own = spec(task=str(path), scorer="exact")
    run(store, own, stages=("draw",))
    moved = tmp_path / "moved.jsonl"
    path.rename(moved)
    assert len(drawn_problems(store.head(own.id), data=moved).problems) == 1, (
        "a file that was moved is the same"
    )
    moved.write_text('{"prompt": "t5", "target": "t7"}\n')
    with pytest.raises(DamagedRunError, match=r"spec\.json: .* data digest"):
        drawn_problems(store.head(own.id), data=moved)


def test_weights_that_changed_make_no_more_of_a_run(store):
    """A worker whose weights differ from those of the plan reports it and draws nothing."""
    with pytest.raises(ValueError, match=r"model 'toy' .* 0{64}"):
        run(store, spec(model_digest="0" * 64).model_copy(update={"model_digest": "0" * 64}))
    assert list(store.folder.iterdir()) == []


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
def test_problems_that_cannot_be_run(store, problems, message):
    with pytest.raises(ValueError, match=message):
        run(store, spec(), problems)


def test_without_a_task_nothing_is_scored(store):
    records = run(store, spec(task=None), TASK.load(limit=2))
    assert {sample.correct for record in records for sample in record.samples} == {None}
    assert all(record.diversity["distinct_texts"] > 1 for record in records)
    assert store.read(spec(task=None).id).summary.passed is None


def test_tokens_are_kept_where_asked(store):
    (record,) = run(store, spec(), limit=1, options=Options(keep_tokens=True))
    for sample in record.samples:
        assert len(sample.tokens) == len(sample.logprobs) == sample.size == 6
        assert sample.logprob == pytest.approx(sum(sample.logprobs[: sample.length]), abs=0.01)


def test_the_environment_says_what_ran():
    found = drawing_environment(oddlm.load("toy"))
    assert found["versions"]["oddlm"] == oddlm.__version__
    assert found["device"] == "cpu"
    assert found["backend"] is None
    for alpha, backend in ((0, "torch"), (4, "closed_form")):
        params = oddlm.SampleParams(alpha=alpha)
        assert drawing_environment(oddlm.load("toy"), params=params)["backend"] == backend
    head = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if head.returncode == 0:  # an unpacked release has no history
        assert found["git"]["oddlm"]["commit"] == head.stdout.strip()
    assert json.dumps(found)


def test_powers_of_two():
    assert [powers_of_two(n) for n in (1, 2, 6, 16)] == [
        [1],
        [1, 2],
        [1, 2, 4, 6],
        [1, 2, 4, 8, 16],
    ]


class Backwards:
    """A custom executor that runs the last batch first."""

    def __init__(self, options: Options) -> None:
        self.bench = Bench(options)

    def outcomes(self, take: Take) -> Generator[Outcome]:
        for stage in ("draw", "score"):
            batches = []
            while (batch := take(stage)) is not None:
                batches.append(batch)
            for batch in reversed(batches):
                yield self.bench.run(batch)

    def close(self) -> None:
        self.bench.close()


def backwards(options: Options, *, workers: int = 1) -> Backwards:
    return Backwards(options)


def test_an_executor_of_ones_own(store, tmp_path):
    found = find_executor("tests.experiments.test_run.backwards:workers=3", Options())
    with closing(found) as executor:
        assert run_plan(Plan((asked(spec()),)), store, executor).complete == 1
    assert stored(store.folder) == {
        spec().id: {one["problem"]: one for one in content(run(tmp_path / "b", spec()))}
    }
    first = next(iter(store.records(spec().id)))
    assert first.problem == "own/11"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slurm", "unknown executor 'slurm'; known: inline, local, ray"),
        ("local:workers", "NAME:key=value"),
        ("local:worker=2", "executor 'local' has no option 'worker'; options: workers, timeout"),
        ("local:workers=0", "workers must be .*, not 0"),
        ("local:workers=two", "workers must be .*, not 'two'"),
        ("inline:workers=2", "local:workers=2"),
    ],
)
def test_executors_that_there_are_not(text, message):
    with pytest.raises(ValueError, match=message):
        find_executor(text, Options())


def test_an_executor_serves_plan_after_plan(tmp_path):
    """The workers of a study keep their model from trial to trial."""
    pids = set()
    with closing(find_executor("local:workers=1", Options())) as executor:
        for seed in (0, 1):
            plan = Plan((asked(spec(seed=seed), limit=2),))
            assert run_plan(plan, Store(tmp_path), executor).complete == 1
            (worker,) = executor._crew.values()
            pids.add(worker.process.pid)
        assert len(pids) == 1
    assert worker.process.exitcode is not None


@pytest.mark.parametrize("name", ["inline", "local"])
def test_an_executor_outlives_a_plan_that_was_refused(tmp_path, name):
    """A study continues with its next trial if another process holds a run."""
    store, plan = Store(tmp_path), Plan((asked(spec(), limit=2), asked(spec(seed=1), limit=2)))
    with closing(find_executor(name, Options())) as executor:
        with store.open(spec(seed=1), 2), pytest.raises(RunHeldError):
            run_plan(plan, store, executor)
        assert run_plan(plan, store, executor).complete == 2


def start(
    store: Path, *more: str, hearing: bool = True, command: str = "eval"
) -> subprocess.Popen[str]:
    """Start a command. hearing: it reacts to Ctrl-C even if the caller ignores it."""
    words = [sys.executable, "-m", "oddlm", command, "tests.own_task.SLOW", "--model", "toy"]
    words += ["--n", "4", "--alpha", "16"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    begin = interruptible if hearing else subprocess.Popen
    return begin([*words, *more, "--store", str(store)], cwd=ROOT, env=ENV, text=True, **pipes)


lines = scored  # whole lines of all runs


@pytest.mark.parametrize(
    ("kills", "seeds"), [(3, "0"), pytest.param(20, "0,1,2", marks=pytest.mark.soak)]
)
def test_killed_at_random_moments_and_restarted(tmp_path, kills, seeds):
    """Two settings, 12 problems of about 0.2 s each; every kill comes up to 0.3 s after one."""
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
    first.send_signal(signal.SIGSTOP)  # stays in mid-run, however long the other takes
    try:
        second = start(tmp_path / "runs")
        _, complaint = second.communicate(timeout=WAIT_S)
    finally:
        first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=WAIT_S)
    assert first.returncode == 0, err
    assert second.returncode == 2
    assert f"is being written by process {first.pid} on" in complaint
    assert complaint.endswith("--store\n")
    assert [len(records) for records in stored(tmp_path / "runs").values()] == [12, 12]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_resumes(tmp_path):
    process = start(tmp_path / "runs")
    wait_until(lambda: lines(tmp_path / "runs") >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert err.startswith("oddlm: stopped; ")
    assert err.endswith("The same command resumes from there.\n")
    assert "Traceback" not in err
    kept = lines(tmp_path / "runs")
    assert 2 <= kept < 24
    before = {name: found for name, found in stored(tmp_path / "runs").items() if found}
    again = start(tmp_path / "runs")
    _, err = again.communicate(timeout=WAIT_S)
    assert again.returncode == 0, err
    after = stored(tmp_path / "runs")
    assert [len(records) for records in after.values()] == [12, 12]
    for name, found in before.items():
        for problem, record in found.items():
            if record["samples"][0]["correct"] is not None:
                assert after[name][problem] == record


def test_records_are_frozen():
    assert Record.model_config["frozen"]

"""Scoring overlaps drawing without changing a record, and a run says how busy its network was."""

import json
import re
import sys
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from threading import Event

import pytest
from typer.testing import CliRunner

from oddlm.cli import app
from oddlm.experiments import work
from oddlm.experiments.executors.inline import InlineExecutor
from oddlm.experiments.plan import Plan
from oddlm.experiments.run import ProblemError, Progress, run_plan
from oddlm.experiments.work import Batch, Bench, Options, Outcome, Take
from oddlm.models.toy import Toy
from oddlm.store import DamagedRunError, Head, Network, Store
from oddlm.tasks import Problem
from oddlm.text import percent

from .. import own_task
from ..own_task import TASK
from ..runs import TIMES, asked, carry_out
from ..waiting import WAIT_S, wait_until
from .test_run import spec

PROBLEMS = tuple(TASK.load(limit=8))


class OneByOne:
    """Draw a batch, score it, and only then draw the next."""

    def __init__(self) -> None:
        self.bench = Bench(Options())

    def outcomes(self, take: Take) -> Generator[Outcome]:
        while (batch := take("score") or take("draw")) is not None:
            yield self.bench.run(batch)

    def close(self) -> None:
        self.bench.close()


@pytest.fixture
def slow(monkeypatch):
    """Make drawing a problem and scoring it take about as long, mostly asleep."""
    network = Toy.__call__

    def slow_network(self, *given, **more):
        time.sleep(0.015)
        return network(self, *given, **more)

    def slow_score(problem: Problem, text: str):
        time.sleep(0.045)
        return own_task.score(problem, text)

    monkeypatch.setattr(Toy, "__call__", slow_network)
    monkeypatch.setattr(own_task, "TASK", replace(TASK, score=slow_score))


def lines(store: Store, name: str) -> list[dict]:
    """The lines of a file in their order, without times."""
    found = (store.folder / spec().id / name).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in found]


def test_a_slow_scorer_and_a_slow_network_overlap(slow, tmp_path):
    plan, walls, heads = Plan((asked(spec(), PROBLEMS),)), [], []
    stores = [Store(tmp_path / name) for name in ("overlapping", "one by one")]
    for store, executor in zip(stores, (InlineExecutor(Options()), OneByOne()), strict=True):
        with closing(executor):
            executor.bench.lm(spec())
            began = time.monotonic()
            result = run_plan(plan, store, executor)
            walls.append(time.monotonic() - began)
        assert result.complete == 1
        heads.append(store.head(spec().id))
        assert heads[-1].busy == pytest.approx(result.network.busy, abs=0.1)
    records = list(stores[0].records(spec().id))
    drawing = sum(record.seconds for record in records)
    assert walls[0] < 0.85 * (drawing + sum(record.score_seconds for record in records))
    assert walls[0] < 0.85 * walls[1]
    assert heads[1].busy < heads[0].busy <= 1
    for name in ("drawn.jsonl", "scores.jsonl"):
        assert lines(stores[0], name) == lines(stores[1], name)


def broken(problem: Problem, text: str):
    if problem.id == "own/3":
        raise RuntimeError("no verdict")
    return own_task.score(problem, text)


def test_a_failing_scorer_stops_the_plan_if_asked_to(slow, tmp_path, monkeypatch):
    monkeypatch.setattr(own_task, "TASK", replace(TASK, score=broken))
    plan, store = Plan((asked(spec(), TASK.load()),)), Store(tmp_path / "runs")
    with pytest.raises(ProblemError) as told:
        carry_out(plan, store, fail_fast=True)
    assert (told.value.problem, told.value.stage) == ("own/3", "score")
    assert "own/3" in str(told.value)
    head = store.head(spec().id)
    assert 4 <= head.drawn < 12
    assert 3 <= head.scored < head.drawn
    assert [failure.problem for failure in store.failures(spec())] == ["own/3"]
    monkeypatch.setattr(own_task, "TASK", TASK)
    assert carry_out(plan, store).complete == 1


def test_a_failure_is_told_before_the_rest_is_done(slow, tmp_path, monkeypatch):
    monkeypatch.setattr(own_task, "TASK", replace(TASK, score=broken))
    seen: list[Progress] = []
    carry_out(Plan((asked(spec(), PROBLEMS),)), tmp_path / "runs", watch=seen.append)
    told = [[failure.problem for failure in progress.failures] for progress in seen]
    assert ["own/3"] in told[:-1]


def test_what_is_scored_survives_ctrl_c(tmp_path, monkeypatch):
    scored: list[str] = []
    score, prompt_of = work.score, own_task.prompt

    def noted(judge, problem, drawn):
        found = score(judge, problem, drawn)
        scored.append(problem.id)
        return found

    def interrupted(task, problem: Problem) -> str:
        if problem.id == "own/2" and scored:
            wait_until(lambda: len(scored) == 2)
            time.sleep(0.2)  # until the thread has handed its verdicts over
            raise KeyboardInterrupt
        return prompt_of(problem)

    monkeypatch.setattr(work, "score", noted)
    monkeypatch.setattr("oddlm.experiments.stages.prompt_of", interrupted)
    store = Store(tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt):
        carry_out(Plan((asked(spec(), PROBLEMS),)), store)
    head = store.head(spec().id)
    assert (head.drawn, head.scored) == (2, 2)
    assert head.busy is not None


def test_a_scorer_that_lags_is_handed_a_bounded_number_of_batches(monkeypatch):
    monkeypatch.setattr(sys.modules[InlineExecutor.__module__], "MOST_HANDED", 2)
    may_score, taken = Event(), {"draw": 0, "score": 0}
    executor = InlineExecutor(Options())

    def work_on(batch: Batch) -> Outcome:
        if batch.stage == "score":
            assert may_score.wait(WAIT_S)
        return Outcome(batch.spec)

    def take(stage):
        if taken[stage] == {"draw": 9, "score": taken["draw"]}[stage]:
            return None
        taken[stage] += 1
        return Batch(spec(), (), () if stage == "score" else None)

    monkeypatch.setattr(executor.bench, "run", work_on)
    outcomes = executor.outcomes(take)
    for _ in range(9):
        next(outcomes)
    assert taken == {"draw": 9, "score": 2}
    may_score.set()
    assert len(list(outcomes)) == 9
    executor.close()


def test_the_commands_tell_the_share(tmp_path):
    store = ["--store", str(tmp_path / "runs")]
    words = ["--model", "toy", "--n", "2", "--limit", "2", "--length", "4", "--alpha", "0"]
    done = CliRunner().invoke(app, ["eval", "countdown", *words, *store])
    assert done.exit_code == 0, done.output
    (run,) = Store(tmp_path / "runs").ids()
    share = percent(Store(tmp_path / "runs").head(run).busy)
    assert 0 < float(re.search(r"busy ([0-9.]+) %", done.output)[1]) <= 100
    assert share in CliRunner().invoke(app, ["runs", *store]).output.split()


def test_the_share_of_a_run_is_the_mean_over_its_starts(tmp_path):
    one, two = ({"network": {"seconds": s, "busy": b}} for s, b in ((30, 1.0), (10, 0.6)))
    head = Head(tmp_path, spec(), 2, 2, 2, None, (one, {"stage": "score"}, two))
    assert head.busy == pytest.approx(0.9)
    assert replace(head, starts=({},)).busy is None


def test_a_share_that_is_none_is_a_damaged_run(tmp_path):
    store = Store(tmp_path / "runs")
    with store.open(spec(), 1) as writer:
        writer.start({"stage": "draw"})
        writer.busy(Network(seconds=2, busy=0.5))
        path = writer.folder / "environment.json"
        assert json.loads(path.read_text())["starts"][0]["network"] == {"seconds": 2, "busy": 0.5}
        assert store.exact_head(spec().id).busy == 0.5
        path.write_text(path.read_text().replace("0.5", "5.0"))
        with pytest.raises(DamagedRunError, match=r"environment\.json"):
            store.exact_head(spec().id)

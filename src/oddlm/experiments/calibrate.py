"""How long will a sweep take? A few of its groups are run and timed."""

import time
from collections import Counter
from dataclasses import replace
from typing import Any

from ..spec import RunSpec
from ..store import Store
from .run import Asked, Plan
from .work import Batch, Bench, Options

WITHIN_S = 60.0  # no further kind of run is timed after this


def estimate(plan: Plan, store: Store, options: Options, together: int) -> tuple[float, int]:
    """(seconds of one worker for what is left, groups that were timed).

    ValueError where a group cannot be run.
    """
    bench, done = Bench(options), plan.survey(store).done
    left: Counter[tuple[Any, ...]] = Counter()
    examples: dict[tuple[Any, ...], Asked] = {}
    for run in plan.runs:
        left[_kind(run.spec)] += len(run.problems) - done.get(run.spec.id, 0)
        examples.setdefault(_kind(run.spec), run)
    began, timed = time.monotonic(), 0
    seconds: dict[tuple[Any, ...], float] = {}  # of a group
    for kind, run in examples.items():
        if seconds and time.monotonic() - began > WITHIN_S:
            break
        batch = Batch(run.spec, run.problems[:together])
        if not seconds:
            _time(bench, batch)  # the first one loads and warms up
        seconds[kind] = _time(bench, batch) / len(batch.problems)
        timed += len(batch.problems)
    per_token = sum(seconds.values()) / sum(_tokens(examples[kind].spec) for kind in seconds)
    return sum(
        count * seconds.get(kind, per_token * _tokens(examples[kind].spec))
        for kind, count in left.items()
    ), timed


def _time(bench: Bench, batch: Batch) -> float:
    """Of drawing and scoring, one after the other: workers do both at once, so it is an upper
    bound.
    """
    began = time.perf_counter()
    drawn = _done(bench, batch)
    _done(bench, replace(batch, drawn=drawn))
    return time.perf_counter() - began


def _done(bench: Bench, batch: Batch) -> Any:
    outcome = bench.run(batch)
    for failure in outcome.failures:
        raise ValueError(f"run {batch.spec.id}, problem {failure.problem}: {failure.error}")
    return outcome.records


def _kind(spec: RunSpec) -> tuple[Any, ...]:
    """What the time of a group depends on."""
    params = spec.params
    shape = (spec.drawn, params.length, params.steps, repr(params.objective), params.cfg_scale)
    return (spec.model, spec.loading, spec.task, *shape)


def _tokens(spec: RunSpec) -> int:
    """Tokens that the network computes for a group."""
    return spec.drawn * spec.params.length * (spec.params.steps or spec.params.length)

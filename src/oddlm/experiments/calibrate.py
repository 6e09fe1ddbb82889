"""Estimate how long a sweep will take, by running and timing a few of its units."""

import time
from collections import Counter
from dataclasses import replace
from typing import Any

from ..spec import RunSpec
from ..store import Store
from .plan import Asked, Plan
from .work import Batch, Bench, Options

WITHIN_S = 60.0  # after this, no further kind of run is timed


def estimate(plan: Plan, store: Store, options: Options, together: int) -> tuple[float, int]:
    """Return the seconds that one worker needs for what is left, and how many units were timed.

    Raises ValueError if a unit cannot be run.
    """
    bench, done = Bench(options), plan.survey(store).done
    left: Counter[tuple[Any, ...]] = Counter()
    examples: dict[tuple[Any, ...], Asked] = {}
    for run in plan.runs:
        left[_kind(run.spec)] += len(run.problems) - done.get(run.spec.id, 0)
        examples.setdefault(_kind(run.spec), run)
    began, timed = time.monotonic(), 0
    seconds: dict[tuple[Any, ...], float] = {}  # per unit, by kind
    for kind, run in examples.items():
        if seconds and time.monotonic() - began > WITHIN_S:
            break
        batch = Batch(run.spec, run.problems[:together])
        if not seconds:
            _time(bench, batch)  # loads the model and warms up
        seconds[kind] = _time(bench, batch) / len(batch.problems)
        timed += len(batch.problems)
    per_token = sum(seconds.values()) / sum(_tokens(examples[kind].spec) for kind in seconds)
    return sum(
        count * seconds.get(kind, per_token * _tokens(examples[kind].spec))
        for kind, count in left.items()
    ), timed


def _time(bench: Bench, batch: Batch) -> float:
    """Time drawing and then scoring. Workers overlap the two, so this is an upper bound."""
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
    """Return everything that the time of a unit depends on."""
    params = spec.params
    shape = (spec.drawn, params.length, params.steps, repr(params.objective), params.cfg_scale)
    return (spec.model, spec.loading, spec.task, *shape)


def _tokens(spec: RunSpec) -> int:
    """Return the number of tokens that the network computes for a unit."""
    return spec.drawn * spec.params.length * (spec.params.steps or spec.params.length)

"""How long will a sweep take? A few of its groups are run and timed."""

import time
from collections import Counter
from typing import Any

from ..params import RunSpec
from ..store import Store
from .sweep import Plan
from .work import Batch, Bench, Options

WITHIN_S = 60.0  # no further kind of run is timed after this


def estimate(plan: Plan, store: Store, options: Options, together: int) -> tuple[float, int]:
    """(seconds of one worker for what is left, groups that were timed). ValueError where a group cannot be run."""
    bench, done = Bench(options), plan.survey(store).done
    left: Counter[tuple[Any, ...]] = Counter()
    examples: dict[tuple[Any, ...], RunSpec] = {}
    for spec in plan.specs:
        left[_kind(spec)] += len(plan.problems_of(spec)) - done.get(spec.id, 0)
        examples.setdefault(_kind(spec), spec)
    began, timed = time.monotonic(), 0
    seconds: dict[tuple[Any, ...], float] = {}  # of a group
    for kind, spec in examples.items():
        if seconds and time.monotonic() - began > WITHIN_S:
            break
        batch = Batch(spec, tuple(plan.problems_of(spec)[:together]))
        if not seconds:
            _time(bench, batch)  # the first one loads and warms up
        seconds[kind] = _time(bench, batch) / len(batch.problems)
        timed += len(batch.problems)
    per_token = sum(seconds.values()) / sum(_tokens(examples[kind]) for kind in seconds)
    return sum(count * seconds.get(kind, per_token * _tokens(examples[kind])) for kind, count in left.items()), timed


def _time(bench: Bench, batch: Batch) -> float:
    began = time.perf_counter()
    outcome = bench.run(batch)
    for failure in outcome.failures:
        raise ValueError(f"run {batch.spec.id}, problem {failure.problem}: {failure.error}")
    return time.perf_counter() - began


def _kind(spec: RunSpec) -> tuple[Any, ...]:
    """What the time of a group depends on."""
    params = spec.params
    return (
        spec.model,
        spec.loading,
        spec.task,
        spec.drawn,
        params.length,
        params.steps,
        repr(params.objective),
        params.guidance,
    )


def _tokens(spec: RunSpec) -> int:
    """Tokens that the network computes for a group."""
    return spec.drawn * spec.params.length * (spec.params.steps or spec.params.length)

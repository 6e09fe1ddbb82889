"""Settings beside their plain baseline. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from .. import metrics
from ..config import checked
from ..params import SampleParams
from ..spec import RunSpec
from ..store import Record

Done = tuple[RunSpec, Sequence[Record]]
Embed = Callable[[Sequence[str]], Any]  # n texts -> [n, d]


@dataclass(frozen=True, slots=True)
class Line:
    """One setting, over all its seeds."""

    params: SampleParams
    runs: tuple[str, ...]
    pass_1: tuple[
        float, float
    ]  # share of right samples: mean and standard error over seeds (nan with one seed)
    pass_n: tuple[float, float]  # share of problems with a right sample
    difference: (
        metrics.Interval | None
    )  # of Pass@n to plain sampling that is otherwise alike; None where it is plain
    diversity: Mapping[str, float | None]
    seconds: float


def grid(fixed: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[SampleParams]:
    """All combinations, each once, with the plain baseline of each before it."""
    found: dict[str, SampleParams] = {}
    for values in product(*axes.values()):
        params = checked(SampleParams, {**fixed, **dict(zip(axes, values, strict=True))})
        for chosen in (baseline(params), params):
            found.setdefault(_key(chosen), chosen.canonical())
    return list(found.values())


def baseline(params: SampleParams) -> SampleParams:
    """Plain sampling that is otherwise alike; a fork that goes with the push is none of it."""
    return params.with_settings({"alpha": 0.0}).canonical()


def unpushed(params: SampleParams) -> SampleParams:
    """The same without its push; a fork stays."""
    return params.model_copy(update={"alpha": 0.0, "fork": params.forks}).canonical()


def compare(
    done: Sequence[Done], *, beside: bool = False, embed: Embed | None = None
) -> list[Line]:
    """A line per setting. All runs have the same problems in the same order; every setting has
    every seed.

    beside: with the measures that compare texts with those of the plain baseline, or by `embed`
    (`metrics.BESIDE`), which are no part of a record.
    """
    settings: dict[str, list[Done]] = {}
    for spec, records in done:
        settings.setdefault(_key(spec.params), []).append((spec, records))
    lines = []
    for runs in settings.values():
        plain = settings.get(_key(baseline(runs[0][0].params)))
        lines.append(_line(runs, plain, told_beside(runs, plain, embed) if beside else []))
    return lines


def told_beside(
    runs: Sequence[Done], plain: Sequence[Done] | None, embed: Embed | None = None
) -> list[dict[str, float]]:
    """Of every problem of every run; plain runs have no baseline but themselves."""
    found = []
    others = (
        {}
        if plain is None or runs[0][0].params.plain
        else {spec.seed: records for spec, records in plain}
    )
    for spec, records in runs:
        texts = [_texts(record) for record in records]
        before = map(_texts, others[spec.seed]) if spec.seed in others else [None] * len(records)
        found += [
            metrics.diversity_beside(mine, plain=own, embed=embed)
            for mine, own in zip(texts, before, strict=True)
        ]
    return found


def _texts(record: Record) -> list[str]:
    return [sample.text for sample in record.samples]


def covered(done: Sequence[Done]) -> int:
    """How many problems some sample under some setting solves."""
    return int(
        metrics.coverage([[record.correct for record in records] for _, records in done]).sum()
    )


def as_data(line: Line) -> dict[str, Any]:
    """For JSON, which has no nan."""
    interval = line.difference
    return {
        "params": line.params.model_dump(mode="json", exclude={"seed"}),
        "runs": list(line.runs),
        "pass@1": dict(zip(("mean", "se"), map(_number, line.pass_1), strict=True)),
        "pass@n": dict(zip(("mean", "se"), map(_number, line.pass_n), strict=True)),
        "difference": interval
        and {name: _number(getattr(interval, name)) for name in ("difference", "low", "high")},
        "diversity": dict(line.diversity),
        "seconds": line.seconds,
    }


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


def pass_n(records: Sequence[Record]) -> list[float]:
    """For every problem: is one of its samples right?"""
    return [float(any(record.correct)) for record in records]


def _line(
    runs: Sequence[Done], plain: Sequence[Done] | None, beside: Sequence[Mapping[str, float]]
) -> Line:
    params = runs[0][0].params
    solved = np.array([pass_n(records) for _, records in runs])  # [seeds, problems]
    right = [float(np.mean([np.mean(record.correct) for record in records])) for _, records in runs]
    difference = None
    if plain is not None and not params.plain:
        before = np.array([pass_n(records) for _, records in plain])
        difference = metrics.paired_interval(solved.mean(axis=0), before.mean(axis=0))
    records = [record for _, some in runs for record in some]
    return Line(
        params=params,
        runs=tuple(spec.id for spec, _ in runs),
        pass_1=metrics.mean_se(right),
        pass_n=metrics.mean_se(solved.mean(axis=1)),
        difference=difference,
        diversity=_means([record.diversity for record in records]) | _means(beside),
        seconds=sum(record.seconds + record.score_seconds for record in records),
    )


def _means(measured: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    names = dict.fromkeys(name for measures in measured for name in measures)
    return {name: _mean([measures.get(name) for measures in measured]) for name in names}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _key(params: SampleParams) -> str:
    return params.canonical().model_dump_json()

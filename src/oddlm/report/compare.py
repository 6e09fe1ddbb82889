"""Compares settings with their plain baseline. Does not import torch."""

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
    """A setting, over all its seeds."""

    params: SampleParams
    runs: tuple[str, ...]
    # Means and standard errors over seeds; with one seed, the error is nan.
    pass_1: tuple[float, float]  # share of correct samples
    pass_n: tuple[float, float]  # share of problems with a correct sample
    difference: metrics.Interval | None  # in Pass@n from the plain baseline; None if plain
    diversity: Mapping[str, float | None]
    seconds: float


def grid(fixed: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[SampleParams]:
    """Return all combinations, each once and preceded by its plain baseline."""
    found: dict[str, SampleParams] = {}
    for values in product(*axes.values()):
        params = checked(SampleParams, {**fixed, **dict(zip(axes, values, strict=True))})
        for chosen in (baseline(params), params):
            found.setdefault(_key(chosen), chosen.canonical())
    return list(found.values())


def baseline(params: SampleParams) -> SampleParams:
    """Return plain sampling with the same other settings; an automatic fork is dropped, too."""
    return params.with_settings({"alpha": 0.0}).canonical()


def unpushed(params: SampleParams) -> SampleParams:
    """Return the same settings without repulsion; a fork is kept."""
    return params.model_copy(update={"alpha": 0.0, "fork": params.forks}).canonical()


def compare(
    done: Sequence[Done], *, beside: bool = False, embed: Embed | None = None
) -> list[Line]:
    """Return a line per setting.

    All runs must have the same problems in the same order, and every setting every seed.

    beside: include the measures that are not part of a record (`metrics.BESIDE`): those that
        compare texts with the plain baseline, or need `embed`.
    """
    settings: dict[str, list[Done]] = {}
    for spec, records in done:
        settings.setdefault(_key(spec.params), []).append((spec, records))
    lines = []
    for runs in settings.values():
        plain = settings.get(_key(baseline(runs[0][0].params)))
        lines.append(_line(runs, plain, measured_beside(runs, plain, embed) if beside else []))
    return lines


def measured_beside(
    runs: Sequence[Done], plain: Sequence[Done] | None, embed: Embed | None = None
) -> list[dict[str, float]]:
    """Return the measures of `metrics.BESIDE` for every problem of every run.

    Plain runs are not compared with a baseline.
    """
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
    """Return the number of problems solved by some sample of some setting."""
    return int(
        metrics.coverage([[record.correct for record in records] for _, records in done]).sum()
    )


def as_data(line: Line) -> dict[str, Any]:
    """Return a line as data for JSON, with None for nan."""
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
    """Return 1.0 for every problem with a correct sample, else 0.0."""
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

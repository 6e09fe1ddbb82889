"""Uncertainty: standard errors over seeds, confidence intervals of means and differences."""

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK = 1 << 22  # resampled values held at a time


class Interval(NamedTuple):
    """A mean or difference with its bounds; the bounds are nan if there is only one problem."""

    difference: float
    low: float
    high: float


def mean_se(values: ArrayLike) -> tuple[float, float]:
    """Return mean and standard error (with n - 1) of independent values, one per seed.

    The error of a single value is nan.
    """
    numbers = _numbers("values", values)
    with np.errstate(over="ignore"):
        error = numbers.std(ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else np.nan
    return float(numbers.mean()), float(error)


def paired_interval(
    a: ArrayLike, b: ArrayLike, *, seed: int = 0, resamples: int = 10_000, level: float = 0.95
) -> Interval:
    """Return mean(a) - mean(b) with its percentile bootstrap interval, paired by problem.

    a[i] and b[i] are values of the same problem i. The bootstrap resamples problems, for both
    settings together: problems are what differs from one benchmark to the next, and pairing removes
    their difficulty. With several seeds, give each problem's mean over them. Samples and seeds are
    not resampled separately: those of one problem share its difficulty, and their noise is already
    in the spread between problems. (Efron & Tibshirani 1993, chapters 8 and 13.)
    """
    first, second = _numbers("a", a), _numbers("b", b)
    if len(first) != len(second):
        raise ValueError(
            f"a and b must cover the same problems, but have {len(first)} and {len(second)} values"
        )
    return mean_intervals((first - second)[:, None], seed=seed, resamples=resamples, level=level)[0]


def mean_intervals(
    values: ArrayLike, *, seed: int = 0, resamples: int = 10_000, level: float = 0.95
) -> list[Interval]:
    """Return the mean of each column of [problems, m] with its percentile bootstrap interval.

    All columns share the resampling.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or not len(table) or not np.isfinite(table).all():
        raise ValueError(
            "values must be finite numbers of shape [problems, m], "
            f"not of shape {list(table.shape)} or with nan"
        )
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    centre = table.mean(axis=0)
    if len(table) == 1:
        return [Interval(float(mean), np.nan, np.nan) for mean in centre]
    means = _resampled_means(table, resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [
        Interval(float(a), float(b), float(c)) for a, b, c in zip(centre, low, high, strict=True)
    ]


def run_interval(
    groups: Sequence[ArrayLike], weights: Sequence[float], *, level: float = 0.95
) -> Interval:
    """Return the weighted sum of the groups' means with Welch's t interval (Satterthwaite 1946).

    This is for runs whose values per problem are not known. A group holds one value per independent
    run; weights 1 and -1 give a difference. The interval covers other seeds on the same problems,
    not other problems.
    """
    values = [_numbers(f"group {i}", group) for i, group in enumerate(groups)]
    centre = float(
        sum(weight * group.mean() for group, weight in zip(values, weights, strict=True))
    )
    if any(len(group) < 2 for group in values):
        return Interval(centre, np.nan, np.nan)
    with np.errstate(over="ignore"):
        variances = [
            weight**2 * float(group.var(ddof=1)) / len(group)
            for group, weight in zip(values, weights, strict=True)
        ]
    if not sum(variances):
        return Interval(centre, centre, centre)
    # The square of the sum must be finite, too.
    if not math.isfinite(sum(variances)) or sum(variances) > sys.float_info.max**0.5:
        return Interval(centre, np.nan, np.nan)
    degrees = sum(variances) ** 2 / sum(
        v**2 / (len(group) - 1) for v, group in zip(variances, values, strict=True)
    )
    half = student_quantile((1 + level) / 2, degrees) * math.sqrt(sum(variances))
    return Interval(centre, centre - half, centre + half)


def student_quantile(share: float, degrees: float) -> float:
    """Return the quantile of Student's t for a share from 0.5 to below 1.

    The substitution t = sqrt(d) tan(x) makes the density a power of a cosine.
    """
    if not 0.5 <= share < 1 or not degrees >= 1:
        raise ValueError(
            f"share must be from 0.5 to below 1 and degrees at least 1, not {share} and {degrees}"
        )
    angles = np.linspace(0.0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (degrees - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = float(np.interp(2 * (share - 0.5), area / area[-1], angles))
    return math.sqrt(degrees) * math.tan(angle)


def _resampled_means(
    values: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the means [resamples, m], computed in blocks that fit in memory.

    A mean is the number of times that its resample holds each problem, times the values.
    """
    size = len(values)
    step = max(1, BLOCK // size)
    means = []
    for done in range(0, resamples, step):
        rows = min(step, resamples - done)
        drawn = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)
        means.append(counts @ values / size)
    return np.concatenate(means)


def _numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a list of numbers") from error
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(
            f"{name} must be a list of at least one number, not of shape {list(numbers.shape)}"
        )
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} holds nan or infinity")
    return numbers

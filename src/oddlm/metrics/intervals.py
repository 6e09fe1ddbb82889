"""How sure a number is: mean and standard error over seeds, and the bootstrap interval of a difference."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK = 1 << 22  # resampled values held at a time


class Interval(NamedTuple):
    """A difference and the bounds that hold it; the bounds of one problem alone are nan."""

    difference: float
    low: float
    high: float


def mean_se(values: ArrayLike) -> tuple[float, float]:
    """Mean and standard error (with n - 1) of independent values, one per seed; the error of a single one is nan."""
    numbers = _numbers("values", values)
    error = numbers.std(ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else np.nan
    return float(numbers.mean()), float(error)


def paired_interval(a: ArrayLike, b: ArrayLike, *, seed: int = 0, resamples: int = 10_000, level: float = 0.95) -> Interval:
    """mean(a) - mean(b), with its percentile bootstrap interval. a[i] and b[i] are values of the same problem i.

    Problems are what is resampled, both settings together: they are what differs from one benchmark to the next, and pairing
    removes their difficulty. Where there are several seeds, give each problem's mean over them. Samples and seeds are not
    resampled by themselves: those of one problem share its difficulty, and their noise is in the spread between problems
    already. (Efron & Tibshirani 1993, chapters 8 and 13.)
    """
    first, second = _numbers("a", a), _numbers("b", b)
    if len(first) != len(second):
        raise ValueError(f"a and b must be of the same problems, but have {len(first)} and {len(second)} values")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    differences = first - second
    if len(differences) == 1:
        return Interval(float(differences[0]), np.nan, np.nan)
    means = _resampled_means(differences, resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(differences.mean()), float(low), float(high))


def _resampled_means(values: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """[resamples], in blocks that fit in memory."""
    size = len(values)
    step = max(1, BLOCK // size)
    blocks = [min(step, resamples - done) for done in range(0, resamples, step)]
    return np.concatenate([values[rng.integers(size, size=(rows, size))].mean(axis=1) for rows in blocks])


def _numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a list of numbers") from error
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"{name} must be a list of at least one number, not of shape {list(numbers.shape)}")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} holds nan or infinity")
    return numbers

"""How many problems a model may solve if its score is the published one."""

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

LEVEL = 0.99
NOTICED = 0.95


class Range(NamedTuple):
    """The numbers of solved problems that agree with a score."""

    low: int
    high: int
    problems: int

    @property
    def noticed(self) -> float:
        """The highest share of solved problems that falls below the range in 95 of 100 runs."""
        return max(
            (i / 1000 for i in range(1001) if below(self.low, self.problems, i / 1000) >= NOTICED),
            default=0.0,
        )


def score_range(
    scores: Sequence[float], problems: int, *, tolerance: float = 0.0, level: float = LEVEL
) -> Range:
    """Return the central binomial interval around published scores.

    scores: per cent; the interval covers all of them.
    tolerance: points by which the score here may differ from them besides chance.
    """
    lowest = max(0.0, min(scores) - tolerance) / 100
    highest = min(100.0, max(scores) + tolerance) / 100
    tail = (1 - level) / 2
    low = max(k for k in range(problems + 1) if below(k, problems, lowest) <= tail)
    high = min(
        k for k in range(problems + 1) if 1 - below(k + 1, problems, highest) <= tail + 1e-12
    )
    return Range(low, high, problems)


def below(count: int, problems: int, share: float) -> float:
    """Return the probability of fewer than `count` successes."""
    return sum(
        comb(problems, k) * share**k * (1 - share) ** (problems - k)
        for k in range(min(count, problems + 1))
    )

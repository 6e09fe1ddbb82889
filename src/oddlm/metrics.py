"""What a batch of answers is worth: Pass@k, intervals, diversity."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

METRICS = {"distinct_texts": "different texts", "correct_different": "different texts that are right"}


@dataclass(frozen=True, slots=True)
class Interval:
    difference: float
    low: float
    high: float


def summarise(correct: Any, ks: Sequence[int]) -> dict[str, float]:
    table = np.asarray(correct, dtype=bool)
    first = {f"pass@{k}": float(table[:, :k].any(axis=1).mean()) for k in ks if k > 1}
    return {"pass@1": float(table.mean()), **first}


def paired_interval(a: Any, b: Any, *, seed: int = 0, resamples: int = 10_000, level: float = 0.95) -> Interval:
    d = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    random = np.random.default_rng(seed)
    means = [d[random.integers(0, len(d), len(d))].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(d.mean()), float(low), float(high))


def mean_se(values: Any) -> tuple[float, float]:
    x = np.asarray(values, dtype=float)
    return float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan")


def batch_diversity(
    texts: Sequence[str],
    tokens: Sequence[Sequence[int]],
    correct: Sequence[bool],
    *,
    code: bool = False,
    embed: Callable[[Sequence[str]], Any] | None = None,
    programs: Sequence[str | None] | None = None,
    end_ids: Collection[int] = (),
) -> dict[str, float]:
    right = {t for t, c in zip(texts, correct, strict=True) if c}
    return {"distinct_texts": float(len(set(texts))), "correct_different": float(len(right))}

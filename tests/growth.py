"""How the time of a function grows with its input: no clock time is asserted, only a ratio taken in one run."""

import time
from collections.abc import Callable
from typing import Any

TIMES = 16  # the larger input over the smaller one
LINEAR = 64.0  # a quadratic function takes 256 times as long


def growth(function: Callable[[Any], Any], make: Callable[[int], Any], size: int, repeats: int = 5) -> float:
    """Time on make(16 * size) over time on make(size), the best of several turns each."""
    small, large = make(size), make(TIMES * size)
    best = {}
    for _ in range(repeats):
        for name, value in (("small", small), ("large", large)):
            start = time.perf_counter()
            function(value)
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
    return best["large"] / best["small"]

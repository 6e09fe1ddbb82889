"""How the time that something takes grows with its input. A test on seconds would be a test of the machine."""

import time
from collections.abc import Callable
from typing import Any

LINEAR = 3.0  # for twice the input: 2 where time grows in proportion, 4 where it grows with the square
QUADRATIC = 6.0  # 4, against 8 where it grows with the cube


def doubling(work: Callable[[Any], Any], make: Callable[[int], Any], size: int) -> float:
    """How many times as long the work takes on twice the input, by the time that this thread computes; the best of five."""
    seconds = []
    for given in (make(size), make(2 * size)):
        best = float("inf")
        for _ in range(5):
            began = time.thread_time()
            work(given)
            best = min(best, time.thread_time() - began)
        seconds.append(best)
    return seconds[1] / seconds[0]

"""How the time that something takes grows with its input.

A test on seconds would be a test of the machine.
"""

import time
from collections.abc import Callable
from typing import Any

LEAST_S = 0.002  # for the clock to be believed
# for 16 times the input: 1 where time grows in proportion, 16 where it grows with the square
LINEAR = 5.0
QUADRATIC = (
    24.0  # for 8 times the input: 8 where it grows with the square, 64 where it grows with the cube
)


def growth(
    work: Callable[[Any], Any],
    make: Callable[[int], Any],
    size: int,
    times: int = 16,
    repeats: int = 3,
) -> float:
    """How many times as long the work takes for each part of an input that is so many times as
    large.
    """
    small, large = (_seconds(work, make(one), repeats) for one in (size, times * size))
    return large / small / times


def _seconds(work: Callable[[Any], Any], given: Any, repeats: int) -> float:
    """The time that this thread computes, which other processes do not lengthen; the best of
    several turns.
    """
    rounds, best = 1, 0.0
    while best < LEAST_S:
        best = min(_together(work, given, rounds) for _ in range(repeats))
        rounds *= 4
    return best / (rounds // 4)


def _together(work: Callable[[Any], Any], given: Any, rounds: int) -> float:
    began = time.thread_time()
    for _ in range(rounds):
        work(given)
    return time.thread_time() - began

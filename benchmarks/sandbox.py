"""HumanEval programs per second in the sandbox, and the share of process start-up.

    python benchmarks/sandbox.py [--workers 2] [--rounds 3]

Scores the canonical solutions on several threads, and then as many empty programs (one function,
one call), whose only cost is the start and end of their two processes.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from oddlm.sandbox import run_python
from oddlm.tasks.base import Problem
from oddlm.tasks.humaneval import TASK


def canonical(problem: Problem) -> bool:
    return TASK.score(problem, problem.target.canonical_solution).correct


def empty(_: Problem) -> bool:
    return run_python("def f(): return 1", "assert f() == 1", functions=["f"]).passed


def per_second(work: Callable[[Any], bool], items: Sequence[Any], workers: int) -> float:
    with ThreadPoolExecutor(workers) as pool:
        started = time.perf_counter()
        passed = list(pool.map(work, items))
        seconds = time.perf_counter() - started
    if not all(passed):
        raise SystemExit(f"{passed.count(False)} programs failed; the figure would mean nothing")
    return len(items) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    problems = TASK.load()
    rates = [
        [per_second(work, problems, options.workers) for work in (canonical, empty)]
        for _ in range(options.rounds)
    ]
    solutions, starts = (median(column) for column in zip(*rates, strict=True))
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {options.workers} workers, "
        f"median of {options.rounds} rounds"
    )
    print(f"{'programs':24} {'per second':>10} {'ms each':>8}")
    for name, rate in (("canonical solutions", solutions), ("empty programs", starts)):
        print(f"{name:24} {rate:10.1f} {1000 * options.workers / rate:8.1f}")
    print(f"process start is {solutions / starts:.0%} of the time")


if __name__ == "__main__":
    main()

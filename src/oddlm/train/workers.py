"""Work on the CPU, shared out to processes."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Part = TypeVar("Part")


def spread(
    work: Callable[[Job], Part], jobs: Sequence[Job], workers: int | None = None
) -> list[Part]:
    """Return the parts that the jobs make, in order, made by processes: one per core by default.

    One worker is this process itself.
    """
    workers = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    if workers <= 1:
        return [work(job) for job in jobs]
    # A fork of this process would copy the locks of its threads.
    fresh = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, fresh) as pool:
        return list(pool.map(work, jobs))

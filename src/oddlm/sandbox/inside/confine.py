"""Limits that a process sets on itself before it runs foreign code; it cannot raise them again."""

import os
import resource
import select


def confine(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    for name, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (limit, limit))


def leave_if_alone(output: int) -> None:
    """Exit if nobody outside reads this pipe any more.

    Bubblewrap asks the kernel to kill it with its parent. A parent that was killed before
    bubblewrap could ask has left us alone. (If it is killed while bubblewrap's two processes
    synchronise, the inner one sleeps forever, before any code of ours has started.)
    """
    poll = select.poll()
    poll.register(output, 0)  # poll always reports that there is no reader
    if poll.poll(0):
        os._exit(1)

"""Limits a process puts on itself before it runs anything foreign; they cannot be raised again."""

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


def leave_if_alone(told: int) -> None:
    """End where nobody outside reads what is told any more.

    Bubblewrap asks the kernel to end it with its parent; a parent that was killed before bubblewrap
    could ask left us alone. (One that is killed while bubblewrap's two processes meet leaves the
    inner asleep for good: nothing of ours has begun.)
    """
    poll = select.poll()
    poll.register(told, 0)  # that there is no reader is reported unasked
    if poll.poll(0):
        os._exit(1)

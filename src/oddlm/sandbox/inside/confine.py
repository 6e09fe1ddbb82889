"""Limits a process puts on itself before it runs anything foreign; they cannot be raised again."""

import resource


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

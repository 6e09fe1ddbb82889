"""Executors run batches: in this process, in local processes, on a Ray cluster, or on your own.

A registered executor is a function that takes `Options` and returns an `Executor`. Its keyword-only
arguments are its options, as in `local:workers=4,timeout=60`. Others are named by a dotted path.
"""

import math
from collections.abc import Callable
from typing import Any

from ...config import parse_options
from ...registry import Registry
from ..work import Executor, Options

EXECUTORS: Registry[Callable[[Options], Executor]] = Registry("executor")


@EXECUTORS.register
def inline(options: Options, *, workers: int = 1) -> Executor:
    """Run in this process, which draws while a thread scores."""
    from .inline import InlineExecutor

    if workers != 1:
        raise ValueError(
            f"executor 'inline' runs in this process and cannot have {workers!r} workers: "
            f"use local:workers={workers}"
        )
    return InlineExecutor(options)


@EXECUTORS.register
def local(options: Options, *, workers: int = 1, timeout: float | None = None) -> Executor:
    """Run in processes on this machine.

    timeout: seconds after which a worker that has not answered a batch is replaced.
    """
    from .local import LocalExecutor

    return LocalExecutor(options, _count(workers), _seconds(timeout))


@EXECUTORS.register
def ray(
    options: Options,
    *,
    workers: int | None = None,
    address: str = "auto",
    timeout: float | None = None,
) -> Executor:
    """Run in actors of a Ray cluster, by default one per GPU, or per CPU if there are no GPUs."""
    from .ray import RayExecutor

    return RayExecutor(
        options, None if workers is None else _count(workers), str(address), _seconds(timeout)
    )


def _count(workers: int) -> int:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"workers must be an integer of at least 1, not {workers!r}")
    return workers


def _seconds(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
    return float(timeout)


def find_executor(text: str, options: Options, **more: Any) -> Executor:
    """Create the executor `NAME` or `NAME:key=value,...`.

    more: options that were given in another way, such as on the command line.
    """
    name, _, rest = text.partition(":")
    given = parse_options(rest, "an executor as NAME or NAME:key=value,...")
    for key in given.keys() & more.keys():
        raise ValueError(f"{key} is given twice: in {text!r} and as --{key}")
    make = EXECUTORS.build({"name": name, **given, **more})
    try:
        executor = make(options)
    except Exception as error:
        if isinstance(error, ValueError):
            raise
        raise ValueError(
            f"executor {name!r} cannot be used: {type(error).__name__}: {error}"
        ) from error
    methods = ("outcomes", "close")
    if missing := [m for m in methods if not callable(getattr(executor, m, None))]:
        raise ValueError(
            f"executor {name!r} returned {executor!r}, which has no {' and no '.join(missing)}"
        )
    return executor

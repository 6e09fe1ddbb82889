"""Where batches are run: in this process, in processes of this machine, on a Ray cluster, or
elsewhere by a dotted path.

An executor is a function of `Options` whose keyword-only arguments are its own, so that
`local:workers=4,timeout=60` names one.
"""

import math
from collections.abc import Callable
from typing import Any

from ...config import json_or_text
from ...registry import Registry
from ..work import Executor, Options

EXECUTORS: Registry[Callable[[Options], Executor]] = Registry("executor")


@EXECUTORS.register
def inline(options: Options, *, workers: int = 1) -> Executor:
    """This process: draws, and scores in a thread beside."""
    from .inline import InlineExecutor

    if workers != 1:
        raise ValueError(
            f"the executor 'inline' is one worker, this process, not {workers}: use local:workers={workers}"
        )
    return InlineExecutor(options)


@EXECUTORS.register
def local(options: Options, *, workers: int = 1, timeout: float | None = None) -> Executor:
    """Processes of this machine. timeout: seconds for a worker to answer a batch before it is
    replaced.
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
    """Actors of a Ray cluster; by default one per GPU, or per CPU where there are none."""
    from .ray import RayExecutor

    return RayExecutor(
        options, None if workers is None else _count(workers), str(address), _seconds(timeout)
    )


def _count(workers: int) -> int:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"workers must be a whole number from 1, not {workers!r}")
    return workers


def _seconds(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not 0 < timeout < math.inf
    ):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    return float(timeout)


def find_executor(text: str, options: Options, **more: Any) -> Executor:
    """`NAME` or `NAME:key=value,...`; more: options that have another way to be given."""
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    for pair in rest.split(",") if rest else ():
        key, equals, value = pair.partition("=")
        if not key.strip() or not equals:
            raise ValueError(f"an executor is NAME or NAME:key=value,key=value, not {text!r}")
        if key.strip() in given:
            raise ValueError(f"{key.strip()} is given twice in {text!r}")
        given[key.strip()] = json_or_text(value)
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
    if missing := [
        method for method in ("outcomes", "close") if not callable(getattr(executor, method, None))
    ]:
        raise ValueError(
            f"executor {name!r} gives {executor!r}, which has no {' and no '.join(missing)}"
        )
    return executor

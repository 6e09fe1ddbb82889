"""Ctrl-C where whoever runs the tests ignores it (`nohup make test &`), which is inherited."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interruptible(command: list[str], **options: Any) -> "Popen[str]":
    """A process that hears Ctrl-C."""
    with hearing_ctrl_c():
        return Popen(command, **options)

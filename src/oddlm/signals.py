"""SIGTERM handled like Ctrl-C.

`timeout`, systemd and Kubernetes end processes with it, and Python's default runs no cleanup.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@dataclass
class Ending:
    """A signal handler that raises Terminated once; later signals do not disturb the cleanup."""

    told: bool = False  # whether the signal was received

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if not self.told:
            self.told = True
            raise Terminated


@contextmanager
def unwinding() -> Iterator[Ending]:
    """Let SIGTERM unwind the body as Ctrl-C does, in the main thread.

    If the signal is ignored or already has a handler, nothing is changed.
    """
    ending = Ending()
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield ending
        return
    signal.signal(signal.SIGTERM, ending)
    try:
        yield ending
    finally:
        if ending.told:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the process has ended
        else:
            leave_sigterm()


@contextmanager
def deferring() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM instead of acting on them; act on the first one at the end.

    Yields the signals received so far. Outside the main thread nothing is changed.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {
        number: signal.signal(number, lambda given, _: received.append(given))
        for number in numbers
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


def leave_sigterm() -> None:
    """Restore the default handler, for code that handles SIGTERM itself."""
    if isinstance(signal.getsignal(signal.SIGTERM), Ending):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

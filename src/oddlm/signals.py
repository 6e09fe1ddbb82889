"""SIGTERM as Ctrl-C: `timeout`, systemd and Kubernetes end processes by it, and Python alone would
run nothing more then.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process was told to end."""


@dataclass
class Ending:
    """Raises Terminated when the signal comes; a second one does not keep what is being ended from
    ending.
    """

    told: bool = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if not self.told:
            self.told = True
            raise Terminated


@contextmanager
def unwinding() -> Iterator[Ending]:
    """SIGTERM unwinds what runs inside, as Ctrl-C does, where this is the main thread.

    Who starts us with the signal ignored, or has a handler of their own, is left alone.
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


def leave_sigterm() -> None:
    """To whoever has a way of their own to end."""
    if isinstance(signal.getsignal(signal.SIGTERM), Ending):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

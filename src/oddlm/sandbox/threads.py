"""Threads that run sandboxes.

Whoever ends the threads ends what they run, instead of waiting for verdicts.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol


class Endable(Protocol):
    def end(self) -> None: ...


class Group:
    """Sandboxes that are ended together."""

    def __init__(self) -> None:
        self.stopped = False
        self._running: set[Endable] = set()
        self._lock = threading.Lock()

    def enter(self, one: Endable) -> None:
        with self._lock:
            self._running.add(one)
            stopped = self.stopped
        if stopped:  # before it was known here
            one.end()

    def leave(self, one: Endable) -> None:
        with self._lock:
            self._running.discard(one)

    def stop(self) -> None:
        """Kill all that run; none will start any more."""
        with self._lock:
            self.stopped = True
            running = list(self._running)
        for one in running:
            one.end()


_everybody = Group()  # of threads that belong to no pool; nobody stops it
_local = threading.local()


def group() -> Group:
    """The group of the calling thread."""
    found: Group = getattr(_local, "group", _everybody)
    return found


def _join(group: Group) -> None:
    _local.group = group


class ScoringThreads(ThreadPoolExecutor):
    """A pool whose sandboxes are killed when its `with` block is left by an exception (Ctrl-C,
    say), or by stop().
    """

    def __init__(self, workers: int, name: str = "oddlm-score") -> None:
        self._group = Group()
        super().__init__(workers, name, initializer=_join, initargs=(self._group,))

    def stop(self) -> None:
        """Kill what runs, forget what waits, and return when all threads have ended."""
        self.shutdown(wait=False, cancel_futures=True)
        self._group.stop()
        self.shutdown()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if kind is not None:
            self.stop()
        return super().__exit__(kind, error, trace)

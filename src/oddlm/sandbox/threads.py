"""Threads that run sandboxes.

Stopping the threads kills the sandboxes that they run, instead of waiting for verdicts.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol


class Endable(Protocol):
    def end(self) -> None: ...


class Group:
    """Sandboxes that are stopped together."""

    def __init__(self) -> None:
        self.stopped = False
        self._running: set[Endable] = set()
        self._lock = threading.Lock()

    def enter(self, sandbox: Endable) -> None:
        with self._lock:
            self._running.add(sandbox)
            stopped = self.stopped
        if stopped:  # before the sandbox was registered
            sandbox.end()

    def leave(self, sandbox: Endable) -> None:
        with self._lock:
            self._running.discard(sandbox)

    def stop(self) -> None:
        """Kill all running sandboxes; no more will start."""
        with self._lock:
            self.stopped = True
            running = list(self._running)
        for sandbox in running:
            sandbox.end()


_no_pool = Group()  # of threads that belong to no pool; it is never stopped
_local = threading.local()


def group() -> Group:
    """Return the group of the calling thread."""
    found: Group = getattr(_local, "group", _no_pool)
    return found


def _join(group: Group) -> None:
    _local.group = group


class ScoringThreads(ThreadPoolExecutor):
    """A thread pool whose sandboxes can be killed.

    That happens if an exception (such as Ctrl-C) leaves its `with` block, or on stop().
    """

    def __init__(self, workers: int, name: str = "oddlm-score") -> None:
        self._group = Group()
        super().__init__(workers, name, initializer=_join, initargs=(self._group,))

    def stop(self) -> None:
        """Kill the running sandboxes, drop the waiting work, and return when all threads ended."""
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

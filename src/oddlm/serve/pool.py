"""What all ways to share the network have in common: threads, a clock, and what is asked."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.model import ModelInfo, Query, Session
from ..models.wrappers import ClassifierFree
from .sizes import Sizes


@dataclass(frozen=True, slots=True)
class Ask:
    """A request's query to the network, and the function that takes the logits."""

    query: Query
    take: Callable[[Tensor], None]
    cfg: ClassifierFree | None = None
    sessions: tuple[Session, ...] = ()  # of a model that keeps state between the steps of a run

    @property
    def queries(self) -> tuple[Query, ...]:
        if self.cfg is None:
            return (self.query,)
        return self.query, self.cfg.unconditional(self.query)


class Clock:
    """Measures how long the network computes; on a GPU with CUDA events, without synchronizing."""

    def __init__(self, device: torch.device) -> None:
        self._cuda, self._lock, self._total = device.type == "cuda", threading.Lock(), 0.0
        self._open: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._cuda:
            began = time.perf_counter()
            try:
                yield
            finally:
                with self._lock:
                    self._total += time.perf_counter() - began
            return
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        yield
        last.record()
        with self._lock:
            self._open.append((first, last))
            self._settle()

    @property
    def seconds(self) -> float:
        with self._lock:
            self._settle()
            return self._total

    def _settle(self) -> None:
        while self._open and self._open[0][1].query():
            first, last = self._open.popleft()
            self._total += first.elapsed_time(last) / 1e3


class Passes:
    """Evaluates the network for many requests, in `workers` threads.

    The requests take their steps in these threads, too.
    """

    def __init__(self, info: ModelInfo, workers: int) -> None:
        self.info, self.workers = info, workers
        self.count = 0  # passes for requests
        self.sizes: Sizes | None = None  # of its passes, if several requests can share one
        self._clock = Clock(info.device)
        # Without set_num_threads, a new thread computes its first products with all CPU threads.
        self._pool = ThreadPoolExecutor(
            workers, "oddlm-pass", torch.set_num_threads, (torch.get_num_threads(),)
        )

    @property
    def busy(self) -> float:
        """Seconds during which the network computed, averaged over the workers."""
        return self._clock.seconds / self.workers

    @property
    def untried(self) -> bool:
        """Whether a size of passes remains to be tested."""
        return self.sizes is not None and self.sizes.untried

    def sessions(self, model: Any, first: Query) -> tuple[Session, ...]:  # noqa: ARG002
        """Return what a request with this first query keeps between its steps."""
        return ()

    def __call__(self, asks: Sequence[Ask]) -> list[Exception | None]:
        """Give each request its logits; return an error for each that failed, else None."""
        return [one.result() for one in self._begin(asks)]

    def _begin(self, asks: Sequence[Ask]) -> "list[Future[Exception | None]]":
        raise NotImplementedError

    def close(self) -> None:
        self._pool.shutdown()

    @torch.no_grad()
    def _answer(self, ask: Ask, logits: Callable[[], Tensor]) -> Exception | None:
        """Give a request its logits; return its error, which must not affect other requests."""
        try:
            ask.take(logits())
        except Exception as error:
            return error
        return None

"""The engine: one thread, in which all running requests take their steps together and share the network.

Every request is an ordinary `LM.generate` in a greenlet of its own. Where it calls the network, it is put aside until all
others have come to the same point; calls of one shape then share a pass. Requests begin and end between passes.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor

from ..generate import LM, Samples
from ..models.wrappers import Wrapper
from ..params import SampleParams
from ..types import Observer
from .passes import SIZES, Call, SharedPasses, widen

UNREAD = 16  # a request whose client is so many messages behind takes no further step


class QueueFullError(Exception):
    """As many requests wait as may."""


class ClosedError(Exception):
    """The engine takes no more requests."""


class CancelledError(Exception):
    """Nobody waits for this request any longer."""


class TimedOutError(Exception):
    """The request took longer than it may."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last message of a request: its samples by prompt, or what went wrong."""

    samples: list[Samples] | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Work:
    """What is to be generated. `watch` makes messages out of steps, in the engine's thread."""

    prompts: Sequence[Sequence[int]]  # token ids
    n: int
    params: SampleParams
    watch: Callable[[Callable[[Any], None]], Observer] | None = None

    @property
    def rows(self) -> int:
        return self.n * len(self.prompts)


@dataclass(eq=False)
class Job:
    """A request on its way through the engine. Its messages arrive in the event loop that submitted it."""

    work: Work
    engine: "Engine"
    loop: asyncio.AbstractEventLoop
    inbox: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    stop: Exception | None = None  # why it goes no further
    timer: asyncio.TimerHandle | None = None
    call: Call | None = None  # what it waits for
    task: greenlet | None = None
    sent: int = 0  # written by the engine alone
    read: int = 0  # written by the event loop alone

    @property
    def blocked(self) -> bool:
        return self.sent - self.read >= UNREAD and self.stop is None

    async def receive(self) -> Any:
        """The next message; the last one is a Finished."""
        message = await self.inbox.get()
        self.read += 1
        self.engine.wake()
        return message

    def cancel(self, why: Exception | None = None) -> None:
        """Frees its rows before the next pass; nothing happens where it has ended."""
        self.stop = self.stop or why or CancelledError()
        if self.timer is not None:
            self.timer.cancel()
        self.engine.wake()

    def send(self, message: Any) -> None:
        self.sent += 1
        try:
            self.loop.call_soon_threadsafe(self.inbox.put_nowait, message)
        except RuntimeError:  # the event loop is closed: nobody reads any more
            self.stop = CancelledError()


class _Door(Wrapper):
    """The model as a request sees it: its calls go to the engine."""

    nudges = False  # nor could the nudge of one request go along
    session = None  # what a caching model keeps of one request is of no use in a pass with others

    def __init__(self, engine: "Engine") -> None:
        super().__init__(engine.lm.model)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        parent = getcurrent().parent
        assert parent is not None
        logits: Tensor = parent.switch(Call(tokens, start, prompt_lengths))
        return logits[:, -(tokens.shape[1] - start) :]


class Engine:
    """`submit` from any event loop; messages come back to it."""

    def __init__(
        self,
        lm: LM,
        *,
        max_rows: int = 64,
        max_queue: int = 64,
        timeout_s: float = 120.0,
        sizes: Sequence[int] = SIZES,
        workers: int = 1,
    ) -> None:
        self.lm, self.max_rows, self.max_queue, self.timeout_s = lm, max_rows, max_queue, timeout_s
        self.network = SharedPasses(lm.model, sizes, workers)
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="oddlm-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more; what runs or waits ends with a ClosedError before the next pass."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self) -> None:
        """Stop, and wait until all has ended."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def rows(self) -> int:
        """In flight."""
        return sum(job.work.rows for job in tuple(self._running))

    def submit(self, work: Work) -> Job:
        """Queue a request; called inside an event loop."""
        if not 0 < work.rows <= self.max_rows:
            raise ValueError(f"a request has 1 to {self.max_rows} samples, not {work.rows}")
        job = Job(work, self, asyncio.get_running_loop())
        with self._changed:
            if self._closing or not self.alive:
                raise ClosedError
            if len(self._queue) >= self.max_queue:
                raise QueueFullError
            self._queue.append(job)
            self._changed.notify()
        job.timer = job.loop.call_later(self.timeout_s, job.cancel, TimedOutError())
        return job

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    @torch.no_grad()  # for all alike: each request's own no_grad then restores what it found, in whatever order they end
    def _run(self) -> None:
        try:
            while self._gather():
                for job in list(self._running):
                    if job.stop is not None:
                        self._resume(job, job.stop)
                self._step([job for job in self._running if not job.blocked])
        finally:
            self._end_all()

    def _gather(self) -> bool:
        """Wait until there is something to do, and let requests in; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._ready())
            if self._closing:
                return False
            stopped = [job for job in self._queue if job.stop is not None]
            self._queue = deque(job for job in self._queue if job.stop is None)
            fresh, free = [], self.max_rows - self.rows
            while self._queue and self._queue[0].work.rows <= free:
                fresh.append(self._queue.popleft())
                free -= fresh[-1].work.rows
            self._running += fresh
        for job in stopped:
            job.send(Finished(error=job.stop))
        for job in fresh:
            self._begin(job)
        return True

    def _ready(self) -> bool:
        if any(not job.blocked for job in self._running) or any(job.stop is not None for job in self._queue):
            return True
        return bool(self._queue) and self._queue[0].work.rows <= self.max_rows - self.rows

    def _begin(self, job: Job) -> None:
        work = job.work
        lm = LM(_Door(self), self.lm.tokenizer, raw=True)  # a chat comes as token ids
        watch = () if work.watch is None else work.watch(job.send)

        def generate() -> Finished:
            try:
                found = lm.generate(
                    work.prompts, work.n, params=work.params, max_batch=self.max_rows, observe=watch, progress=False
                )
            except Exception as error:
                return Finished(error=error)
            return Finished(samples=found)

        job.task = greenlet(generate)
        self._resume(job)

    def _resume(self, job: Job, result: Tensor | Exception | None = None) -> None:
        """Let a request run until it asks the network or ends."""
        assert job.task is not None
        if isinstance(result, Exception):
            said = job.task.throw(result)
        else:
            said = job.task.switch() if result is None else job.task.switch(result)
        if isinstance(said, Call):
            job.call = widen(said, self.lm.model.mask_id, getattr(self.lm.model, "context", None))
            return
        self._running.remove(job)
        job.send(said)

    def _step(self, jobs: Sequence[Job]) -> None:
        """The network for all, and every request on to its next call."""
        results = self.network([job.call for job in jobs if job.call is not None])
        for job, result in zip(jobs, results, strict=True):
            self._resume(job, result)

    def _end_all(self) -> None:
        with self._changed:
            self._closing = True
            waiting, self._queue = list(self._queue), deque()
        for job in list(self._running):
            self._resume(job, ClosedError())
        for job in waiting:
            job.send(Finished(error=ClosedError()))
        self.network.close()

"""The engine: one thread, in which all running requests take their steps together and share the network.

Every request is an ordinary `LM.generate` in a greenlet of its own. Where it calls the network, it is put aside until all
others have come to the same point; calls of one shape then share a pass. Requests begin and end between passes.

No pass has more than `max_rows` rows. Requests begin in the order they came, as many as fit into a pass together. Small ones
need not wait for large ones: where they do not fit they begin beside them, and the two kinds then take turns, so that each has
half of the network. A request whose client does not read takes no part, and nobody waits for the rows that it holds.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
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
SMALL = 4  # a request of at most a fourth of max_rows is small
STALLED = 2  # requests that nobody reads may hold so many times max_rows while others wait
PATIENCE_S = 1.0  # for a client that does not read where they hold more


class QueueFullError(Exception):
    """As many requests wait as may."""


class ClosedError(Exception):
    """The engine takes no more requests."""


class CancelledError(Exception):
    """Nobody waits for this request any longer."""


class TimedOutError(Exception):
    """The request took longer than it may."""


class UnreadError(Exception):
    """The client did not read its messages, and others waited for the room that they took."""


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
    aside: bool = False  # it began beside requests that left no room for it
    turn: int = 0  # its last pass
    sent: int = 0  # written by the engine alone
    read: int = 0  # written by the event loop alone, as is the next
    read_at: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return self.work.rows

    @property
    def blocked(self) -> bool:
        """Does it wait for its client to read?"""
        return self.sent - self.read >= UNREAD and self.stop is None

    async def receive(self) -> Any:
        """The next message; the last one is a Finished."""
        await asyncio.sleep(0)  # a client that went away is noticed between two messages, also where both are there
        message = await self.inbox.get()
        self.read += 1
        self.read_at = time.monotonic()
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
            self.loop.call_soon_threadsafe(self._deliver, message)
        except RuntimeError:  # the event loop is closed: nobody reads any more
            self.stop = CancelledError()

    def _deliver(self, message: Any) -> None:
        if isinstance(message, Finished) and message.error is not None:
            while not self.inbox.empty():  # what a client that does not read has of a request that failed is of no use
                self.inbox.get_nowait()
        self.inbox.put_nowait(message)


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
        self._turn, self._used = 0, {False: 0, True: 0}  # passes so far; rows of those in order, and of those aside
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="oddlm-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more. What runs or waits is told a ClosedError now, and ends before the next pass."""
        with self._changed:
            self._closing = True
            told = [*self._running, *self._queue]
            self._changed.notify()
        for job in told:
            job.send(Finished(error=ClosedError()))

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
        return _rows(tuple(self._running))

    @property
    def stalled(self) -> int:
        """Rows in flight that wait for their client to read."""
        return _rows(job for job in tuple(self._running) if job.blocked)

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
                self._step(self._next())
        finally:
            self._end_all()

    def _gather(self) -> bool:
        """Wait until there is something to do, and let requests in; False at the end."""
        with self._changed:
            self._dismiss_unread()
            while not self._closing and not self._ready():
                self._changed.wait(PATIENCE_S if self._queue else None)
                self._dismiss_unread()
            if self._closing:
                return False
            fresh = self._admitted()
            stopped = [job for job in self._queue if job.stop is not None]
            self._queue = deque(job for job in self._queue if job.stop is None and job not in fresh)
            self._running += fresh
        for job in stopped:
            job.send(Finished(error=job.stop))
        for job in fresh:
            self._begin(job)
        return True

    def _ready(self) -> bool:
        if any(not job.blocked for job in self._running) or any(job.stop is not None for job in self._queue):
            return True
        return bool(self._admitted())

    def _admitted(self) -> list[Job]:
        """Who of the queue may begin: in their order while there is room, and small ones aside where there is not."""
        if self.stalled > STALLED * self.max_rows:
            return []
        reading = [job for job in self._running if not job.blocked]
        free = {aside: self.max_rows - _rows(job for job in reading if job.aside == aside) for aside in (False, True)}
        found = []
        for job in self._queue:
            if job.stop is not None:
                continue
            job.aside = job.rows > free[False]
            if job.aside:
                free[False] = 0  # whoever comes later must not overtake it
            if job.rows <= free[job.aside] and not (job.aside and job.rows > max(1, self.max_rows // SMALL)):
                free[job.aside] -= job.rows
                found.append(job)
        return found

    def _dismiss_unread(self) -> None:
        """Where others wait and too much is unread, those go whose clients have been away longest."""
        if not self._queue:
            return
        too_much = self.stalled - STALLED * self.max_rows
        for job in sorted((job for job in self._running if job.blocked), key=lambda job: job.read_at):
            if too_much > 0 and time.monotonic() - job.read_at >= PATIENCE_S:
                job.stop = UnreadError()
                too_much -= job.rows

    def _next(self) -> list[Job]:
        """Who takes part in the next pass: the kind first that had less of the network, then whoever waited longest."""
        ready = [job for job in self._running if not job.blocked]
        if _rows(ready) <= self.max_rows or len({job.aside for job in ready}) == 1:
            self._used = {False: 0, True: 0}  # neither kind takes anything from the other
        first = self._used[True] <= self._used[False]
        found, room = [], self.max_rows
        for job in sorted(ready, key=lambda job: (job.aside != first, job.turn)):
            if job.rows <= room:
                found.append(job)
                room -= job.rows
        self._turn += 1
        for job in found:
            job.turn = self._turn
            self._used[job.aside] += job.rows
        return found

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


def _rows(jobs: Iterable[Job]) -> int:
    return sum(job.rows for job in jobs)

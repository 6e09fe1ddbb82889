"""The engine: one thread that batches the network queries of all running requests.

Every request is a `lm.Drawing`. In each turn, the engine collects the queries of the requests,
evaluates them together where they fit (`passes`), and has each request take a step with its logits.
Requests begin and end between turns.

A turn has at most `max_rows` rows. Requests begin in order of arrival, as many as fit into a turn
together. Small requests need not wait for large ones: if they do not fit, they begin aside, and the
two groups alternate, so that each gets half of the network. A request whose client does not read is
paused, and its rows do not count against the others.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core.canvas import Template as Form
from ..core.model import Query, Session
from ..core.step import Observer
from ..drawing import Drawing, Samples, with_cfg
from ..lm import LM
from ..models.wrappers import ClassifierFree
from ..params import SampleParams
from ..selection import keep
from .passes import passes_of
from .pool import Ask, Passes
from .sizes import SIZES

UNREAD = 16  # a request pauses when its client is this many messages behind
SMALL = 4  # a request is small if it has at most max_rows / SMALL rows
STALLED = 2  # paused requests may hold STALLED * max_rows rows while others wait
PATIENCE_S = 1.0  # beyond that, a client that has not read for this long loses its request
# Idle time before sizes of passes are tested; longer than the gap between a client's requests.
IDLE_S = 0.25


class QueueFullError(Exception):
    """The queue is full."""


class ClosedError(Exception):
    """The engine no longer accepts requests."""


class CancelledError(Exception):
    """The request was cancelled, or its client is gone."""


class TimedOutError(Exception):
    """The request took longer than `timeout_s`."""


class UnreadError(Exception):
    """The client did not read its messages while other requests waited for the rows it held."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last message of a request: its samples by prompt, or an error."""

    samples: list[Samples] | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Work:
    """What to generate.

    `watch` takes a function that sends a message and returns an observer, which runs in the engine.
    """

    prompts: Sequence[Sequence[int]]  # token ids
    n: int
    params: SampleParams
    watch: Callable[[Callable[[Any], None]], Observer] | None = None
    forms: Sequence[Form] = ()  # a template for each prompt, or empty

    @property
    def drawn(self) -> int:
        """Samples drawn per prompt, including those that are not kept."""
        return self.params.drawn(self.n)

    @property
    def rows(self) -> int:
        return self.drawn * len(self.prompts)


@dataclass
class Run:
    """A request that has begun."""

    drawing: Drawing
    query: Query
    cfg: ClassifierFree | None
    sessions: tuple[Session, ...]
    observe: Observer | None

    @classmethod
    def begin(cls, lm: LM, work: Work, network: Passes, send: Callable[[Any], None]) -> "Run":
        params = work.params
        drawing = Drawing(
            lm.model, lm.tokenizer, work.prompts, work.drawn, params, params.seed, forms=work.forms
        )
        query, model = drawing.query, with_cfg(lm.model, params)
        assert query is not None
        cfg = model if isinstance(model, ClassifierFree) and params.cfg_scale else None
        return cls(
            drawing,
            query,
            cfg,
            network.sessions(model, query),
            None if work.watch is None else work.watch(send),
        )

    def take(self, logits: Tensor) -> bool:
        """Take a step; return whether there is a next one."""
        event = self.drawing.advance(logits, self.query)
        if self.observe is not None:
            self.observe(event)
        query = self.drawing.query
        if query is not None:
            self.query = query
        return query is not None

    def samples(self, work: Work) -> list[Samples]:
        drawn, params = self.drawing.samples(), work.params
        if params.pool is None:
            return drawn
        return [Samples(keep(group, work.n, params.selector)) for group in drawn]


@dataclass(eq=False)
class Job:
    """A request on its way through the engine.

    Its messages arrive in the event loop that submitted it.
    """

    work: Work
    engine: "Engine"
    loop: asyncio.AbstractEventLoop
    inbox: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    stop: Exception | None = None  # why it ends early
    timer: asyncio.TimerHandle | None = None
    run: Run | None = None  # set while it takes steps
    done: Finished | None = None
    aside: bool = False  # began although the requests before it left no room
    turn: int = 0  # the last turn it took part in
    sent: int = 0  # messages; written by the engine only
    read: int = 0  # messages; this and read_at are written by the event loop only
    read_at: float = field(default_factory=time.monotonic)

    @property
    def rows(self) -> int:
        return self.work.rows

    @property
    def blocked(self) -> bool:
        """Whether it waits for its client to read."""
        return self.sent - self.read >= UNREAD and self.stop is None

    @property
    def ask(self) -> Ask:
        assert self.run is not None
        return Ask(self.run.query, self.take, self.run.cfg, self.run.sessions)

    def take(self, logits: Tensor) -> None:
        assert self.run is not None
        if not self.run.take(logits):
            self.done = Finished(samples=self.run.samples(self.work))

    async def receive(self) -> Any:
        """Return the next message; the last one is a Finished."""
        await asyncio.sleep(0)  # lets a disconnect be noticed even if the next message is there
        message = await self.inbox.get()
        self.read += 1
        self.read_at = time.monotonic()
        self.engine.wake()
        return message

    def cancel(self, why: Exception | None = None) -> None:
        """Free its rows before the next pass; do nothing if it has ended."""
        self.stop = self.stop or why or CancelledError()
        if self.timer is not None:
            self.timer.cancel()
        self.engine.wake()

    def send(self, message: Any) -> None:
        self.sent += 1
        try:
            self.loop.call_soon_threadsafe(self._deliver, message)
        except RuntimeError:  # the event loop is closed, so nobody reads
            self.stop = CancelledError()

    def _deliver(self, message: Any) -> None:
        if isinstance(message, Finished) and message.error is not None:
            while not self.inbox.empty():  # unread messages of a failed request are of no use
                self.inbox.get_nowait()
        self.inbox.put_nowait(message)


class Engine:
    """Runs requests; `submit` works from any event loop, which then receives the messages."""

    def __init__(
        self,
        lm: LM,
        *,
        max_rows: int = 64,
        max_queue: int = 64,
        timeout_s: float = 120.0,
        sizes: Sequence[int] = SIZES,
        workers: int = 1,
        max_width: int = 0,
        on_turn: Callable[[Sequence[Job]], None] | None = None,
    ) -> None:
        """Create an engine; `start` starts its thread.

        max_width: the most tokens of a request with its prompt; sizes of passes are tested up to
            this width while the engine is idle.
        on_turn: called in the engine's thread with the requests of a turn, before their step.
        """
        self.lm, self.max_rows, self.max_queue, self.timeout_s = lm, max_rows, max_queue, timeout_s
        self.on_turn = on_turn
        self.network = passes_of(lm.model, sizes, workers, max_width)
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._turn = 0  # turns so far
        self._used = {False: 0, True: 0}  # rows computed in order, and aside
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="oddlm-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Accept no more requests, and end all others before the next pass.

        Their clients get a ClosedError at once.
        """
        with self._changed:
            self._closing = True
            jobs = [*self._running, *self._queue]
            self._changed.notify()
        for job in jobs:
            job.send(Finished(error=ClosedError()))

    def close(self) -> None:
        """Stop, and wait for the engine's thread to end."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def closing(self) -> bool:
        """Whether it has stopped accepting requests."""
        return self._closing

    @property
    def running(self) -> tuple[Job, ...]:
        """The requests that have begun."""
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Job, ...]:
        """The requests in the queue."""
        return tuple(self._queue)

    @property
    def busy(self) -> float:
        """Seconds during which the network computed."""
        return self.network.busy

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def rows(self) -> int:
        """Rows of all running requests."""
        return _rows(self.running)

    @property
    def stalled(self) -> int:
        """Rows of running requests that wait for their client to read."""
        return _rows(job for job in self.running if job.blocked)

    def submit(self, work: Work) -> Job:
        """Queue a request; must be called in an event loop."""
        if not 0 < work.rows <= self.max_rows:
            raise ValueError(f"a request must have 1 to {self.max_rows} samples, not {work.rows}")
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

    def _run(self) -> None:
        try:
            while self._wait():
                self._admit()
                for job in self.running:
                    if job.stop is not None:
                        self._end(job, Finished(error=job.stop))
                self._step(self._next())
        finally:
            self._end_all()

    def _wait(self) -> bool:
        """Wait until there is something to do; return False when the engine closes.

        Sizes of passes are tested while there are no requests.
        """
        quiet = False
        while True:
            with self._changed:
                self._dismiss_unread()
                if self._closing or self._ready():
                    return not self._closing
                idle = self.network.untried and not self._running and not self._queue
                for_client = PATIENCE_S if self._queue else None
                notified = self._changed.wait((0 if quiet else IDLE_S) if idle else for_client)
                quiet = idle and not notified and not self._closing and not self._queue
            if quiet and self.network.sizes is not None:
                self.network.sizes.try_one()

    def _admit(self) -> None:
        """Begin the requests that may begin, and drop cancelled ones from the queue."""
        with self._changed:
            fresh = self._admitted()
            stopped = [job for job in self._queue if job.stop is not None]
            self._queue = deque(job for job in self._queue if job.stop is None and job not in fresh)
            self._running += fresh
        for job in stopped:
            job.send(Finished(error=job.stop))
        for job in fresh:
            try:
                job.run = Run.begin(self.lm, job.work, self.network, job.send)
            except Exception as error:
                self._end(job, Finished(error=error))

    def _ready(self) -> bool:
        if any(not job.blocked for job in self._running) or any(
            job.stop is not None for job in self._queue
        ):
            return True
        return bool(self._admitted())

    def _admitted(self) -> list[Job]:
        """Return the queued requests that may begin.

        They begin in order while there is room; small ones begin aside if there is not.
        """
        if self.stalled > STALLED * self.max_rows:
            return []
        reading = [job for job in self._running if not job.blocked]
        free = {
            aside: self.max_rows - _rows(job for job in reading if job.aside == aside)
            for aside in (False, True)
        }
        found = []
        for job in self._queue:
            if job.stop is not None:
                continue
            job.aside = job.rows > free[False]
            if job.aside:
                free[False] = 0  # later requests must not overtake it
            small = job.rows <= max(1, self.max_rows // SMALL)
            if job.rows <= free[job.aside] and (small or not job.aside):
                free[job.aside] -= job.rows
                found.append(job)
        return found

    def _dismiss_unread(self) -> None:
        """If requests wait and paused ones hold too much, end those unread for longest."""
        if not self._queue:
            return
        too_much = self.stalled - STALLED * self.max_rows
        blocked = [job for job in self._running if job.blocked]
        for job in sorted(blocked, key=lambda job: job.read_at):
            if too_much > 0 and time.monotonic() - job.read_at >= PATIENCE_S:
                job.stop = UnreadError()
                too_much -= job.rows

    def _next(self) -> list[Job]:
        """Return the requests of the next turn.

        The group (in order or aside) that has used the network less comes first; within a group,
        the requests that have waited longest.
        """
        ready = [job for job in self._running if not job.blocked]
        if _rows(ready) <= self.max_rows or len({job.aside for job in ready}) == 1:
            self._used = {False: 0, True: 0}  # neither group takes rows from the other
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

    def _step(self, jobs: Sequence[Job]) -> None:
        """Evaluate the network for these requests, and have each take a step."""
        if jobs and self.on_turn is not None:
            self.on_turn(jobs)
        for job, error in zip(jobs, self.network([job.ask for job in jobs]), strict=True):
            if error is not None:
                self._end(job, Finished(error=error))
            elif job.done is not None:
                self._end(job, job.done)

    def _end(self, job: Job, message: Finished) -> None:
        job.run = job.done = None  # its reader may keep the job for long
        self._running.remove(job)
        job.send(message)

    def _end_all(self) -> None:
        with self._changed:
            self._closing = True
            waiting, self._queue = list(self._queue), deque()
        for job in self.running:
            self._end(job, Finished(error=ClosedError()))
        for job in waiting:
            job.send(Finished(error=ClosedError()))
        self.network.close()


def _rows(jobs: Iterable[Job]) -> int:
    return sum(job.rows for job in jobs)

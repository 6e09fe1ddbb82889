"""Network passes that several requests share, without one request changing another's answer.

Arithmetic depends on shapes: a prompt padded further, or a larger batch, can change the last bits
of the logits, and a last bit can change a token. So everything has a shape that is a function of
the request alone, save for the number of rows of a pass. That is one of a few sizes. The smallest
is the reference; a larger one is used at a width once it was seen to give the same bits there,
which is tried while nobody asks for anything.

Of our own networks the body is shared by requests of any prompts and lengths whose canvases have
the same width class; the head is computed for each request alone, for the positions that it asks
for.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.model import ModelInfo, Query, Session, info_of, open_session
from ..models.native import Native
from ..models.wrappers import ClassifierFree

SIZES = (
    4,
    8,
    16,
)  # rows of a pass: small ones for requests alone; CPUs gain nothing beyond the largest
SHAPES = 4096  # as many shapes are remembered
# where the smallest pass takes longer, larger ones gain nothing, and somebody might have to wait
# for one
LONG_S = 0.25


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks of the network, and who takes the logits."""

    query: Query
    take: Callable[[Tensor], None]
    cfg: ClassifierFree | None = None
    session: Session | None = None

    @property
    def queries(self) -> tuple[Query, ...]:
        if self.cfg is None:
            return (self.query,)
        return self.query, self.cfg.unconditional(self.query)


class Shape(NamedTuple):
    """What the passes of several requests have in common."""

    start: int
    length: int

    @property
    def width(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a query, padded to a shape."""

    tokens: Tensor  # [R, width]
    lengths: Tensor  # [R]: real tokens before shape.start
    nudge: Tensor | None  # [R, shape.start, H]

    @classmethod
    def lay(cls, query: Query, shape: Shape, pad_id: int) -> "Rows":
        left = shape.width - query.tokens.shape[1]
        right = shape.start - left - query.start  # of what was written, as much counts as prompt
        nudge = None if query.nudge is None else F.pad(query.nudge, (0, 0, left, right))
        return cls(
            F.pad(query.tokens, (left, 0), value=pad_id), query.prompt_lengths + right, nudge
        )

    @classmethod
    def join(cls, parts: "Sequence[Rows]") -> "Rows":
        """A row without a nudge has one of zeros beside those that have one."""
        tokens, lengths = (
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.lengths for part in parts]),
        )
        some = next((part.nudge for part in parts if part.nudge is not None), None)
        if some is None:
            return cls(tokens, lengths, None)
        none = [some.new_zeros(1).expand(len(part.tokens), *some.shape[1:]) for part in parts]
        return cls(
            tokens,
            lengths,
            torch.cat(
                [z if p.nudge is None else p.nudge for p, z in zip(parts, none, strict=True)]
            ),
        )

    def take(self, first: int, size: int) -> "Rows":
        """Exactly `size` rows from `first` on; the last row is repeated where some are missing."""
        rows = torch.arange(first, first + size, device=self.tokens.device).clamp(
            max=len(self.tokens) - 1
        )
        return Rows(
            self.tokens[rows], self.lengths[rows], None if self.nudge is None else self.nudge[rows]
        )


class Part(Protocol):
    """What of a model is shared, and what every request does for itself."""

    def shape(self, query: Query) -> Shape: ...

    def forward(self, rows: Rows, shape: Shape) -> Tensor:
        """The shared part: [size, ...]."""

    def finish(self, parts: Sequence[Tensor], query: Query, shape: Shape) -> Tensor:
        """The logits of a request, from what `forward` said of its rows."""

    def foreseen(self, most: int) -> Iterator[Shape]:
        """The shapes that requests of up to so many tokens can have, as far as they are few; small
        ones first.
        """


@dataclass(frozen=True, slots=True)
class Body:
    """Our own networks: all up to the last block's feed-forward part is shared."""

    model: Native
    context: int | None

    def shape(self, query: Query) -> Shape:
        return self._shape(query.tokens.shape[1])

    def _shape(self, width: int) -> Shape:
        return Shape(
            width_class(width)
            if self.context is None
            else max(width, min(width_class(width), self.context)),
            0,
        )

    def forward(self, rows: Rows, shape: Shape) -> Tensor:
        layout = self.model.network.layout(shape.width, shape.start, rows.lengths)
        return self.model.network.hidden_states(
            rows.tokens, layout, last_mlp=False, nudge=rows.nudge
        )

    def finish(self, parts: Sequence[Tensor], query: Query, shape: Shape) -> Tensor:
        network = self.model.network
        first = shape.width - (query.tokens.shape[1] - query.start)
        kept = first - 1 if network.config.shift and first > 0 else first
        x = torch.cat(
            [part[:, kept:] for part in parts]
        )  # in memory of its own, so that nothing depends on where it lay
        return network.finish(x, first - kept, query.prompt_lengths, query.positions)

    def foreseen(self, most: int) -> Iterator[Shape]:
        most = most if self.context is None else min(most, self.context)
        width = 0
        while width < most:
            shape = self._shape(width + 1)
            yield shape
            width = shape.width


@dataclass(frozen=True, slots=True)
class Whole:
    """Any other model is called as it is."""

    model: Callable[..., Tensor]
    context: int | None

    def shape(self, query: Query) -> Shape:
        length = query.tokens.shape[1] - query.start
        start = width_class(query.start) if query.start else 0
        return Shape(
            start if self.context is None else max(query.start, min(start, self.context - length)),
            length,
        )

    def forward(self, rows: Rows, shape: Shape) -> Tensor:
        aside = {} if rows.nudge is None else {"nudge": rows.nudge}
        return self.model(rows.tokens, shape.start, rows.lengths, **aside)

    def finish(self, parts: Sequence[Tensor], query: Query, shape: Shape) -> Tensor:  # noqa: ARG002
        return torch.cat(list(parts))

    def foreseen(self, most: int) -> Iterator[Shape]:  # noqa: ARG002
        return iter(())


def width_class(width: int) -> int:
    """The width that a canvas or prompt is padded to: the next multiple of 4, or of about an eighth
    of itself.
    """
    step = max(4, 1 << max(0, width.bit_length() - 4))
    return -(-width // step) * step


def split_rows(rows: int, sizes: Sequence[int], workers: int = 1) -> list[int]:
    """Passes for so many rows: large ones while they fill, then the smallest that holds the rest;
    some for every worker.
    """
    sizes = sorted(sizes)
    sizes = [size for size in sizes if size * workers <= rows] or sizes[:1]
    passes, rest = [], rows
    for size in reversed(sizes):
        passes += [size] * (rest // size)
        rest %= size
    return passes + sizes[:1] * (rest > 0)


class Clock:
    """How long the network was at work; on a GPU by its own clock, without waiting for it."""

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
    """The network for many requests at a time: `workers` threads, in which requests take their
    steps too.
    """

    def __init__(self, info: ModelInfo, workers: int) -> None:
        self.info, self.workers = info, workers
        self.count = 0  # passes for requests
        self.tried = 0  # passes to try out sizes
        self._clock = Clock(info.device)
        # A thread that has not been told how many threads torch has computes its first products
        # with as many as there are.
        self._pool = ThreadPoolExecutor(
            workers, "oddlm-pass", torch.set_num_threads, (torch.get_num_threads(),)
        )

    @property
    def busy(self) -> float:
        """Seconds that the network was at work, of all workers on average."""
        return self._clock.seconds / self.workers

    @property
    def untried(self) -> bool:
        """Is there a size of passes to be tried out?"""
        return False

    def try_one(self) -> None:
        """One pass to try out sizes."""

    def session(self, model: Any, first: Query) -> Session | None:  # noqa: ARG002
        """What a request with this first query keeps between its steps; None where it shares
        passes.
        """
        return None

    def __call__(self, asks: Sequence[Ask]) -> list[Exception | None]:
        """Let each request take the logits that it asks for; where that failed, why."""
        return [one.result() for one in self._begin(asks)]

    def _begin(self, asks: Sequence[Ask]) -> "list[Future[Exception | None]]":
        raise NotImplementedError

    def close(self) -> None:
        self._pool.shutdown()

    @torch.no_grad()
    def _answer(self, ask: Ask, logits: Callable[[], Tensor]) -> Exception | None:
        """An error of the network, or of the request itself, ends this request alone."""
        try:
            ask.take(logits())
        except Exception as error:
            return error
        return None


class AlonePasses(Passes):
    """A model that keeps something between the steps of a run: a session, and passes, for each
    request alone.
    """

    def session(self, model: Any, first: Query) -> Session:
        return open_session(model, first)

    def _begin(self, asks: Sequence[Ask]) -> "list[Future[Exception | None]]":
        self.count += len(asks)
        return [self._pool.submit(self._answer, ask, partial(self._ask, ask)) for ask in asks]

    def _ask(self, ask: Ask) -> Tensor:
        assert ask.session is not None
        with self._clock():
            return ask.session(ask.query)


@dataclass(frozen=True, slots=True)
class _Call:
    """A query within the passes of its shape."""

    query: Query
    shape: Shape
    parts: "list[tuple[Future[Tensor], slice]]"


class SharedPasses(Passes):
    """Requests of the same shape share passes."""

    def __init__(
        self, part: Part, info: ModelInfo, sizes: Sequence[int], workers: int, max_width: int = 0
    ) -> None:
        super().__init__(info, workers)
        self.part, self.sizes = part, tuple(sorted(set(sizes)))
        self._exact: dict[Shape, tuple[int, ...]] = {}
        self._seen: deque[Shape] = deque()  # those that requests had come first
        self._foreseen = part.foreseen(max_width)
        self._trial: Iterator[None] | None = None
        self._widest: int | None = None  # a pass of this width takes long already
        self._untried = len(self.sizes) > 1
        self._pad_id = 0 if info.mask_id is None else info.mask_id

    def exact_sizes(self, shape: Shape) -> tuple[int, ...]:
        """The sizes of passes that may be used at this shape, as far as is known."""
        return self._exact.get(shape, self.sizes[:1])

    def _begin(self, asks: Sequence[Ask]) -> "list[Future[Exception | None]]":
        calls: list[list[_Call]] = [[] for _ in asks]
        shapes: dict[Shape, list[tuple[Rows, _Call]]] = {}
        for i, ask in enumerate(asks):
            for query in ask.queries:
                call = _Call(query, self.part.shape(query), [])
                calls[i].append(call)
                shapes.setdefault(call.shape, []).append(
                    (Rows.lay(query, call.shape, self._pad_id), call)
                )
        for shape, members in shapes.items():
            self._share(shape, members)
        # All passes were begun before these, so one that waits for a pass cannot keep it from
        # beginning.
        return [
            self._pool.submit(self._answer, ask, lambda ask=ask, own=own: self._finish(ask, own))  # type: ignore[misc]
            for ask, own in zip(asks, calls, strict=True)
        ]

    def _share(self, shape: Shape, members: "list[tuple[Rows, _Call]]") -> None:
        """Begin the passes of one shape."""
        self._note(shape)
        rows = Rows.join([some for some, _ in members])
        begun, first = [], 0
        for size in split_rows(len(rows.tokens), self.exact_sizes(shape), self.workers):
            begun.append(
                (
                    first,
                    first + size,
                    self._pool.submit(self._forward, rows.take(first, size), shape),
                )
            )
            first += size
        self.count += len(begun)
        first = 0
        for some, call in members:
            last = first + len(some.tokens)
            for low, high, one in begun:
                if low < last and first < high:
                    call.parts.append((one, slice(max(first, low) - low, min(last, high) - low)))
            first = last

    @torch.no_grad()
    def _forward(self, rows: Rows, shape: Shape) -> Tensor:
        with self._clock():
            return self.part.forward(rows, shape)

    def _finish(self, ask: Ask, calls: Sequence[_Call]) -> Tensor:
        found = []
        for call in calls:
            parts = [one.result()[some] for one, some in call.parts]
            with self._clock():
                found.append(self.part.finish(parts, call.query, call.shape))
        return found[0] if ask.cfg is None else ask.cfg.extrapolate(*found)

    def _note(self, shape: Shape) -> None:
        if (
            shape not in self._exact
            and shape not in self._seen
            and len(self._seen) + len(self._exact) < SHAPES
        ):
            self._seen.append(shape)
            self._untried = len(self.sizes) > 1

    @property
    def untried(self) -> bool:
        return self._untried

    def try_one(self) -> None:
        while self._untried:
            if self._trial is None:
                if (shape := self._next_shape()) is None:
                    self._untried = False
                    return
                self._trial = self._try(shape)
            try:
                next(self._trial)
            except StopIteration:
                self._trial = None
            else:
                return

    def _next_shape(self) -> Shape | None:
        while (
            shape := self._seen.popleft() if self._seen else next(self._foreseen, None)
        ) in self._exact:
            pass
        return shape

    def _try(self, shape: Shape) -> Iterator[None]:
        """Which sizes give the bits of the smallest, on random tokens; one pass at a time."""
        small, large = self.sizes[0], self.sizes[-1]
        self._exact[shape] = self.sizes[:1]
        if self._widest is not None and shape.width >= self._widest:
            return
        rows = _random_rows(shape, large, self.info, self._pad_id)
        bits, times = [], []
        try:
            for first in range(0, large, small):
                began = time.perf_counter()
                bits.append(self._tried(rows.take(first, small), shape))
                times.append(time.perf_counter() - began)
                yield
            if min(times) > LONG_S:  # the first of a shape may have to be compiled
                self._widest = shape.width
                return
            reference = torch.cat(bits)[:large]
            for size in self.sizes[1:]:
                if torch.equal(
                    self._tried(rows.take(large - size, size), shape), reference[large - size :]
                ):
                    self._exact[shape] += (size,)
                yield
        except Exception:  # too large for the memory, say: then what is known so far holds
            self._widest = shape.width

    def _tried(self, rows: Rows, shape: Shape) -> Tensor:
        self.tried += 1
        found = self._pool.submit(self._forward, rows, shape).result()
        if found.is_cuda:
            torch.cuda.synchronize(found.device)
        return found


def _random_rows(shape: Shape, count: int, info: ModelInfo, pad_id: int) -> Rows:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(info.vocab_size, (count, shape.width), generator=generator)
    tokens[:, shape.start if shape.length else shape.width // 2 :] = pad_id
    lengths = torch.randint(
        max(1, shape.start // 2), max(1, shape.start) + 1, (count,), generator=generator
    )
    return Rows(tokens.to(info.device), lengths.clamp(max=shape.start).to(info.device), None)


def passes_of(model: Any, sizes: Sequence[int], workers: int, max_width: int) -> Passes:
    """How requests use a model. max_width: tokens that a request may have, as far as is known; 0:
    nothing is foreseen.
    """
    info = info_of(model)
    if isinstance(model, Native) and model.cache is None:
        return SharedPasses(Body(model, info.context), info, sizes, workers, max_width)
    if getattr(model, "session", None) is not None:
        return AlonePasses(info, workers)
    return SharedPasses(Whole(model, info.context), info, sizes, workers, max_width)

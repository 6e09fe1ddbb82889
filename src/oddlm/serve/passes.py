"""Network passes that requests share without changing each other's answers.

Arithmetic depends on shapes: more padding or a larger batch can change the last bits of the logits,
and a last bit can change a token. So every shape is a function of the request alone, except for the
number of rows of a pass, which is one of a few sizes. The smallest size is the reference. A larger
one is used at a width only after a test has shown that it gives the same bits there; these tests
run while the server is idle.

For oddlm's own networks, requests whose canvases have the same width class share the body, whatever
their prompts and lengths. The head is computed per request, for the positions of its query.
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

SIZES = (4, 8, 16)  # rows of a pass: 4 for a single request; CPUs gain nothing beyond 16
SHAPES = 4096  # at most this many shapes are remembered
# If the smallest pass takes longer than this, larger ones gain nothing, and testing them could
# delay a request.
LONG_S = 0.25


@dataclass(frozen=True, slots=True)
class Ask:
    """A request's query to the network, and the function that takes the logits."""

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
    """The shape that queries in one pass have in common."""

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
        right = shape.start - left - query.start  # written tokens that count as prompt
        nudge = None if query.nudge is None else F.pad(query.nudge, (0, 0, left, right))
        return cls(
            F.pad(query.tokens, (left, 0), value=pad_id), query.prompt_lengths + right, nudge
        )

    @classmethod
    def join(cls, parts: "Sequence[Rows]") -> "Rows":
        """Concatenate; if some rows have a nudge, the others get one of zeros."""
        tokens = torch.cat([part.tokens for part in parts])
        lengths = torch.cat([part.lengths for part in parts])
        some = next((part.nudge for part in parts if part.nudge is not None), None)
        if some is None:
            return cls(tokens, lengths, None)
        zeros = [some.new_zeros(1).expand(len(part.tokens), *some.shape[1:]) for part in parts]
        nudges = [z if p.nudge is None else p.nudge for p, z in zip(parts, zeros, strict=True)]
        return cls(tokens, lengths, torch.cat(nudges))

    def take(self, first: int, size: int) -> "Rows":
        """Return `size` rows from `first` on, repeating the last row if there are too few."""
        rows = torch.arange(first, first + size, device=self.tokens.device).clamp(
            max=len(self.tokens) - 1
        )
        return Rows(
            self.tokens[rows], self.lengths[rows], None if self.nudge is None else self.nudge[rows]
        )


class Part(Protocol):
    """How a model is split: `forward` is shared, `finish` is computed per request."""

    def shape(self, query: Query) -> Shape: ...

    def forward(self, rows: Rows, shape: Shape) -> Tensor:
        """Compute the shared part: [size, ...]."""

    def finish(self, parts: Sequence[Tensor], query: Query, shape: Shape) -> Tensor:
        """Return the logits of a request, from the outputs of `forward` for its rows."""

    def foreseen(self, most: int) -> Iterator[Shape]:
        """Yield the shapes of requests of up to `most` tokens, smallest first.

        Yields nothing if there are too many such shapes to test.
        """


@dataclass(frozen=True, slots=True)
class Body:
    """oddlm's own networks: everything before the last block's MLP is shared."""

    model: Native
    context: int | None

    def shape(self, query: Query) -> Shape:
        return self._shape(query.tokens.shape[1])

    def _shape(self, width: int) -> Shape:
        padded = width_class(width)
        if self.context is not None:
            padded = max(width, min(padded, self.context))
        return Shape(padded, 0)

    def forward(self, rows: Rows, shape: Shape) -> Tensor:
        layout = self.model.network.layout(shape.width, shape.start, rows.lengths)
        return self.model.network.hidden_states(
            rows.tokens, layout, last_mlp=False, nudge=rows.nudge
        )

    def finish(self, parts: Sequence[Tensor], query: Query, shape: Shape) -> Tensor:
        network = self.model.network
        first = shape.width - (query.tokens.shape[1] - query.start)
        kept = first - 1 if network.config.shift and first > 0 else first
        # A copy, so that the result cannot depend on the memory layout of the parts.
        x = torch.cat([part[:, kept:] for part in parts])
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
    """Any other model: the whole call is shared."""

    model: Callable[..., Tensor]
    context: int | None

    def shape(self, query: Query) -> Shape:
        length = query.tokens.shape[1] - query.start
        start = width_class(query.start) if query.start else 0
        if self.context is not None:
            start = max(query.start, min(start, self.context - length))
        return Shape(start, length)

    def forward(self, rows: Rows, shape: Shape) -> Tensor:
        nudge = {} if rows.nudge is None else {"nudge": rows.nudge}
        return self.model(rows.tokens, shape.start, rows.lengths, **nudge)

    def finish(self, parts: Sequence[Tensor], query: Query, shape: Shape) -> Tensor:  # noqa: ARG002
        return torch.cat(list(parts))

    def foreseen(self, most: int) -> Iterator[Shape]:  # noqa: ARG002
        return iter(())


def width_class(width: int) -> int:
    """Return the width that a canvas or prompt is padded to.

    It is the next multiple of 4, or of about an eighth of the width if that is larger.
    """
    step = max(4, 1 << max(0, width.bit_length() - 4))
    return -(-width // step) * step


def split_rows(rows: int, sizes: Sequence[int], workers: int = 1) -> list[int]:
    """Return the sizes of the passes for `rows` rows: large ones first, the smallest for the rest.

    Only sizes of which every worker gets a full pass are used, or else the smallest size.
    """
    sizes = sorted(sizes)
    sizes = [size for size in sizes if size * workers <= rows] or sizes[:1]
    passes, rest = [], rows
    for size in reversed(sizes):
        passes += [size] * (rest // size)
        rest %= size
    return passes + sizes[:1] * (rest > 0)


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
        self.tried = 0  # passes to test sizes
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
        return False

    def try_one(self) -> None:
        """Run one pass that tests a size."""

    def session(self, model: Any, first: Query) -> Session | None:  # noqa: ARG002
        """Return the session of a request with this first query, or None if it shares passes."""
        return None

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


class AlonePasses(Passes):
    """For a model that keeps state between the steps of a run.

    Every request has its own session and its own passes.
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
    """For other models: requests of the same shape share passes."""

    def __init__(
        self, part: Part, info: ModelInfo, sizes: Sequence[int], workers: int, max_width: int = 0
    ) -> None:
        super().__init__(info, workers)
        self.part, self.sizes = part, tuple(sorted(set(sizes)))
        self._exact: dict[Shape, tuple[int, ...]] = {}
        self._seen: deque[Shape] = deque()  # shapes of requests are tested first
        self._foreseen = part.foreseen(max_width)
        self._trial: Iterator[None] | None = None
        self._widest: int | None = None  # no test at this width or beyond: it takes too long
        self._untried = len(self.sizes) > 1
        self._pad_id = 0 if info.mask_id is None else info.mask_id

    def exact_sizes(self, shape: Shape) -> tuple[int, ...]:
        """Return the sizes of passes known to be exact at this shape."""
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
        # All passes are queued before these calls, so a call that waits for a pass cannot block it.
        return [
            self._pool.submit(self._answer, ask, lambda ask=ask, own=own: self._finish(ask, own))  # type: ignore[misc]
            for ask, own in zip(asks, calls, strict=True)
        ]

    def _share(self, shape: Shape, members: "list[tuple[Rows, _Call]]") -> None:
        """Start the passes of one shape."""
        self._note(shape)
        rows = Rows.join([some for some, _ in members])
        begun, first = [], 0
        for size in split_rows(len(rows.tokens), self.exact_sizes(shape), self.workers):
            result = self._pool.submit(self._forward, rows.take(first, size), shape)
            begun.append((first, first + size, result))
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
        """Find the sizes that give the same bits as the smallest, on random tokens.

        Yields after every pass.
        """
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
            if min(times) > LONG_S:  # the minimum, as the first pass of a shape may compile
                self._widest = shape.width
                return
            reference = torch.cat(bits)[:large]
            for size in self.sizes[1:]:
                if torch.equal(
                    self._tried(rows.take(large - size, size), shape), reference[large - size :]
                ):
                    self._exact[shape] += (size,)
                yield
        except Exception:  # e.g. out of memory: keep the sizes found so far
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
    """Return the way requests use a model.

    max_width: the most tokens of a request, if known; with 0, no shapes are tested in advance.
    """
    info = info_of(model)
    if isinstance(model, Native) and model.cache is None:
        return SharedPasses(Body(model, info.context), info, sizes, workers, max_width)
    if getattr(model, "session", None) is not None:
        return AlonePasses(info, workers)
    return SharedPasses(Whole(model, info.context), info, sizes, workers, max_width)

"""Network passes that requests share without changing each other's answers (see `sizes`).

For oddlm's own networks, requests whose canvases have the same width class share the body, whatever
their prompts and lengths. The head is computed per request, for the positions of its query. With a
cache, requests keep their own keys and values, and share the rest (`joined`).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.model import ModelInfo, Query, Session, info_of, open_session
from ..models.cache import CACHES
from ..models.native import Native
from .joined import JoinedPasses
from .pool import Ask, Passes
from .sizes import Rows, Shape, Sizes, split_rows, width_class


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


class AlonePasses(Passes):
    """For a model that keeps state between the steps of a run.

    Every request has its own session and its own passes.
    """

    def sessions(self, model: Any, first: Query) -> tuple[Session, ...]:
        return (open_session(model, first),)

    def _begin(self, asks: Sequence[Ask]) -> "list[Future[Exception | None]]":
        self.count += len(asks)
        return [self._pool.submit(self._answer, ask, partial(self._ask, ask)) for ask in asks]

    def _ask(self, ask: Ask) -> Tensor:
        (session,) = ask.sessions
        with self._clock():
            return session(ask.query)


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
        self.part = part
        self.sizes: Sizes = Sizes(sizes, info, self._try, part.foreseen(max_width))

    def _begin(self, asks: Sequence[Ask]) -> "list[Future[Exception | None]]":
        calls: list[list[_Call]] = [[] for _ in asks]
        shapes: dict[Shape, list[tuple[Rows, _Call]]] = {}
        for i, ask in enumerate(asks):
            for query in ask.queries:
                call = _Call(query, self.part.shape(query), [])
                calls[i].append(call)
                shapes.setdefault(call.shape, []).append(
                    (Rows.lay(query, call.shape, self.sizes.pad_id), call)
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
        self.sizes.note(shape)
        rows = Rows.join([some for some, _ in members])
        begun, first = [], 0
        for size in split_rows(len(rows.tokens), self.sizes.exact(shape), self.workers):
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

    def _try(self, rows: Rows, shape: Shape) -> Tensor:
        return self._pool.submit(self._forward, rows, shape).result()

    def _finish(self, ask: Ask, calls: Sequence[_Call]) -> Tensor:
        found = []
        for call in calls:
            parts = [one.result()[some] for one, some in call.parts]
            with self._clock():
                found.append(self.part.finish(parts, call.query, call.shape))
        return found[0] if ask.cfg is None else ask.cfg.extrapolate(*found)


def passes_of(model: Any, sizes: Sequence[int], workers: int, max_width: int) -> Passes:
    """Return the way requests use a model.

    max_width: the most tokens of a request, if known; with 0, no shapes are tested in advance.
    """
    info = info_of(model)
    if isinstance(model, Native) and model.cache is None:
        return SharedPasses(Body(model, info.context), info, sizes, workers, max_width)
    if isinstance(model, Native) and model.cache in CACHES and model.network.config.experts is None:
        # An expert multiplies as many rows as choose it, and this number depends on the company.
        return JoinedPasses(model, sizes, workers, max_width)
    if getattr(model, "session", None) is not None:
        return AlonePasses(info, workers)
    return SharedPasses(Whole(model, info.context), info, sizes, workers, max_width)

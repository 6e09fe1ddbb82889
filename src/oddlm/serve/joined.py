"""Passes for networks with a cache: every request has its own, and windows are computed together.

The windows of a turn that have the same width class are computed together, whatever the prompts,
lengths and blocks of their requests: the products for so many rows at a time as has been shown to
keep the bits, attention per window. A request fills its cache and computes its head by itself.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.model import Query, Session
from ..models.native import Native
from ..models.transformer import Layout
from ..models.windows import LayerAttention, Step, Stepping, Window, joined
from ..models.wrappers import ClassifierFree
from .pool import Ask, Passes
from .sizes import Rows, Shape, Sizes, split_rows, width_class

Computed = tuple[Future[list[Tensor]], int]  # windows computed together, and one of them


class JoinedPasses(Passes):
    """For oddlm's own networks with a cache that is "prefix" or "dual"."""

    def __init__(self, model: Native, sizes: Sequence[int], workers: int, max_width: int) -> None:
        super().__init__(model.info, workers)
        self.model, self.network = model, model.network
        self.sizes: Sizes = Sizes(sizes, self.info, self._try, _widths(max_width))

    def sessions(self, model: Any, first: Query) -> tuple[Session, ...]:
        """Return a session for each query of a step; with guidance there are two."""
        guided = isinstance(model, ClassifierFree)
        queries = (first, model.unconditional(first)) if guided else (first,)
        return tuple(self.model.session(query) for query in queries)

    def _begin(self, asks: Sequence[Ask]) -> "list[Future[Exception | None]]":
        begun = [self._pool.submit(self._prepare, ask) for ask in asks]
        wait(begun)
        steps = [step for one in begun if one.exception() is None for step in one.result()]
        self.count += sum(step.fills for step in steps)
        widths: dict[int, list[Window]] = {}
        for step in steps:
            for window in step.windows:
                widths.setdefault(width_class(window.tokens.shape[1]), []).append(window)
        found: dict[Window, Computed] = {}
        for width, windows in widths.items():
            found |= self._join(Shape(width, 0), windows)
        # All passes are queued before these calls, so a call that waits for a pass cannot block it.
        return [
            self._pool.submit(self._answer, ask, partial(self._finish, ask, one, found))
            for ask, one in zip(asks, begun, strict=True)
        ]

    def _prepare(self, ask: Ask) -> list[Step]:
        steps = []
        for session, query in zip(ask.sessions, ask.queries, strict=True):
            assert isinstance(session, Stepping)
            with self._clock():
                steps.append(session.prepare(query))
        return steps

    def _join(self, shape: Shape, windows: Sequence[Window]) -> dict[Window, Computed]:
        """Start the passes of one width."""
        self.sizes.note(shape)
        exact = self.sizes.exact(shape)
        found: dict[Window, Computed] = {}
        for part in _dealt(windows, self.workers, exact[0]):
            sizes = split_rows(sum(len(window.tokens) for window in part), exact)
            self.count += len(sizes)
            result = self._pool.submit(self._forward, part, shape, sizes)
            found |= {window: (result, i) for i, window in enumerate(part)}
        return found

    @torch.no_grad()
    def _forward(
        self, windows: Sequence[Window], shape: Shape, sizes: Sequence[int]
    ) -> list[Tensor]:
        with self._clock():
            return joined(self.network, windows, shape.width, sizes)

    def _finish(self, ask: Ask, begun: Future[list[Step]], found: dict[Window, Computed]) -> Tensor:
        logits = []
        for step in begun.result():
            parts = [found[window] for window in step.windows]
            states = [together.result()[i] for together, i in parts]
            with self._clock():
                logits.append(step.finish(states))
        return logits[0] if ask.cfg is None else ask.cfg.extrapolate(*logits)

    def _try(self, rows: Rows, shape: Shape) -> Tensor:
        """Compute rows that attend to nothing but themselves."""
        layout = self.network.layout(shape.width, 0, rows.lengths.new_zeros(1)).unpadded()

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.network.attend(layer, q, k, v, None)

        def inputs() -> tuple[Layout, LayerAttention]:
            return layout, attention

        windows = [Window(row, inputs) for row in rows.tokens.split(1)]
        return torch.cat(self._pool.submit(self._forward, windows, shape, [len(windows)]).result())


def _dealt(windows: Sequence[Window], workers: int, small: int) -> list[list[Window]]:
    """Divide windows among workers: about equally many rows, but none has less than a full pass."""
    rows = sum(len(window.tokens) for window in windows)
    parts: list[list[Window]] = [[] for _ in range(max(1, min(workers, rows // small)))]
    held = [0] * len(parts)
    for window in sorted(windows, key=lambda window: -len(window.tokens)):
        least = held.index(min(held))
        parts[least].append(window)
        held[least] += len(window.tokens)
    return [part for part in parts if part]


def _widths(most: int) -> Iterator[Shape]:
    """Yield the shapes of windows of up to `most` positions, smallest first."""
    width = 0
    while width < most:
        width = width_class(width + 1)
        yield Shape(width, 0)

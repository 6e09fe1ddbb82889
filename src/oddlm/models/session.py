"""Sessions without a cache: whatever stays the same between steps is computed once."""

from functools import cached_property

import torch
from torch import Tensor

from ..core.model import Query
from .transformer import Layout, Transformer


class RunSession:
    """The common part of all sessions of a `Transformer`.

    `computed` counts the positions that went through the network.
    """

    def __init__(self, network: Transformer, first: Query) -> None:
        self.network, self.run, self.samples = network, first.run, first.samples
        self.start, self.width = first.start, first.tokens.shape[1]
        self.prompt_lengths = first.prompt_lengths
        self.next = first.number
        self.computed = 0

    @cached_property
    def _layout(self) -> Layout:
        lengths = self.prompt_lengths
        padded = bool((lengths != self.start).any())
        layout = self.network.layout(self.width, self.start, lengths if padded else lengths[:1])
        full = self.network.config.block_length is None
        return layout.unpadded() if full and not padded else layout

    def check(self, query: Query) -> None:
        """Raise ValueError if the query belongs to another run or is out of order."""
        if query.run != self.run:
            raise ValueError("this session belongs to another run: open one for each run")
        if query.number != self.next:
            raise ValueError(
                f"this session expects query {self.next} of its run, not {query.number}"
            )

    def indices(self, query: Query) -> Tensor | None:
        """Return the indices [R] of these samples among those of the first query; None if equal.

        Samples may leave a run but never join it.
        """
        if len(query.tokens) == len(self.prompt_lengths):
            return None
        assert query.samples is not None
        if self.samples is None:
            return query.samples
        return torch.searchsorted(self.samples, query.samples)

    def layout(self, indices: Tensor | None) -> Layout:
        return self._layout if indices is None else self._layout.take(indices)


class PlainSession(RunSession):
    @torch.no_grad()
    def __call__(self, query: Query) -> Tensor:
        self.check(query)
        self.computed += query.tokens.numel()
        layout = self._layout_of(query)
        logits = self.network.predict(
            query.tokens, self.start, query.prompt_lengths, layout, query.nudge, query.positions
        )
        self.next += 1  # only now, so that a failed query can be repeated
        return logits

    def _layout_of(self, query: Query) -> Layout:
        if not self.network.config.causal_context:
            return self.layout(self.indices(query))
        prompts = torch.zeros_like(query.tokens[:, : self.start], dtype=torch.bool)
        inside = torch.cat([prompts, query.blocks.inside], dim=1)
        return self.network.layout(self.width, self.start, query.prompt_lengths, inside)

"""Sessions without a cache: whatever stays the same between steps is computed once."""

from dataclasses import replace
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
        self._found: tuple[Tensor, Tensor, list[int]] | None = None  # see `indices`

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
        if self._found is None or self._found[0] is not query.samples:
            own = query.samples
            index = own if self.samples is None else torch.searchsorted(self.samples, own)
            self._found = own, index, index.tolist()
        return self._found[1]

    def numbers(self, indices: Tensor | None) -> list[int]:
        """Return the indices on the host, read back once while the samples are the same."""
        if indices is None:
            return list(range(len(self.prompt_lengths)))
        assert self._found is not None
        return self._found[2]

    def layout(self, indices: Tensor | None) -> Layout:
        return self._layout if indices is None else self._layout.take(indices)


class PlainSession(RunSession):
    """A session that computes everything anew; what all samples of a prompt begin with, once."""

    @torch.no_grad()
    def __call__(self, query: Query) -> Tensor:
        self.check(query)
        causal = self.network.config.causal_context
        if query.number == 0 and query.nudge is None and not causal:
            logits = self._first(query)
        else:
            logits = self._logits(query, self._layout_of(query))
        self.next += 1  # only now, so that a failed query can be repeated
        return logits

    def _first(self, query: Query) -> Tensor:
        """Compute the first step of a run, in which samples of a prompt are alike."""
        first, inverse = alike(query.tokens, query.prompt_lengths)
        layout = self._layout_of(query)
        if len(first) == len(inverse):
            return self._logits(query, layout)
        positions = None if query.positions is None else query.positions[first]
        few = replace(
            query,
            tokens=query.tokens[first],
            prompt_lengths=query.prompt_lengths[first],
            positions=positions,
        )
        return self._logits(few, layout.take(first))[inverse]

    def _logits(self, query: Query, layout: Layout) -> Tensor:
        self.computed += query.tokens.numel()
        return self.network.predict(
            query.tokens, self.start, query.prompt_lengths, layout, query.nudge, query.positions
        )

    def _layout_of(self, query: Query) -> Layout:
        if not self.network.config.causal_context:
            return self.layout(self.indices(query))
        prompts = torch.zeros_like(query.tokens[:, : self.start], dtype=torch.bool)
        inside = torch.cat([prompts, query.blocks.inside], dim=1)
        return self.network.layout(self.width, self.start, query.prompt_lengths, inside)


def alike(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Find equal canvases: the first sample of each, ascending, and which of them each sample is.

    tokens: [R, T]; lengths: [R], of the prompts. This waits for a GPU.
    """
    _, inverse = torch.cat([lengths[:, None], tokens], dim=1).unique(dim=0, return_inverse=True)
    same = inverse[:, None] == inverse  # [R, R]
    earliest = same.byte().argmax(dim=1)
    first, inverse = earliest.unique(return_inverse=True)
    return first, inverse


def column(values: list[int], device: torch.device) -> Tensor:
    """Return the values as a tensor [R, 1]; equal ones without a transfer, which would wait."""
    if len(set(values)) == 1:
        return torch.full((len(values), 1), values[0], device=device)
    return torch.tensor(values, device=device)[:, None]

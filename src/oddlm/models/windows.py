"""Steps of several runs in one pass: a session prepares its step, and whoever asked computes it.

Everything in a block but attention acts on each position alone, so it is computed for the windows
of several runs at once. Attention is computed per window, to the keys and values of its own run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.model import Query
from .transformer import Block, Layout, Transformer

# Layer, queries [R, heads, W, head], keys and values of these tokens -> the result of attention.
LayerAttention = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """W positions of each of R samples, whose hidden states are to be computed."""

    tokens: Tensor  # [R, W]
    inputs: Callable[[], tuple[Layout, LayerAttention]]  # the mask of this layout is not read
    replay: Callable[[], Tensor] | None = None  # computes them alone, from a recording

    def hidden_states(self, network: Transformer) -> Tensor:
        """Compute them alone: [R, W, width]."""
        if self.replay is not None:
            return self.replay()
        layout, attention = self.inputs()
        return network.hidden_states(self.tokens, layout, attention=attention)


@dataclass(frozen=True, slots=True)
class Step:
    """What is left to compute for a query, and its logits from the hidden states of the windows."""

    windows: Sequence[Window]
    finish: Callable[[Sequence[Tensor]], Tensor]
    fills: int = 0  # how often whole canvases were computed to prepare it


@runtime_checkable
class Stepping(Protocol):
    """A session whose windows can be computed together with those of others."""

    def prepare(self, query: Query) -> Step:
        """Begin the step of a query; it must be finished before the next one begins."""


def joined(
    network: Transformer, windows: Sequence[Window], width: int, sizes: Sequence[int]
) -> list[Tensor]:
    """Return the hidden states [R, W, ...] of every window.

    What a window gets depends on `width` and `sizes`, but not on the other windows.

    width: windows are padded to so many positions.
    sizes: the numbers of rows whose products are computed at once; the last row of the windows is
        repeated if there are fewer.
    """
    ends = list(accumulate(len(window.tokens) for window in windows))
    index = torch.arange(sum(sizes), device=network.embed.weight.device).clamp(max=ends[-1] - 1)
    rows = index.split(list(sizes))
    places = [
        _places(end - len(window.tokens), end, sizes)
        for end, window in zip(ends, windows, strict=True)
    ]
    inputs = [window.inputs() for window in windows]
    layouts = _layouts(windows, [layout for layout, _ in inputs], width, rows)
    tokens = torch.cat([_wide(window.tokens, 1, width) for window in windows])
    parts: list[Tensor] = [network.embed(tokens.to(index.device)[some]) for some in rows]
    for layer, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        here = next(block.parameters()).device  # blocks may live on several devices
        parts, layouts = [x.to(here) for x in parts], [layout.to(here) for layout in layouts]
        rows = [some.to(here) for some in rows]
        projected = [block.project_qkv(*pair) for pair in zip(parts, layouts, strict=True)]
        attended = []
        for window, place, (_, attention) in zip(windows, places, inputs, strict=True):
            q, k, v = (
                _copied(kind, place, 2, window.tokens.shape[1])
                for kind in zip(*projected, strict=True)
            )
            attended.append(_wide(attention(layer, q, k, v), 2, width))
        together = torch.cat(attended)
        parts = [block.merge(x, together[some]) for x, some in zip(parts, rows, strict=True)]
    return [
        _copied(parts, place, 1, window.tokens.shape[1]).to(network.device)
        for window, place in zip(windows, places, strict=True)
    ]


def _layouts(
    windows: Sequence[Window], own: Sequence[Layout], width: int, rows: Sequence[Tensor]
) -> list[Layout]:
    """Return the angles of the rows of each pass."""
    cos, sin = (
        torch.cat(
            [
                _wide(x.expand(len(window.tokens), -1, -1, -1), 2, width)
                for window, x in zip(windows, angles, strict=True)
            ]
        )
        for angles in ([layout.cos for layout in own], [layout.sin for layout in own])
    )
    return [Layout(cos[some.to(cos.device)], sin[some.to(sin.device)], None) for some in rows]


def _places(first: int, last: int, sizes: Sequence[int]) -> list[tuple[int, slice]]:
    """Return where rows `first` to `last` - 1 are, in parts of these sizes."""
    found, begin = [], 0
    for part, size in enumerate(sizes):
        low, high = max(first, begin), min(last, begin + size)
        if low < high:
            found.append((part, slice(low - begin, high - begin)))
        begin += size
    return found


def _wide(x: Tensor, dim: int, width: int) -> Tensor:
    """Add zeros up to this width."""
    missing = width - x.shape[dim]
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing)) if missing else x


def _copied(
    parts: Sequence[Tensor], places: Sequence[tuple[int, slice]], dim: int, width: int
) -> Tensor:
    """Return some rows of the parts.

    A copy, so that what is computed from it cannot depend on how it lies in the parts.
    """
    return torch.cat([parts[i][some].narrow(dim, 0, width) for i, some in places]).contiguous()

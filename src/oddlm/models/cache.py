"""Our networks during one run: what stays the same between steps is computed once, and with a cache some keys and values too.

A cached step computes a window of the canvas and listens to the keys and values that all other positions had when the cache was
filled last. "prefix" keeps the prompt and the finished blocks: the window goes from the first open block of any row to the end.
"dual" keeps what comes behind as well: the window ends with the last open block of any row. The cache is filled anew when the
window's left end moves, which is when the slowest row finishes a block, and every `refresh` calls.

Masked positions outside the window (dual: the blocks to come) keep the logits of the last filling: no token is chosen there,
but a guide looks at them. With a parallel policy rows open blocks at different steps; as they share a window, a sample then
depends a little on those beside it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from .transformer import Pair, Transformer

Cache = Literal["prefix", "dual"]
CACHES = get_args(Cache)


@dataclass(frozen=True, slots=True)
class Canvas:
    """What a run knows of its canvas from the start."""

    mask_id: int
    start: int
    length: int
    block_length: int
    prompt_lengths: Tensor  # [B]

    @property
    def width(self) -> int:
        return self.start + self.length

    def check(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> None:
        """Refuse the canvas of another run."""
        wanted = (self.start, (len(self.prompt_lengths), self.width), self.prompt_lengths.shape)
        if (start, tuple(tokens.shape), prompt_lengths.shape) != wanted:
            raise ValueError(
                f"this session is for a canvas {wanted[1]} with start {self.start}, not {tuple(tokens.shape)}, {start}"
            )

    def open(self, tokens: Tensor) -> tuple[int, int] | None:
        """From the first open block of any row to the end of the last; None when nothing is masked."""
        masked = tokens[:, self.start :] == self.mask_id
        pending = masked.unflatten(1, (-1, self.block_length)).any(dim=2)  # [B, blocks]
        first = (pending & (pending.cumsum(dim=1) == 1)).any(dim=0).tolist()
        blocks = [i for i, is_open in enumerate(first) if is_open]
        if not blocks:
            return None
        return self.start + blocks[0] * self.block_length, self.start + (blocks[-1] + 1) * self.block_length


class Session:
    """A network for the steps of one run. `computed` counts the positions that went through it."""

    selective = True

    def __init__(self, network: Transformer, canvas: Canvas) -> None:
        self.network, self.canvas = network, canvas
        self.computed = 0
        lengths = canvas.prompt_lengths
        padded = bool((lengths != canvas.start).any())
        layout = network.layout(canvas.width, canvas.start, lengths if padded else lengths[:1])
        self.layout = layout if padded else layout.unpadded()

    @torch.no_grad()
    def __call__(
        self,
        tokens: Tensor,
        start: int,
        prompt_lengths: Tensor,
        nudge: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        self.canvas.check(tokens, start, prompt_lengths)
        return self.predict(tokens, nudge, positions)

    def predict(self, tokens: Tensor, nudge: Tensor | None, positions: Tensor | None) -> Tensor:
        self.computed += tokens.numel()
        return self.network.predict(tokens, self.canvas.start, self.canvas.prompt_lengths, self.layout, nudge, positions)


@dataclass(frozen=True, slots=True)
class Filling:
    """The whole canvas as it was when the cache was filled. Rows that were alike are stored once."""

    low: int  # where the window began
    kept: list[Pair]  # per layer
    logits: Tensor  # [U, L, V]
    rows: Tensor | None  # [B]: which of the U each row was; None where all were different

    def pair(self, layer: int) -> Pair:
        """Keys and values [B, ...] to write the window's into: of rows alike a copy, for as long as the layer takes."""
        keys, values = self.kept[layer]
        return (keys, values) if self.rows is None else (keys[self.rows], values[self.rows])

    def last_logits(self) -> Tensor:
        return self.logits.clone() if self.rows is None else self.logits[self.rows]


class CachedSession(Session):
    """A session that keeps keys and values. `fillings` counts how often it computed them all."""

    selective = False  # it keeps the logits of a whole canvas

    def __init__(self, network: Transformer, canvas: Canvas, cache: Cache, refresh: int | None) -> None:
        super().__init__(network, canvas)
        self.cache, self.refresh = cache, refresh
        self.filling: Filling | None = None
        self.age = self.fillings = 0

    def predict(self, tokens: Tensor, nudge: Tensor | None, positions: Tensor | None) -> Tensor:
        if nudge is not None:
            raise ValueError("a cache keeps what it heard of the prompt and takes no nudge: load the model without cache")
        assert positions is None
        window = self.canvas.open(tokens)
        if window is None and self.filling is not None:
            return self.filling.last_logits()  # all is written: nobody reads them
        low, high = window or (self.canvas.start, self.canvas.width)
        self.age += 1
        if self.filling is None or low != self.filling.low or self.age == self.refresh:
            self.filling, self.age = None, 0  # its memory is free while the next one is made
            self.filling = self.fill(tokens, low)
            return self.filling.last_logits()
        return self.step(tokens, self.filling, self.canvas.width if self.cache == "prefix" else high)

    def fill(self, tokens: Tensor, low: int) -> Filling:
        """Compute everything, rows that are alike once."""
        kept: list[Pair] = []

        def keep(layer: int, keys: Tensor, values: Tensor) -> Pair:
            kept.append((keys, values.contiguous()))  # as a view they would hold on to the queries
            return kept[layer]

        lengths = self.canvas.prompt_lengths
        distinct, rows = torch.cat([lengths[:, None], tokens], dim=1).unique(dim=0, return_inverse=True)
        alike = len(distinct) < len(tokens)
        layout = self.layout
        if alike:
            first = (rows == torch.arange(len(distinct), device=rows.device)[:, None]).int().argmax(dim=1)
            tokens, lengths, layout = tokens[first], lengths[first], layout.take(first)
        self.computed += tokens.numel()
        self.fillings += 1
        x = self.network.outputs(tokens, layout, keep)
        logits = self.network.logits(self.network.predictors(x, self.canvas.start, lengths))
        return Filling(low, kept, logits, rows if alike else None)

    def step(self, tokens: Tensor, filling: Filling, high: int) -> Tensor:
        """Compute the window, which ends at `high`."""
        low, start = filling.low, self.canvas.start
        left = low - 1 if self.network.config.shift and low > 0 else low  # who predicts the first of the window

        def recall(layer: int, keys: Tensor, values: Tensor) -> Pair:
            pair = filling.pair(layer)
            for whole, part in zip(pair, (keys, values), strict=True):
                whole[:, :, left:high] = part
            return pair

        tokens = tokens[:, left:high]
        self.computed += tokens.numel()
        x = self.network.outputs(tokens, self.layout.window(left, high), recall)
        before = self.canvas.prompt_lengths + (low - start)
        logits = filling.last_logits()
        logits[:, low - start : high - start] = self.network.logits(self.network.predictors(x, low - left, before))
        return logits

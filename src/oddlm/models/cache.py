"""Our networks during one run, with a cache: between steps some keys and values are reused, which
is an approximation.

A cached step computes a window of each sample's canvas, which listens to the keys and values that
all other positions had when the sample's cache was filled last. "prefix" keeps the prompt and the
finished blocks: the window goes from the sample's open block to the end. "dual" keeps what comes
behind as well: the window is the open block. A sample's cache is filled anew when it opens its next
block, and every `refresh` steps: samples wait for nobody, and have the window they would have
alone.

Pending positions (dual) keep the logits of the last filling: no token is chosen there, but a guide
looks at them.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.model import Query
from .session import RunSession
from .transformer import Pair, Transformer

Cache = Literal["prefix", "dual"]
CACHES = get_args(Cache)


@dataclass(frozen=True, slots=True)
class Asked:
    """A query as one group of samples sees it: R samples, m positions each."""

    rows: Tensor  # [R]: which of the samples that the session began with
    tokens: Tensor  # [R, T]
    positions: Tensor  # [R, m], counted from `start`
    lows: list[int]  # where the open block of each begins, counted from `start`

    def take(self, members: list[int]) -> "Asked":
        some = torch.tensor(members, device=self.rows.device)
        return Asked(
            self.rows[some],
            self.tokens[some],
            self.positions[some],
            [self.lows[i] for i in members],
        )


class CachedSession(RunSession):
    """A session that keeps keys and values.

    `fillings` counts the samples whose cache was filled, alike ones once.
    """

    def __init__(
        self, network: Transformer, first: Query, cache: Cache, refresh: int | None
    ) -> None:
        super().__init__(network, first)
        self.cache, self.refresh = cache, refresh
        self.block = _longest_block(first)
        many = len(first.tokens)
        self.low = [-1] * many  # where each sample's open block began when its cache was filled
        self.age = [0] * many
        self.kept: list[Pair] = []  # per layer, [B, key heads, T, head]
        self.pending: Tensor | None = (
            None  # [B, L, V]: logits of the last filling, where somebody reads them again
        )
        self.fillings = 0

    @torch.no_grad()
    def __call__(self, query: Query) -> Tensor:
        self.check(query)
        self.next += 1
        if query.nudge is not None:
            raise ValueError(
                "a cache keeps what it heard of the prompt and takes no nudge: load the model without cache"
            )
        R, device = len(query.tokens), query.tokens.device
        some = self.places(query)
        rows = torch.arange(R, device=device) if some is None else some
        places = torch.arange(self.width - self.start, device=device).expand(R, -1)
        lows = _low(query).tolist()  # waits for the device: what is to be filled is decided here
        asked = Asked(
            rows, query.tokens, places if query.positions is None else query.positions, lows
        )
        groups: dict[
            int | None, list[int]
        ] = {}  # by where their windows begin; None: those to be filled
        for i, row in enumerate(range(R) if some is None else rows.tolist()):
            groups.setdefault(self._window(row, lows[i]), []).append(i)
        parts = {
            low: self._answer(asked if len(groups) == 1 else asked.take(who), low)
            for low, who in groups.items()
        }
        if len(parts) == 1:
            return parts.popitem()[1]
        order = torch.tensor([i for who in groups.values() for i in who], device=device)
        return torch.cat(list(parts.values()))[order.argsort()]

    def _window(self, row: int, low: int) -> int | None:
        """Where the window of a sample begins, or 0 where all of them are as long; None: its cache
        is to be filled.
        """
        self.age[row] += 1
        if low != self.low[row] or self.age[row] == self.refresh:
            self.low[row], self.age[row] = low, 0
            return None
        return low if self.cache == "prefix" else 0

    def _answer(self, asked: Asked, low: int | None) -> Tensor:
        if low is None:
            return self._fill(asked)
        return self._step(
            asked, self.width - self.start - low if self.cache == "prefix" else self.block
        )

    def _fill(self, asked: Asked) -> Tensor:
        """Compute everything, samples that are alike once."""
        lengths = self.prompt_lengths[asked.rows]
        distinct, which = torch.cat([lengths[:, None], asked.tokens], dim=1).unique(
            dim=0, return_inverse=True
        )
        alike, everybody = len(distinct) < len(which), len(asked.rows) == len(self.low)
        first = torch.arange(len(which), device=which.device)
        if alike:
            first = (which == first[: len(distinct), None]).int().argmax(dim=1)
        tokens = asked.tokens[first]
        self.computed += tokens.numel()
        self.fillings += len(tokens)

        def keep(layer: int, keys: Tensor, values: Tensor) -> Pair:
            here = which.to(keys.device)
            new = (
                (keys[here], values[here]) if alike else (keys, values.contiguous())
            )  # a view would hold the queries
            if everybody:
                self.kept[layer : layer + 1] = [new]
            else:
                for kept, part in zip(self.kept[layer], new, strict=True):
                    kept[asked.rows.to(keys.device)] = part
            return keys, values

        x = self.network.outputs(tokens, self.layout(asked.rows[first]), keep)
        x = self.network.predictors(x, self.start, lengths[first])
        logits = self._logits(x[which] if alike else x, asked.positions)
        if self.cache == "dual" and asked.positions.shape[1] > self.block:
            if self.pending is None:
                self.pending = logits.new_zeros(
                    len(self.low), self.width - self.start, logits.shape[2]
                )
            self.pending[asked.rows[:, None], asked.positions] = logits
        return logits

    def _step(self, asked: Asked, wide: int) -> Tensor:
        """Compute the window of each sample, `wide` positions from its open block on."""
        ahead = (
            1 if self.network.config.shift else 0
        )  # who predicts the first of the window stands before it
        most = self.width - self.start - wide
        lows = [min(low, most) for low in asked.lows]
        everybody = len(asked.rows) == len(self.low)
        together = everybody and len(set(lows)) == 1 and self.start + lows[0] >= ahead
        begins = self.start + lows[0] - ahead
        low = torch.tensor(lows, device=asked.rows.device)[:, None]  # [R, 1]
        window = (self.start + low - ahead + torch.arange(wide + ahead, device=low.device)).clamp(
            min=0
        )  # [R, W]

        def recall(layer: int, keys: Tensor, values: Tensor) -> Pair:
            pair = self.kept[layer]
            rows, places = asked.rows.to(keys.device)[:, None], window.to(keys.device)
            for kept, part in zip(pair, (keys, values), strict=True):
                if together:
                    kept[:, :, begins : begins + wide + ahead] = part
                else:
                    kept[rows, :, places] = part.transpose(1, 2)
            return pair if everybody else (pair[0][rows[:, 0]], pair[1][rows[:, 0]])

        tokens = asked.tokens.gather(1, window)
        self.computed += tokens.numel()
        layout = (
            self._layout.window(begins, begins + wide + ahead)
            if together
            else self._layout.gather(asked.rows, window)
        )
        x = self.network.outputs(tokens, layout, recall)
        if ahead:
            alone = (self.prompt_lengths[asked.rows][:, None] + low == 0)[
                ..., None
            ]  # nobody stands before it
            x = torch.cat([torch.where(alone, x[:, 1:2], x[:, :1]), x[:, 1:-1]], dim=1)
        fresh = min(
            wide, asked.positions.shape[1]
        )  # positions ascend: those of the window come first
        place = asked.positions[:, :fresh] - low
        logits = self._logits(x, place.clamp(0, wide - 1))
        if self.pending is None:
            return logits
        old = self.pending[asked.rows[:, None], asked.positions]
        old[:, :fresh] = torch.where(
            ((place >= 0) & (place < wide))[..., None], logits, old[:, :fresh]
        )
        return old

    def _logits(self, x: Tensor, positions: Tensor) -> Tensor:
        """The head on some positions of x [R, W, width]."""
        if positions.shape[1] < x.shape[1] or positions.stride(0):
            x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))
        return self.network.logits(x)


def _longest_block(query: Query) -> int:
    """Positions of the longest block of any sample."""
    ids = query.blocks.ids
    counts = torch.zeros(len(ids), query.blocks.count, dtype=torch.long, device=ids.device)
    return int(counts.scatter_add_(1, ids, torch.ones_like(ids)).max())


def _low(query: Query) -> Tensor:
    """[R]: where each sample's open block begins, counted from `start`."""
    blocks = query.blocks
    here: Tensor = blocks.ids == blocks.current.clamp(max=blocks.count - 1)[:, None]
    return here.byte().argmax(dim=1)

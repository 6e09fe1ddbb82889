"""Sessions with a KV cache, which reuse some keys and values between steps.

This is an approximation. A cached step computes only a window of each sample's canvas; the window
attends to the keys and values that all other positions had when the sample's cache was last filled.

- "prefix" reuses the prompt and the finished blocks. The window runs from the open block to the
  end.
- "dual" also reuses the positions after the open block. The window is the open block.

A sample's cache is refilled when the sample opens its next block, and every `refresh` steps. Each
sample does so independently: its windows are the same alone and in a batch.

With "dual", pending positions keep the logits of the last fill. No token is chosen there, but a
guide reads them.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.model import Query
from .session import RunSession
from .transformer import KV, Transformer

Cache = Literal["prefix", "dual", "off"]
CACHES = ("prefix", "dual")


@dataclass(frozen=True, slots=True)
class Group:
    """The part of a query that concerns R samples computed together, m positions each."""

    samples: Tensor  # [R]: indices among the samples of the session
    tokens: Tensor  # [R, T]
    positions: Tensor  # [R, m], counted from `start`
    lows: list[int]  # first position of each sample's open block, counted from `start`

    def take(self, members: list[int]) -> "Group":
        index = torch.tensor(members, device=self.samples.device)
        return Group(
            self.samples[index],
            self.tokens[index],
            self.positions[index],
            [self.lows[i] for i in members],
        )


class CachedSession(RunSession):
    """A session that keeps keys and values.

    `fills` counts the samples whose cache was filled; identical samples count once.
    """

    def __init__(
        self, network: Transformer, first: Query, cache: Cache, refresh: int | None
    ) -> None:
        super().__init__(network, first)
        self.cache, self.refresh = cache, refresh
        self.block = _longest_block(first)
        count = len(first.tokens)
        self.low = [-1] * count  # first position of each sample's open block at its last fill
        self.age = [0] * count  # steps since the last fill
        self.kv: list[KV] = []  # per layer, [B, key heads, T, head]
        # [B, L, V]: logits of the last fill, if they will be read again
        self.pending: Tensor | None = None
        self.fills = 0

    @torch.no_grad()
    def __call__(self, query: Query) -> Tensor:
        self.check(query)
        self.next += 1
        if query.nudge is not None:
            raise ValueError(
                "a cached model cannot take a nudge, because it reuses the keys and values of the "
                "prompt: load the model without cache"
            )
        R, device = len(query.tokens), query.tokens.device
        index = self.indices(query)
        samples = torch.arange(R, device=device) if index is None else index
        positions = query.positions
        if positions is None:
            positions = torch.arange(self.width - self.start, device=device).expand(R, -1)
        lows = _low(query).tolist()  # synchronises: which samples to fill is decided on the host
        group = Group(samples, query.tokens, positions, lows)
        # members by the start of their windows; None: those whose cache must be filled
        members: dict[int | None, list[int]] = {}
        for i, sample in enumerate(range(R) if index is None else samples.tolist()):
            members.setdefault(self._window(sample, lows[i]), []).append(i)
        parts = {
            low: self._logits_of(group if len(members) == 1 else group.take(some), low)
            for low, some in members.items()
        }
        if len(parts) == 1:
            return parts.popitem()[1]
        order = torch.tensor([i for some in members.values() for i in some], device=device)
        return torch.cat(list(parts.values()))[order.argsort()]

    def _window(self, sample: int, low: int) -> int | None:
        """Return a key for samples with windows of equal length, or None if a fill is due.

        With "prefix" the key is the start of the window; with "dual" it is 0 for all samples.
        """
        self.age[sample] += 1
        if low != self.low[sample] or self.age[sample] == self.refresh:
            self.low[sample], self.age[sample] = low, 0
            return None
        return low if self.cache == "prefix" else 0

    def _logits_of(self, group: Group, low: int | None) -> Tensor:
        if low is None:
            return self._fill(group)
        width = self.width - self.start - low if self.cache == "prefix" else self.block
        return self._step(group, width)

    def _fill(self, group: Group) -> Tensor:
        """Compute the whole canvas; identical samples are computed once."""
        lengths = self.prompt_lengths[group.samples]
        distinct, inverse = torch.cat([lengths[:, None], group.tokens], dim=1).unique(
            dim=0, return_inverse=True
        )
        repeated, all_samples = len(distinct) < len(inverse), len(group.samples) == len(self.low)
        first = torch.arange(len(inverse), device=inverse.device)
        if repeated:
            first = (inverse == first[: len(distinct), None]).int().argmax(dim=1)
        tokens = group.tokens[first]
        self.computed += tokens.numel()
        self.fills += len(tokens)

        def store(layer: int, keys: Tensor, values: Tensor) -> KV:
            here = inverse.to(keys.device)
            # contiguous: a view would keep the queries in memory
            new = (keys[here], values[here]) if repeated else (keys, values.contiguous())
            if all_samples:
                self.kv[layer : layer + 1] = [new]
            else:
                for cached, part in zip(self.kv[layer], new, strict=True):
                    cached[group.samples.to(keys.device)] = part
            return keys, values

        x = self.network.hidden_states(tokens, self.layout(group.samples[first]), store)
        x = self.network.predictors(x, self.start, lengths[first])
        logits = self._head(x[inverse] if repeated else x, group.positions)
        if self.cache == "dual" and group.positions.shape[1] > self.block:
            if self.pending is None:
                self.pending = logits.new_zeros(
                    len(self.low), self.width - self.start, logits.shape[2]
                )
            self.pending[group.samples[:, None], group.positions] = logits
        return logits

    def _step(self, group: Group, width: int) -> Tensor:
        """Compute each sample's window: `width` positions from its open block on."""
        # with a shift, the first position of the window is predicted by the one before it
        ahead = 1 if self.network.config.shift else 0
        highest = self.width - self.start - width
        lows = [min(low, highest) for low in group.lows]
        all_samples = len(group.samples) == len(self.low)
        aligned = all_samples and len(set(lows)) == 1 and self.start + lows[0] >= ahead
        begin = self.start + lows[0] - ahead
        end = begin + width + ahead
        low = torch.tensor(lows, device=group.samples.device)[:, None]  # [R, 1]
        offsets = torch.arange(width + ahead, device=low.device)
        window = (self.start + low - ahead + offsets).clamp(min=0)  # [R, W]

        def update(layer: int, keys: Tensor, values: Tensor) -> KV:
            pair = self.kv[layer]
            samples, positions = group.samples.to(keys.device)[:, None], window.to(keys.device)
            for cached, part in zip(pair, (keys, values), strict=True):
                if aligned:
                    cached[:, :, begin:end] = part
                else:
                    cached[samples, :, positions] = part.transpose(1, 2)
            return pair if all_samples else (pair[0][samples[:, 0]], pair[1][samples[:, 0]])

        tokens = group.tokens.gather(1, window)
        self.computed += tokens.numel()
        if aligned:
            layout = self._layout.window(begin, end)
        else:
            layout = self._layout.gather(group.samples, window)
        x = self.network.hidden_states(tokens, layout, update)
        if ahead:
            # without a token before it, the first position predicts itself
            alone = (self.prompt_lengths[group.samples][:, None] + low == 0)[..., None]
            x = torch.cat([torch.where(alone, x[:, 1:2], x[:, :1]), x[:, 1:-1]], dim=1)
        # positions ascend, so those inside the window come first
        fresh = min(width, group.positions.shape[1])
        offset = group.positions[:, :fresh] - low
        logits = self._head(x, offset.clamp(0, width - 1))
        if self.pending is None:
            return logits
        result = self.pending[group.samples[:, None], group.positions]
        inside = ((offset >= 0) & (offset < width))[..., None]
        result[:, :fresh] = torch.where(inside, logits, result[:, :fresh])
        return result

    def _head(self, x: Tensor, positions: Tensor) -> Tensor:
        """Run the output head on `positions` of x [R, W, width]."""
        if positions.shape[1] < x.shape[1] or positions.stride(0):
            x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))
        return self.network.logits(x)


def _longest_block(query: Query) -> int:
    """Return the length of the longest block of any sample."""
    ids = query.blocks.ids
    counts = torch.zeros(len(ids), query.blocks.count, dtype=torch.long, device=ids.device)
    return int(counts.scatter_add_(1, ids, torch.ones_like(ids)).max())


def _low(query: Query) -> Tensor:
    """Return the first position of each sample's open block, [R], counted from `start`."""
    blocks = query.blocks
    here: Tensor = blocks.ids == blocks.current.clamp(max=blocks.count - 1)[:, None]
    return here.byte().argmax(dim=1)

"""Sessions with a KV cache, which reuse some keys and values between steps.

This is an approximation. A cached step computes only a window of each sample's canvas; the window
attends to the keys and values that all other positions had when the sample's cache was last filled.

- "prefix" reuses the prompt and the finished blocks. The window runs from the open block to the
  end.
- "dual" also reuses the positions after the open block. The window is the open block.

A sample's cache is refilled when the sample opens its next block, and every `refresh` steps. Each
sample does so independently: its windows are the same alone and in a batch.

With "dual", the positions after the open block are those of the last fill, so nobody reads their
logits, not even a guide: what is asked of them is answered with those of another position.

Attention is bidirectional, so the keys and values of a prompt depend on the answer behind it, and
samples can share them for as long as their whole canvases were alike when the cache was filled: as
a rule, in the first block, which all samples of a prompt begin with the same masks. Such a fill is
computed and held once. A step then attends to it and to the keys and values of its own window; the
next fill gives every sample rows of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..core.model import Query
from .attention import KeptMembers, Source, attend
from .graphs import Recorder, Replays
from .session import RunSession, alike, column
from .transformer import KV, Layout, Transformer
from .windows import LayerAttention, Step, Window

Cache = Literal["prefix", "dual", "off"]
CACHES = ("prefix", "dual")
AT_ONCE = 2048  # positions of a fill in one pass: enough to keep a GPU busy


@dataclass(frozen=True, slots=True)
class Group:
    """The part of a query that concerns R samples computed together, m positions each."""

    numbers: list[int]  # R indices among the samples of the session
    samples: Tensor  # [R]: the same
    tokens: Tensor  # [R, T]
    positions: Tensor  # [R, m], counted from `start`
    lows: list[int]  # first position of each sample's open block, counted from `start`

    def take(self, members: list[int]) -> "Group":
        """Return some of them, in ascending order."""
        if len(members) == len(self.numbers):
            return self
        index = torch.tensor(members, device=self.samples.device)
        return Group(
            [self.numbers[i] for i in members],
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
        self,
        network: Transformer,
        first: Query,
        cache: Cache,
        refresh: int | None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(network, first)
        self.cache, self.refresh = cache, refresh
        self.block = _longest_block(first)
        count = len(first.tokens)
        self.low = [-1] * count  # first position of each sample's open block at its last fill
        self.age = [0] * count  # steps since the last fill
        self.kv: list[KV] = []  # per layer, [rows, key heads, T, head]
        self.owners: list[int] | None = None  # the row of each sample; None: each has its own
        self.fills = 0
        # all windows are equally wide, and of a prefix cache they only become narrower
        self._replays = None if recorder is None else Replays(recorder, most=1)
        self._members = KeptMembers(self.prompt_lengths.device)

    @property
    def nbytes(self) -> int:
        """The memory of the keys and values that are held."""
        return sum(x.nbytes for pair in self.kv for x in pair)

    @torch.no_grad()
    def __call__(self, query: Query) -> Tensor:
        step = self.prepare(query)
        return step.finish([window.hidden_states(self.network) for window in step.windows])

    @torch.no_grad()
    def prepare(self, query: Query) -> Step:
        """Fill the caches that are due, and return the windows of the other samples."""
        self.check(query)
        if query.nudge is not None:
            raise ValueError(
                "a cached model cannot take a nudge, because it reuses the keys and values of the "
                "prompt: load the model without cache"
            )
        self.next += 1
        R, device = len(query.tokens), query.tokens.device
        index = self.indices(query)
        if index is not None and self._replays is not None:
            self._replays.forget()  # they compute all samples, and those that left do not return
        numbers = self.numbers(index)
        samples = torch.arange(R, device=device) if index is None else index
        positions = query.positions
        if positions is None:
            positions = torch.arange(self.width - self.start, device=device).expand(R, -1)
        group = Group(numbers, samples, query.tokens, positions, _lows(query))
        due: list[int] = []  # those whose cache must be filled
        members: dict[int, list[int]] = {}  # the others, by the width of their windows
        for i, sample in enumerate(numbers):
            width = self._window(sample, group.lows[i])
            (due if width is None else members.setdefault(width, [])).append(i)
        # the fill comes first: it may give samples keys and values of their own
        filled = [self._fill(group.take(due))] if due else []
        asked = [self._asked(group.take(some), width) for width, some in members.items()]

        def finish(states: Sequence[Tensor]) -> Tensor:
            parts = filled + [logits(x) for (_, logits), x in zip(asked, states, strict=True)]
            if len(parts) == 1:
                return parts[0]
            order = [*due, *(i for some in members.values() for i in some)]
            return torch.cat(parts)[torch.tensor(order, device=device).argsort()]

        return Step([window for window, _ in asked], finish, len(filled))

    def _window(self, sample: int, low: int) -> int | None:
        """Return the width of a sample's window, or None if a fill is due."""
        self.age[sample] += 1
        if low != self.low[sample] or self.age[sample] == self.refresh:
            self.low[sample], self.age[sample] = low, 0
            return None
        return self.width - self.start - low if self.cache == "prefix" else self.block

    def _fill(self, group: Group) -> Tensor:
        """Compute the whole canvas; identical samples are computed once."""
        lengths = self.prompt_lengths[group.samples]
        first, inverse = alike(group.tokens, lengths)
        owners = inverse.tolist()  # synchronises, as finding them does
        together = len(group.samples) == len(self.low)
        shared = together and _shareable(owners)
        if together:
            self.owners = None  # all keys and values are replaced
        else:
            self._part()
        rows = len(first) if shared else len(self.low)
        if shared or not self.kv or len(self.kv[0][0]) != rows:
            self._moved()
        tokens = group.tokens[first]
        self.computed += tokens.numel()
        self.fills += len(tokens)
        parts = []
        most = -(-len(first) // -(-len(first) * self.width // AT_ONCE))
        for low in range(0, len(first), most):
            part = slice(low, low + most)
            own = range(low, min(low + most, len(first)))
            if shared:
                pairs = [(i - low, i) for i in own]
            else:
                kept = zip(owners, group.numbers, strict=True)
                pairs = [(owner - low, number) for owner, number in kept if owner in own]
            store = self._store(rows, pairs)
            here = self.layout(group.samples[first[part]])
            x = self.network.hidden_states(tokens[part], here, store)
            parts.append(self.network.predictors(x, self.start, lengths[first[part]]))
        self.owners = owners if shared else None
        logits = self._head(torch.cat(parts), group.positions[first])
        return logits if len(first) == len(inverse) else logits[inverse]

    def _store(
        self, rows: int, pairs: list[tuple[int, int]]
    ) -> Callable[[int, Tensor, Tensor], KV]:
        """Return a function that keeps keys and values; pairs: which of them, and where."""
        first = pairs[0][1]
        in_order = pairs == [(i, first + i) for i in range(len(pairs))]
        index = torch.tensor(pairs, device=self.prompt_lengths.device)

        def store(layer: int, keys: Tensor, values: Tensor) -> KV:
            if layer == len(self.kv) or len(self.kv[layer][0]) != rows:
                empty = (x.new_empty(rows, *x.shape[1:]) for x in (keys, values))
                self.kv[layer : layer + 1] = [(next(empty), next(empty))]
            for cached, new in zip(self.kv[layer], (keys, values), strict=True):
                if in_order:
                    cached[first : first + len(pairs)] = new
                else:
                    source, target = index.to(new.device).unbind(dim=1)
                    cached[target] = new[source]
            return keys, values

        return store

    def _part(self) -> None:
        """Give every sample keys and values of its own."""
        if self.owners is None:
            return
        self._moved()
        for layer, (keys, values) in enumerate(self.kv):
            rows = torch.tensor(self.owners, device=keys.device)
            self.kv[layer] = keys[rows], values[rows]
        self.owners = None

    def _moved(self) -> None:
        """Note that keys and values are no longer where recorded steps read them."""
        if self._replays is not None:
            self._replays.forget()

    def _asked(self, group: Group, width: int) -> tuple[Window, Callable[[Tensor], Tensor]]:
        """Return the windows of some samples, and the logits of their hidden states.

        A window is `width` positions from the open block on.
        """
        # with a shift, the first position of the window is predicted by the one before it
        ahead = 1 if self.network.config.shift else 0
        highest = self.width - self.start - width
        lows = [min(low, highest) for low in group.lows]
        low = column(lows, group.samples.device)
        offsets = torch.arange(width + ahead, device=low.device)
        places = self.start + low - ahead + offsets  # [R, W]
        tokens = group.tokens.gather(1, places.clamp(min=0))
        self.computed += tokens.numel()
        begin = self.start + lows[0] - ahead
        aligned = len(set(lows)) == 1 and begin >= 0
        span = slice(begin, begin + width + ahead) if aligned else None
        window = Window(
            tokens,
            partial(self._inputs, group.samples, group.numbers, places, span),
            partial(self._replays, self._whole, tokens, places)
            if self._replays is not None and len(group.samples) == len(self.low)
            else None,
        )
        return window, partial(self._logits, group, low)

    def _logits(self, group: Group, low: Tensor, x: Tensor) -> Tensor:
        """Return the logits of windows from `low` [R, 1] on, whose hidden states are x."""
        if self.network.config.shift:
            # without a token before it, the first position predicts itself
            alone = (self.prompt_lengths[group.samples][:, None] + low == 0)[..., None]
            x = torch.cat([torch.where(alone, x[:, 1:2], x[:, :1]), x[:, 1:-1]], dim=1)
        return self._head(x, (group.positions - low).clamp(0, x.shape[1] - 1))

    def _whole(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Compute the windows of all samples from tensors alone, so that it can be recorded."""
        numbers = list(range(len(self.low)))
        samples = torch.arange(len(numbers), device=tokens.device)
        window = Window(tokens, partial(self._inputs, samples, numbers, places, None))
        return window.hidden_states(self.network)

    def _inputs(
        self, samples: Tensor, numbers: list[int], places: Tensor, span: slice | None
    ) -> tuple[Layout, LayerAttention]:
        """Return layout and attention of windows at `places` [R, W]; `span`, if all are equal."""
        window, every = places.clamp(min=0), len(numbers) == len(self.low)
        if span is not None and every:
            layout = self._layout.window(span.start, span.stop)
        else:
            layout = self._layout.gather(samples, window)
        if self.owners is not None:
            return layout, self._shared_attention(samples, numbers, places)

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            pair = self.kv[layer]
            own, positions = samples.to(k.device)[:, None], window.to(k.device)
            for cached, part in zip(pair, (k, v), strict=True):
                if span is not None and every:
                    cached[:, :, span] = part
                else:
                    _wide(cached)[own, :, positions] = _wide(part.transpose(1, 2))
            keys, values = pair if every else (pair[0][own[:, 0]], pair[1][own[:, 0]])
            return self.network.attend(layer, q, keys, values, layout.mask)

        return layout, attention

    def _shared_attention(
        self, samples: Tensor, numbers: list[int], places: Tensor
    ) -> LayerAttention:
        """Return the attention of windows at `places` [R, W] to shared keys and to their own."""
        assert self.owners is not None
        owners, every = tuple(self.owners[i] for i in numbers), len(numbers) == len(self.low)
        rows, members = self._members.of(owners, every)
        padding = self.start - self.prompt_lengths[samples][:, None]
        columns = torch.arange(self.width, device=places.device)
        # the shared keys of the window's own positions are those of the last fill
        outside = (columns < places[:, :1]) | (columns > places[:, -1:])
        mask = torch.cat([outside & (columns >= padding), places >= padding], dim=1)[:, None, None]

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.kv[layer]
            if len(members.samples) < len(keys):
                here = rows.to(keys.device)
                keys, values = keys[here], values[here]
            return attend(q, [Source(keys, values, members), Source(k, v)], mask)

        return attention

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


def _lows(query: Query) -> list[int]:
    """Return the first position of each sample's open block, counted from `start`.

    Which samples to fill is decided on the host, so this waits for a GPU if the query does not say.
    """
    if query.low is not None:
        return [query.low] * len(query.tokens)
    blocks = query.blocks
    here = blocks.ids == blocks.current.clamp(max=blocks.count - 1)[:, None]
    lows: list[int] = here.byte().argmax(dim=1).tolist()
    return lows


def _wide(x: Tensor) -> Tensor:
    """Return the same bits as fewer, wider numbers if they fit, which are scattered faster."""
    fits = not x.shape[-1] * x.itemsize % torch.int64.itemsize
    return (x if x.stride(-1) == 1 else x.contiguous()).view(torch.int64) if fits else x


def _shareable(owners: list[int]) -> bool:
    """Return whether sharing rows saves at least half of them and costs at most twice the work.

    The rows of one product are padded to the largest group of samples.
    """
    rows = len(set(owners))
    most = max(owners.count(row) for row in set(owners))
    return 2 * rows <= len(owners) and rows * most <= 2 * len(owners)

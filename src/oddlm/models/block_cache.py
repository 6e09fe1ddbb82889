"""The session of block-causal networks, with an exact KV cache.

A position attends to its own block and to the blocks before it, so the keys and values of a block
are final once its tokens are. A step computes a window of each sample: the open block, preceded by
the blocks that were finished since the last step. The window attends to the keys and values that
are held of all earlier blocks. Those of its finished blocks are added to them; those of the open
block are not kept. So each block is computed once with its final tokens, in the pass that opens the
next one.

The full blocks of a prompt are computed and held once for all of its samples. The rest of the
prompt shares a block with the first tokens of the answer and is computed for each sample. If the
context is causal, blocks begin with the answer, and the whole prompt is held.

If steps are recorded (`oddlm.models.graphs`), a window attends to all the room that the cache has,
with what is not held hidden, so that the shapes stay the same until the cache grows.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..core.model import Query
from .attention import KeptMembers, Members, Source, attend
from .graphs import Recorder, Replays
from .session import RunSession, column
from .transformer import KV, Layout, Transformer

ROOM = 128  # the cache of the samples grows by this many positions at a time, or doubles


@dataclass(frozen=True, slots=True)
class Window:
    """The windows of R samples of a session, W positions each, and what they attend to."""

    samples: Tensor  # [R]: indices among the samples of the session
    slots: Tensor  # [R, W - block length]: where the cache keeps the finished positions
    prompts: Tensor  # [P]: the prompts of these samples
    members: Members  # the samples of each prompt
    from_prompt: int  # the most positions that are read of a prompt
    from_sample: int  # the most positions that are read of a sample
    mask: Tensor | None
    """[R, 1, W, from_prompt + from_sample + W]: False if hidden; None if all are visible."""


class BlockSession(RunSession):
    """A session that keeps the keys and values of all blocks before the open one."""

    def __init__(
        self, network: Transformer, first: Query, recorder: Recorder | None = None
    ) -> None:
        super().__init__(network, first)
        assert network.config.block_length is not None
        self.free = network.config.causal_context
        # a block of the run, or else of the network
        self.block = (
            int((first.blocks.ids[0] == 0).sum()) if self.free else network.config.block_length
        )
        # Of each sample: the length of its prompt, which prompt that is, how many of its positions
        # are in full blocks, and how many of the answer are held.
        self.lengths: list[int] = first.prompt_lengths.tolist()
        self.prompt: list[int] = []
        self.shared = [n if self.free else n // self.block * self.block for n in self.lengths]
        self.held = [0] * len(self.lengths)
        self.prompt_kv: list[KV] = []  # per layer, [prompts, key heads, positions, head]
        self.sample_kv: list[KV] = []  # per layer, [samples, key heads, positions, head]
        self.before: Tensor | None = None
        """[samples, width]: with a shift, the hidden state before the window, which predicts its
        first position."""
        self._replays = None if recorder is None else Replays(recorder)
        self._members = KeptMembers(self.prompt_lengths.device)
        self._begins = column(self.shared, self.prompt_lengths.device)

    @property
    def nbytes(self) -> int:
        """The memory of the keys and values that are held."""
        return sum(x.nbytes for pair in (*self.prompt_kv, *self.sample_kv) for x in pair)

    @property
    def room(self) -> int:
        """The positions that the cache has memory for, in each sample."""
        return self.sample_kv[0][0].shape[2] if self.sample_kv else 0

    @torch.no_grad()
    def __call__(self, query: Query) -> Tensor:
        self.check(query)
        if query.nudge is not None:
            raise ValueError(
                "a cached model cannot take a nudge, because it reuses the keys and values of the "
                "prompt: load the model with cache='off'"
            )
        self._drop(query)
        if not self.prompt:
            self._read_prompts(query.tokens)
        lows = self._lows(query)
        members: dict[int, list[int]] = {}  # by the width of their windows
        for i, (low, held) in enumerate(zip(lows, self.held, strict=True)):
            members.setdefault(low - held + self.block, []).append(i)
        parts = [self._logits(query, some, width) for width, some in members.items()]
        self.held = lows  # only now, so that a failed query can be repeated
        self.next += 1
        if len(parts) == 1:
            return parts[0]
        order = torch.tensor([i for some in members.values() for i in some])
        return torch.cat(parts)[order.argsort().to(query.tokens.device)]

    def _lows(self, query: Query) -> list[int]:
        """Return where the open block of each sample begins, counted from the full blocks of its
        prompt.

        The windows are chosen on the host, so this waits for a GPU if the query does not say.
        """
        if query.low is not None:
            first = [query.low] * len(self.lengths)
        else:
            left = query.blocks.unfinished
            last = left.shape[1] - 1
            first = left.byte().argmax(dim=1).where(left.any(dim=1), last).tolist()
        # the first positions of an answer may share a block with the end of the prompt
        rests = [n - shared for n, shared in zip(self.lengths, self.shared, strict=True)]
        return [(rest + i) // self.block * self.block for rest, i in zip(rests, first, strict=True)]

    def _drop(self, query: Query) -> None:
        """Free the memory of samples that have ended, and of prompts without samples."""
        index = self.indices(query)
        if index is None:
            return
        _take(self.sample_kv, index)
        if self.before is not None:
            self.before = self.before[index]
        kept = index.tolist()
        owners = [self.prompt[i] for i in kept]
        used = {prompt: i for i, prompt in enumerate(sorted(set(owners)))}
        if len(used) < len(set(self.prompt)):
            _take(self.prompt_kv, torch.tensor(list(used)))
        self.prompt = [used[prompt] for prompt in owners]
        self.lengths, self.shared, self.held = (
            [x[i] for i in kept] for x in (self.lengths, self.shared, self.held)
        )
        self.samples, self.prompt_lengths = query.samples, query.prompt_lengths
        self._begins = self._begins[index]
        self._moved()

    def _moved(self) -> None:
        """Note that keys and values are no longer where recorded steps read them."""
        if self._replays is not None:
            self._replays.forget()

    def _read_prompts(self, tokens: Tensor) -> None:
        """Compute the full blocks of the prompts, those of equal prompts once."""
        network, widest, shift = self.network, max(self.shared), self.network.config.shift
        if shift:
            self.before = network.norm.weight.new_zeros(len(tokens), network.config.width)
        if not widest:
            self.prompt = [0] * len(tokens)
            return
        places = torch.arange(widest, device=tokens.device)[None]
        shared = self._begins
        columns = (self.start - self.prompt_lengths)[:, None] + places
        own = tokens.gather(1, columns.clamp(max=self.width - 1)).masked_fill(places >= shared, -1)
        distinct, owner = own.unique(dim=0, return_inverse=True)

        def store(layer: int, keys: Tensor, values: Tensor) -> KV:
            # contiguous: a view would keep the queries in memory
            self.prompt_kv[layer : layer + 1] = [(keys.contiguous(), values.contiguous())]
            return keys, values

        # Shorter prompts are padded on the right: nothing before the padding attends to it.
        real = torch.ones_like(places, dtype=torch.bool)[:, None, None]
        first = max(min(self.shared) - 1, 0) if shift else widest - 1  # that predicts another
        x = network.hidden_states(
            distinct.clamp(min=0),
            Layout(*network.rope(places), network.visible(places, real)),
            store,
            query_start=first,
            last_mlp=False,
        )
        self.computed += distinct.numel()
        if shift:
            last = (shared - 1 - first).clamp(min=0)[..., None].expand(-1, -1, x.shape[2])
            self.before = x[owner].gather(1, last).squeeze(1)
        self.prompt = owner.tolist()

    def _logits(self, query: Query, some: list[int], width: int) -> Tensor:
        """Compute the windows of some samples, all of this width, and return their logits."""
        network, device, finished = self.network, query.tokens.device, width - self.block
        every = len(some) == len(self.lengths)
        samples = torch.arange(len(some), device=device)
        if not every:
            samples = torch.tensor(some, device=device)
        begin = self._begins[samples]
        held = [self.held[i] for i in some]
        low = column(held, device)
        lengths = self.prompt_lengths[samples][:, None]
        columns = begin + low + (self.start - lengths) + torch.arange(width, device=device)
        tokens = query.tokens[samples].gather(1, columns.clamp(max=self.width - 1))
        self._reserve(max(held) + finished)
        if self._replays is not None and every:
            x = self._replays(self._whole, tokens, low)
        else:
            x = self._hidden_states(samples, some, tokens, low, max(held))
        self.computed += tokens.numel()
        if self.before is not None and finished:
            self.before[samples] = x[:, 0]
        elif self.before is not None:
            x = torch.cat([self.before[samples][:, None], x], dim=1)
        positions = torch.arange(self.width - self.start, device=device)
        if query.positions is not None:
            positions = query.positions[samples]
        first = begin + low + finished
        offsets = (lengths + positions - first).clamp(0, self.block - 1)
        return network.finish(x, int(network.config.shift), first[:, 0], offsets)

    def _whole(self, tokens: Tensor, low: Tensor) -> Tensor:
        """Compute the windows of all samples from tensors alone, so that it can be recorded."""
        numbers = list(range(len(tokens)))
        samples = torch.arange(len(tokens), device=tokens.device)
        return self._hidden_states(samples, numbers, tokens, low, self.room)

    def _hidden_states(
        self, samples: Tensor, some: list[int], tokens: Tensor, low: Tensor, read: int
    ) -> Tensor:
        """Return the hidden states of windows that begin at `low` [R, 1] of the answer.

        read: positions of the cache to attend to, at least as many as are held.
        """
        network, width = self.network, tokens.shape[1]
        places = self._begins[samples] + low + torch.arange(width, device=tokens.device)
        return network.hidden_states(
            tokens,
            Layout(*network.rope(places), None),
            query_start=max(width - self.block - int(network.config.shift), 0),
            last_mlp=False,
            attention=partial(self._attend, self._window(samples, some, places, low, read)),
        )

    def _window(
        self, samples: Tensor, some: list[int], places: Tensor, low: Tensor, read: int
    ) -> Window:
        device, width = samples.device, places.shape[1]
        from_prompt = max(self.shared[i] for i in some)
        owners, every = tuple(self.prompt[i] for i in some), len(some) == len(self.prompt)
        prompts, members = self._members.of(owners, every)
        mask = None
        if not self._all_visible(some, width, read):
            held = [
                torch.arange(from_prompt, device=device) < self._begins[samples],
                torch.arange(read, device=device) < low,
            ]
            end = self.prompt_lengths[samples][:, None] + self.width - self.start
            opened = (torch.arange(width, device=device) >= width - self.block)[None]
            # [R, 1, W, W]
            among = self.network.visible(places, (places < end)[:, None, None], opened)
            before = torch.cat(held, dim=1)[:, None, None].expand(-1, -1, width, -1)
            mask = torch.cat([before, among.expand(-1, -1, width, -1)], dim=-1)
        return Window(
            samples=samples,
            slots=low + torch.arange(width - self.block, device=device),
            prompts=prompts,
            members=members,
            from_prompt=from_prompt,
            from_sample=read,
            mask=mask,
        )

    def _all_visible(self, some: list[int], width: int, read: int) -> bool:
        """Whether the windows of some samples are open blocks that see all that is read.

        A recording keeps the answer: while the cache has all the room that is read, its windows do
        not change, and once more is held it grows, which drops the recording.
        """
        answer = self.width - self.start
        return width == self.block and all(
            self.shared[i] == self.shared[some[0]]
            and self.held[i] == read
            and self.shared[i] + read + width <= self.lengths[i] + answer
            for i in some
        )

    def _attend(self, window: Window, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to the prompt, to the finished blocks of the sample, and to the window itself."""
        if window.slots.shape[1]:
            self._store(window, layer, k, v)
        sources = [Source(k, v)]
        if window.from_sample:
            kv = _rows(self.sample_kv[layer], window.samples, window.from_sample)
            sources.insert(0, Source(*kv))
        if window.from_prompt:
            kv = _rows(self.prompt_kv[layer], window.prompts, window.from_prompt)
            sources.insert(0, Source(*kv, window.members))
        mask = None if window.mask is None else window.mask[:, :, -q.shape[2] :]
        return attend(q, sources, mask)

    def _store(self, window: Window, layer: int, k: Tensor, v: Tensor) -> None:
        """Add the keys and values of the finished blocks of a window to those that are held."""
        finished = window.slots.shape[1]
        if layer == len(self.sample_kv):
            room = -(-(window.from_sample + finished) // ROOM) * ROOM
            R, heads, _, size = len(self.held), *k.shape[1:]
            # zeros, since hidden positions have weight 0 but must not be NaN
            empty = (x.new_zeros(R, heads, room, size) for x in (k, v))
            self.sample_kv.append((next(empty), next(empty)))
            self._moved()
        samples, slots = window.samples.to(k.device)[:, None], window.slots.to(k.device)
        for cached, part in zip(self.sample_kv[layer], (k, v), strict=True):
            cached[samples, :, slots] = part[:, :, :finished].transpose(1, 2)

    def _reserve(self, needed: int) -> None:
        """Let the caches of all layers grow if they have less than the needed room."""
        if not self.sample_kv or needed <= self.room:
            return
        self._moved()
        room = -(-needed // ROOM) * ROOM
        if self._replays is not None:  # recording anew takes longer than reading more
            room = max(room, 2 * self.room)
        more = room - self.room
        for layer, pair in enumerate(self.sample_kv):
            self.sample_kv[layer] = tuple(  # type: ignore[assignment]
                torch.cat([x, x.new_zeros(*x.shape[:2], more, x.shape[3])], dim=2) for x in pair
            )


def _rows(pair: KV, rows: Tensor, positions: int) -> KV:
    """Return some rows, in ascending order, and the first positions of cached keys and values."""
    keys, values = (x[:, :, :positions] for x in pair)
    if len(rows) == len(keys):
        return keys, values
    here = rows.to(keys.device)
    return keys[here], values[here]


def _take(layers: list[KV], rows: Tensor) -> None:
    """Keep some of the rows, layer by layer."""
    for i, (keys, values) in enumerate(layers):
        here = rows.to(keys.device)
        layers[i] = keys[here], values[here]

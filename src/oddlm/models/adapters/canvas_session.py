"""The session of DiffusionGemma: keys and values of everything before the open canvas.

The network's encoder reads the context, its decoder answers for a canvas and attends to the
encoder's keys and values. Those of a prompt are computed and held once for all of its samples.
Each sample adds those of its own finished canvases.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from ...core.model import Query
from .causality import evaluating

Pair = tuple[Tensor, Tensor]  # keys and values, [rows, heads, positions, head size]


class SharedLayer(CacheLayerMixin):  # type: ignore[misc]
    """The keys and values of one layer: those of the prompts, then those of the samples.

    window: the layer attends to this many positions, so one fewer need be kept; None is all.
    """

    is_compileable = False

    def __init__(self, prompts: Pair, owner: Tensor, window: int | None, length: int) -> None:
        # without super().__init__(), which sets keys and values
        self.prompts, self.owner, self.window, self.length = prompts, owner, window, length
        self.own: Pair | None = None
        self.is_initialized, self.is_sliding = True, window is not None

    @property
    def keys(self) -> Tensor:
        return self._whole(0)

    @property
    def values(self) -> Tensor:
        return self._whole(1)

    def _whole(self, part: int) -> Tensor:
        held = self.prompts[part]
        shared = held.expand(len(self.owner), -1, -1, -1) if len(held) == 1 else held[self.owner]
        if self.own is None:
            return shared
        return self._kept(torch.cat([shared, self.own[part]], dim=2))

    def _kept(self, x: Tensor) -> Tensor:
        return x if self.window is None else x[:, :, 1 - self.window :]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Pair:
        """Add the keys and values of a canvas; return all that its positions may attend to."""
        fresh = (key_states, value_states)
        keys, values = (torch.cat([self._whole(part), x], dim=2) for part, x in enumerate(fresh))
        if self.own is not None:
            fresh = (
                torch.cat([self.own[0], key_states], dim=2),
                torch.cat([self.own[1], value_states], dim=2),
            )
        self.own = self._kept(fresh[0]).contiguous(), self._kept(fresh[1]).contiguous()
        self.length += key_states.shape[2]
        return keys, values

    def take(self, rows: Tensor) -> "SharedLayer":
        """Return the layer of some of the samples."""
        layer = SharedLayer(self.prompts, self.owner[rows], self.window, self.length)
        if self.own is not None:
            layer.own = self.own[0][rows], self.own[1][rows]
        return layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: a layer is made with the keys and values of its prompts."""

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many positions a query attends to at most, and the place of the first."""
        hidden = 0 if self.window is None else max(self.length - self.window + 1, 0)
        return self.length - hidden + query_length, hidden

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*self.prompts, *(self.own or ())))


@dataclass
class Part:
    """The samples of a run whose prompts have the same length; they need no padding."""

    samples: list[int]  # of the run, ascending
    canvases: int  # finished ones whose keys and values are held
    layers: list[SharedLayer]
    live: tuple[list[int], list[SharedLayer]] | None = None  # those of the last query

    def holds(self, samples: list[int]) -> bool:
        """Return whether these samples are here: one whose canvas is given is not asked for it."""
        return set(samples) <= set(self.samples)

    def take(self, samples: list[int]) -> list[SharedLayer]:
        """Return the layers of some of the samples."""
        if samples == self.samples:
            return self.layers
        if self.live is None or self.live[0] != samples:
            place = {sample: i for i, sample in enumerate(self.samples)}
            rows = torch.tensor([place[sample] for sample in samples])
            taken = [layer.take(rows.to(layer.owner.device)) for layer in self.layers]
            self.live = samples, taken
        return self.live[1]

    def keep(self, samples: list[int]) -> None:
        """Drop all other samples."""
        self.layers, self.samples, self.live = self.take(samples), samples, None


class CanvasSession:
    """A session that encodes each prompt once, and each canvas once it is finished.

    `encoded` and `decoded` count the positions that went through encoder and decoder.
    """

    def __init__(self, network: Any, first: Query) -> None:
        self.network, self.run, self.next = network, first.run, first.number
        self.canvas: int = network.config.canvas_length
        self.parts: dict[int, Part] = {}  # by the length of their prompts
        self.encoded = self.decoded = 0

    @property
    def nbytes(self) -> int:
        """The memory of the keys and values that are held."""
        return sum(layer.nbytes for part in self.parts.values() for layer in part.layers)

    @torch.no_grad()
    def __call__(self, query: Query) -> Tensor:
        """Return logits [R, m, V] of the open canvas of each sample."""
        if query.run != self.run:
            raise ValueError("this session belongs to another run: open one for each run")
        if query.number < self.next:
            raise ValueError(
                f"this session expects query {self.next} of its run or a later one, not "
                f"{query.number}"
            )
        number = query.blocks.front or 0
        groups: dict[int, list[int]] = {}
        for row, length in enumerate(query.prompt_lengths.tolist()):
            groups.setdefault(length, []).append(row)
        samples = (
            list(range(len(query.tokens))) if query.samples is None else query.samples.tolist()
        )
        parts = []
        for length, rows in groups.items():
            some = torch.tensor(rows, device=query.tokens.device)
            mine = query if len(groups) == 1 else _rows(query, some)
            parts.append(self._answer(mine, length, [samples[row] for row in rows], number))
        self.next = query.number + 1  # only now, so that a failed query can be repeated
        if len(parts) == 1:
            return parts[0]
        order = torch.tensor([row for rows in groups.values() for row in rows])
        return torch.cat(parts)[order.argsort().to(query.tokens.device)]

    def _answer(self, query: Query, length: int, samples: list[int], number: int) -> Tensor:
        """Answer for samples whose prompts have this length, in their canvas of this number."""
        part, canvas = self.parts.get(length), self.canvas
        if part is None or not part.holds(samples):
            part = self.parts[length] = self._read_prompts(query, length, samples)
        if part.canvases < number:
            part.keep(samples)  # whoever is not here when a canvas opens is not expected again
            first, last = (query.start + i * canvas for i in (part.canvases, number))
            layers = [copy(layer) for layer in part.layers]
            self._encode(query.tokens[:, first:last], Cache(layers=[*layers]))
            part.layers, part.canvases = layers, number
        first = query.start + number * canvas
        self.decoded += len(samples) * canvas
        with evaluating(self.network):
            logits: Tensor = self.network(
                decoder_input_ids=query.tokens[:, first : first + canvas],
                past_key_values=Cache(layers=[*part.take(samples)]),
                self_conditioning_logits=_conditioning(query, number * canvas),
            ).logits
        if query.positions is None:
            return logits[:, : query.tokens.shape[1] - query.start]
        offsets = (query.positions - number * canvas).clamp(0, canvas - 1)
        return logits.gather(1, offsets[..., None].expand(-1, -1, logits.shape[2]))

    def _read_prompts(self, query: Query, length: int, samples: list[int]) -> Part:
        """Encode prompts of one length, equal ones once."""
        if not length:
            raise ValueError("DiffusionGemma needs a prompt of at least one token")
        prompts, owner = query.tokens[:, query.start - length : query.start].unique(
            dim=0, return_inverse=True
        )
        cache = DynamicCache(config=self.network.config.get_text_config())
        self._encode(prompts, cache)
        layers = []
        for keys, values, window in cache:
            # contiguous: a view would keep what has left the window
            held = keys.contiguous(), values.contiguous()
            size = None if window is None else int(window)
            layers.append(SharedLayer(held, owner.to(keys.device), size, length))
        return Part(samples, 0, layers)

    def _encode(self, tokens: Tensor, cache: Cache) -> None:
        self.encoded += tokens.numel()
        with evaluating(self.network):
            self.network.model.encoder(input_ids=tokens, past_key_values=cache)


def _rows(query: Query, rows: Tensor) -> Query:
    """Return the query of some of its rows."""
    return replace(
        query,
        tokens=query.tokens[rows],
        prompt_lengths=query.prompt_lengths[rows],
        samples=None,
        positions=None if query.positions is None else query.positions[rows],
        blocks=query.blocks[rows],
        echo=None if query.echo is None else query.echo[rows],
    )


def _conditioning(query: Query, begin: int) -> Tensor | None:
    """Return the logits for self-conditioning, certain of tokens that are given in the canvas."""
    if query.echo is None:
        return None
    echo = query.echo
    canvas = slice(begin, begin + echo.shape[1])
    given = ~query.blocks.open[:, canvas]
    if not given.any():
        return echo
    tokens = query.tokens[:, query.start :][:, canvas, None]
    certain = torch.full_like(echo, -torch.inf).scatter(2, tokens, 0.0)
    return torch.where(given[..., None], certain, echo)

"""Features: how a soft canvas becomes one vector per sample. A new pooling is one function here.

A pooling that is marked with a `trace`, which takes the same options, runs without autograd: the
trace pools, and returns the function that takes a derivative back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial, reduce
from math import pi, sqrt
from operator import mul
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..checks import ids, one_of, whole
from ..core.noise import Purpose
from ..kernels.closed_form import truncate
from ..kernels.contract import Pull
from ..registry import Registry
from .maps import meanings, signs

Pooling = Callable[[Tensor], Tensor]  # [..., S, C] -> [..., D]
# The same, and a function that takes a derivative [..., D] back to [..., S or 1, C].
Trace = Callable[..., tuple[Tensor, Pull]]
P = TypeVar("P", bound=Callable[..., Tensor])
Space = Literal["probs", "embedding", "semantic"]
# Most dimensions of a random projection: its table has that many numbers per token, and a request
# can set it.
MOST = 1024

FEATURES: Registry[Pooling] = Registry("feature")


def mark(*, trace: Trace, linear: bool = False) -> Callable[[P], P]:
    """Declare how a pooling is differentiated.

    `linear` means that it only sums positions, each C columns wide, so that it may be applied
    before a map of the columns.
    """

    def mark(function: P) -> P:
        function.trace = trace  # type: ignore[attr-defined]
        function.linear = linear  # type: ignore[attr-defined]
        # functools.wraps copies attributes, but the wrapper does not have this derivative.
        function.marked = function  # type: ignore[attr-defined]
        return function

    return mark


def _max_trace(canvas: Tensor) -> tuple[Tensor, Pull]:
    feature, owner = canvas.max(dim=-2, keepdim=True)
    return feature.squeeze(-2), lambda by: torch.zeros_like(canvas).scatter_(
        -2, owner, by[..., None, :]
    )


@FEATURES.register
@mark(trace=_max_trace)
def max_pool(canvas: Tensor) -> Tensor:
    """The largest probability of each token anywhere in the answer (the paper's feature)."""
    return canvas.max(dim=-2).values  # not amax: on ties the first position owns the gradient


def _mean_trace(canvas: Tensor) -> tuple[Tensor, Pull]:
    S = canvas.shape[-2]
    return canvas.mean(dim=-2), lambda by: (by / S)[..., None, :]


@FEATURES.register
@mark(trace=_mean_trace, linear=True)
def mean_pool(canvas: Tensor) -> Tensor:
    """A soft bag of words: the average over all positions."""
    return canvas.mean(dim=-2)


def _positional_trace(canvas: Tensor, *, scale: int = 64) -> tuple[Tensor, Pull]:
    waves = _waves(canvas, scale)
    return (waves @ canvas).flatten(-2), lambda by: waves.mT @ by.unflatten(-1, (2, -1))


@FEATURES.register
@mark(trace=_positional_trace, linear=True)
def positional(canvas: Tensor, *, scale: int = 64) -> Tensor:
    """A bag of words with positions: sums weighted by the cosine and the sine of the position."""
    return torch.cat(
        [(canvas * wave[:, None]).sum(dim=-2) for wave in _waves(canvas, scale)], dim=-1
    )


def _waves(canvas: Tensor, scale: int) -> Tensor:
    """Return cosine and sine of each position, [2, S]."""
    S = canvas.shape[-2]
    angles = torch.arange(S, device=canvas.device).float() * ((pi / 2) / max(scale, S))
    return torch.stack([angles.cos(), angles.sin()]).to(canvas.dtype)


def _ngrams_trace(canvas: Tensor, *, size: int = 256, order: int = 2) -> tuple[Tensor, Pull]:
    S, table = canvas.shape[-2], _sketch(canvas, size, order)
    places = _places(canvas @ table, size)

    def pull(by: Tensor) -> Tensor:
        by = by[..., None, :] / sqrt(size)
        # Each [..., S, size].
        by_place = [reduce(mul, places[:i] + places[i + 1 :], by) for i in range(order)]
        back = [
            pad(x[..., : max(S - i, 0), :], (0, 0, min(i, S), 0)) for i, x in enumerate(by_place)
        ]
        return torch.cat(back, dim=-1) @ table.mT

    return reduce(mul, places).sum(dim=-2) / sqrt(size), pull


@FEATURES.register
@mark(trace=_ngrams_trace)
def ngrams(canvas: Tensor, *, size: int = 256, order: int = 2) -> Tensor:
    """A soft bag of neighbouring pairs (order 3: triples), sketched in `size` dimensions.

    This is a tensor sketch: the product of one random projection per place in the n-gram preserves
    the inner products of the bags themselves, which have V^order columns (Pham and Pagh 2013). The
    last position is followed by an end that all answers share.
    """
    places = _places(canvas @ _sketch(canvas, size, order), size)
    return reduce(mul, places).sum(dim=-2) / sqrt(size)


def _sketch(canvas: Tensor, size: int, order: int) -> Tensor:
    return signs(canvas.shape[-1], order * size, Purpose.SKETCH, canvas.device).to(canvas.dtype)


def _places(projected: Tensor, size: int) -> list[Tensor]:
    """Return, for each place in an n-gram, the projections of its tokens, each [..., S, size]."""
    S = projected.shape[-2]
    parts = enumerate(torch.split(projected, size, dim=-1))
    return [
        pad(x[..., shift:, :], (0, 0, 0, min(shift, S)), value=1.0) if shift else x
        for shift, x in parts
    ]


@dataclass(frozen=True, slots=True)
class Feature:
    """A pooling and its input: probabilities, their mean embedding, or their mean meaning.

    Meanings are `maps.meanings` of the embedding. With `rank`, random signs project the pooled
    vector to that many dimensions, which preserves cosines up to about 1 / sqrt(rank) (Johnson and
    Lindenstrauss 1984). Principal directions would have to be fitted to each model, and
    probabilities have none worth keeping; random signs work in every space.
    """

    pooling: Pooling
    space: Space = "probs"
    top_k: int | None = None  # only the k most likely tokens of a position count, not renormalised
    ignore_ids: tuple[int, ...] = ()  # columns that never count
    rank: int | None = None

    @property
    def label(self) -> str:
        """Name and options; features with the same label are the same."""
        options = {
            **getattr(self.pooling, "keywords", {}),
            "space": self.space,
            "top_k": self.top_k,
        }
        options |= {"ignore_ids": list(self.ignore_ids)}
        if self.rank is not None:
            options["rank"] = self.rank
        return f"{getattr(self.pooling, '__name__', self.pooling)} {options}"

    def __post_init__(self) -> None:
        one_of("feature space", self.space, get_args(Space))
        if self.top_k is not None:
            whole("feature top_k", self.top_k)
        options = (
            getattr(self.pooling, "keywords", {})
            if getattr(self.pooling, "__module__", None) == __name__
            else {}
        )
        for name, value in (("rank", self.rank), ("size", options.get("size"))):
            if value is not None and whole(f"feature {name}", value) > MOST:
                raise ValueError(f"feature {name} must be at most {MOST}, not {value!r}")
        if options.get("order", 2) not in (2, 3):
            raise ValueError(f"feature order must be 2 or 3, not {options['order']!r}")

    def check(self, vocab_size: int, embedding: Tensor | None) -> None:
        """Raise ValueError for a vocabulary or an embedding that does not fit."""
        ids("feature ignore_ids", self.ignore_ids, vocab_size)
        if self.space != "probs" and (
            embedding is None or embedding.dim() != 2 or len(embedding) != vocab_size
        ):
            shape = None if embedding is None else tuple(embedding.shape)
            raise ValueError(
                f"feature space {self.space!r} needs embedding of shape [{vocab_size}, H], "
                f"got {shape}"
            )

    @property
    def traced(self) -> bool:
        """Whether the pooling is marked with a `trace`."""
        return getattr(self._function, "marked", None) is self._function

    @property
    def _function(self) -> Any:
        """The pooling without its options."""
        return getattr(self.pooling, "func", self.pooling)

    def extract(self, canvas: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the part of a soft canvas [..., S, V] that counts, and its features [..., D]."""
        counted = self._shown(canvas)
        if self.top_k is not None and self.top_k < canvas.shape[-1]:
            ranked = counted.detach().sort(dim=-1, descending=True, stable=True)
            likeliest = ranked.indices[..., : self.top_k]
            counted = counted * torch.zeros_like(counted).scatter(-1, likeliest, 1.0)
        table = self._table(embedding, canvas.dtype)
        pooled = self.pooling(counted if table is None else counted @ table)
        return counted, self._reduced(pooled)[0]

    def trace(self, canvas: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor, Pull]:
        """Do `extract`, and return how a derivative goes back to the part that counts."""
        counted = self._shown(canvas)
        if self.top_k is not None and self.top_k < canvas.shape[-1]:
            counted = truncate(counted.clone(), self.top_k)
        table = self._table(embedding, canvas.dtype)
        pool = partial(self._function.trace, **getattr(self.pooling, "keywords", {}))
        if table is None:
            pooled, back = pool(counted)
        else:
            mapped = _mapped_after if self._function.linear else _mapped_before
            pooled, back = mapped(pool, counted, table)
        reduced, widen = self._reduced(pooled)
        return counted, reduced, lambda by: back(widen(by))

    def _shown(self, canvas: Tensor) -> Tensor:
        """Return the canvas without the columns that never count."""
        if not self.ignore_ids:
            return canvas
        return canvas.index_fill(-1, torch.tensor(self.ignore_ids, device=canvas.device), 0.0)

    def _table(self, embedding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Return the map [V, H] of the columns before pooling; None for probabilities."""
        if self.space == "probs":
            return None
        assert embedding is not None
        if self.space == "semantic":
            return meanings(embedding).to(dtype)
        # Autograd saves it, which is not allowed for an inference tensor: hence the copy.
        return embedding.detach().to(dtype, copy=torch.is_grad_enabled())

    def _reduced(self, pooled: Tensor) -> tuple[Tensor, Pull]:
        """Project [..., D] to [..., rank], and return how a derivative goes back."""
        D = pooled.shape[-1]
        if self.rank is None or self.rank >= D:
            return pooled, lambda by: by
        size = sqrt(self.rank)
        table = signs(D, self.rank, Purpose.REDUCTION, pooled.device).to(pooled.dtype)
        return pooled @ table / size, lambda by: by @ table.mT / size


def _mapped_before(pool: Trace, canvas: Tensor, table: Tensor) -> tuple[Tensor, Pull]:
    """Pool canvas @ table, and return how a derivative goes back to the canvas."""
    pooled, back = pool(canvas @ table)
    return pooled, lambda by: back(by) @ table.mT


def _mapped_after(pool: Trace, canvas: Tensor, table: Tensor) -> tuple[Tensor, Pull]:
    """Do the same for a linear pooling, with the map after pooling instead of at every position."""
    V, H = table.shape
    pooled, back = pool(canvas)
    mapped = (pooled.unflatten(-1, (-1, V)) @ table).flatten(-2)
    return mapped, lambda by: back((by.unflatten(-1, (-1, H)) @ table.mT).flatten(-2))


# The options of every feature.
FEATURE_OPTIONS = {f.name: f.default for f in fields(Feature) if f.name != "pooling"}


def build_feature(spec: str | Mapping[str, Any] | Pooling | Feature) -> Feature:
    """Return the feature of a spec.

    For example `"max_pool"` or `{"name": "positional", "scale": 128, "space": "embedding"}`; every
    feature also takes `top_k`, `ignore_ids` and `rank`.
    """
    if isinstance(spec, Feature):
        return spec
    if not isinstance(spec, Mapping):
        return Feature(FEATURES.build(spec))
    shared = {k: v for k, v in spec.items() if k in FEATURE_OPTIONS}
    if "ignore_ids" in shared:
        shared["ignore_ids"] = tuple(shared["ignore_ids"])
    return Feature(FEATURES.build({k: v for k, v in spec.items() if k not in shared}), **shared)

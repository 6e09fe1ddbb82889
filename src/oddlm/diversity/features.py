"""How a soft canvas becomes one vector per sample. A new pooling is one function here.

One that is also marked with a `trace`, which takes the same options, runs without autograd: it
pools, and says how a derivative goes back.
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
Trace = Callable[
    ..., tuple[Tensor, Pull]
]  # the same, and what takes a derivative [..., D] back to [..., S or 1, C]
P = TypeVar("P", bound=Callable[..., Tensor])
Space = Literal["probs", "embedding", "semantic"]
# dimensions of a random projection: its table has so many numbers per token, and requests may ask
# for it
MOST = 1024

FEATURES: Registry[Pooling] = Registry("feature")


def mark(*, trace: Trace, linear: bool = False) -> Callable[[P], P]:
    """Declare how a pooling is differentiated. linear: it only sums positions, each C columns wide,
    so it may come before a map of the columns.
    """

    def mark(function: P) -> P:
        function.trace = trace  # type: ignore[attr-defined]
        function.linear = linear  # type: ignore[attr-defined]
        function.marked = function  # type: ignore[attr-defined]  # functools.wraps hands on attributes, not the derivative
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
    """The strongest claim on each token anywhere in the answer (the paper's)."""
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
    """A bag of words that knows where: sums weighted by the cosine and the sine of the position."""
    return torch.cat(
        [(canvas * wave[:, None]).sum(dim=-2) for wave in _waves(canvas, scale)], dim=-1
    )


def _waves(canvas: Tensor, scale: int) -> Tensor:
    """[2, S]: cosine and sine of each position."""
    S = canvas.shape[-2]
    angles = torch.arange(S, device=canvas.device).float() * ((pi / 2) / max(scale, S))
    return torch.stack([angles.cos(), angles.sin()]).to(canvas.dtype)


def _ngrams_trace(canvas: Tensor, *, size: int = 256, order: int = 2) -> tuple[Tensor, Pull]:
    S, table = canvas.shape[-2], _sketch(canvas, size, order)
    places = _places(canvas @ table, size)

    def pull(by: Tensor) -> Tensor:
        by = by[..., None, :] / sqrt(size)
        by_place = [
            reduce(mul, places[:i] + places[i + 1 :], by) for i in range(order)
        ]  # each [..., S, size]
        back = [
            pad(x[..., : max(S - i, 0), :], (0, 0, min(i, S), 0)) for i, x in enumerate(by_place)
        ]
        return torch.cat(back, dim=-1) @ table.mT

    return reduce(mul, places).sum(dim=-2) / sqrt(size), pull


@FEATURES.register
@mark(trace=_ngrams_trace)
def ngrams(canvas: Tensor, *, size: int = 256, order: int = 2) -> Tensor:
    """A soft bag of pairs (order 3: triples) of neighbours, which knows the order of tokens, in
    `size` dimensions.

    A tensor sketch: the product of one random projection per place in the n-gram keeps inner
    products of the bags themselves, which have V^order columns (Pham and Pagh 2013). Behind the
    last position stands an end that all answers have in common.
    """
    return reduce(mul, _places(canvas @ _sketch(canvas, size, order), size)).sum(dim=-2) / sqrt(
        size
    )


def _sketch(canvas: Tensor, size: int, order: int) -> Tensor:
    return signs(canvas.shape[-1], order * size, Purpose.SKETCH, canvas.device).to(canvas.dtype)


def _places(projected: Tensor, size: int) -> list[Tensor]:
    """The projection of each place in the n-grams that start at each position, each [..., S, size]."""
    S = projected.shape[-2]
    parts = enumerate(torch.split(projected, size, dim=-1))
    return [
        pad(x[..., shift:, :], (0, 0, 0, min(shift, S)), value=1.0) if shift else x
        for shift, x in parts
    ]


@dataclass(frozen=True, slots=True)
class Feature:
    """A pooling and what it is shown: probabilities, their mean embedding, or their mean meaning
    (`maps.meanings` of the same embedding); all tokens or some.

    rank: the pooled vector is projected to so many dimensions by random signs, which keeps cosines
    up to about 1 / sqrt(rank) (Johnson and Lindenstrauss 1984). Principal directions would have to
    be fitted to each model, and probabilities have none worth keeping; signs serve every space
    alike.
    """

    pooling: Pooling
    space: Space = "probs"
    top_k: int | None = (
        None  # only the k likeliest tokens of a position count; they are not renormalised
    )
    ignore_ids: tuple[int, ...] = ()  # columns that never count
    rank: int | None = None

    @property
    def label(self) -> str:
        """Name and options: two features with the same label measure the same."""
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
        """Refuse a vocabulary or an embedding that does not fit."""
        ids("feature ignore_ids", self.ignore_ids, vocab_size)
        if self.space != "probs" and (
            embedding is None or embedding.dim() != 2 or len(embedding) != vocab_size
        ):
            shape = None if embedding is None else tuple(embedding.shape)
            raise ValueError(
                f"feature space {self.space!r} needs embedding of shape [{vocab_size}, H], got {shape}"
            )

    @property
    def traced(self) -> bool:
        """Is the pooling marked with a `trace`?"""
        return getattr(self._function, "marked", None) is self._function

    @property
    def _function(self) -> Any:
        """The pooling without its options."""
        return getattr(self.pooling, "func", self.pooling)

    def extract(self, canvas: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Soft canvas [..., S, V] -> (the part that counts, features [..., D])."""
        counted = self._shown(canvas)
        if self.top_k is not None and self.top_k < canvas.shape[-1]:
            likeliest = (
                counted.detach()
                .sort(dim=-1, descending=True, stable=True)
                .indices[..., : self.top_k]
            )
            counted = counted * torch.zeros_like(counted).scatter(-1, likeliest, 1.0)
        table = self._table(embedding, canvas.dtype)
        pooled = self.pooling(counted if table is None else counted @ table)
        return counted, self._reduced(pooled)[0]

    def trace(self, canvas: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor, Pull]:
        """`extract`, and what takes a derivative by the features back to the part that counts."""
        counted = self._shown(canvas)
        if self.top_k is not None and self.top_k < canvas.shape[-1]:
            counted = truncate(counted.clone(), self.top_k)
        table = self._table(embedding, canvas.dtype)
        pool = partial(self._function.trace, **getattr(self.pooling, "keywords", {}))
        if table is None:
            pooled, back = pool(counted)
        else:
            pooled, back = (_mapped_after if self._function.linear else _mapped_before)(
                pool, counted, table
            )
        reduced, widen = self._reduced(pooled)
        return counted, reduced, lambda by: back(widen(by))

    def _shown(self, canvas: Tensor) -> Tensor:
        """The canvas without the columns that never count."""
        return (
            canvas.index_fill(-1, torch.tensor(self.ignore_ids, device=canvas.device), 0.0)
            if self.ignore_ids
            else canvas
        )

    def _table(self, embedding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """[V, H]: what the columns are mapped with before pooling; None where probabilities
        themselves are pooled.
        """
        if self.space == "probs":
            return None
        assert embedding is not None
        if self.space == "semantic":
            return meanings(embedding).to(dtype)
        return embedding.detach().to(
            dtype, copy=torch.is_grad_enabled()
        )  # autograd keeps it, which no inference tensor allows

    def _reduced(self, pooled: Tensor) -> tuple[Tensor, Pull]:
        """[..., D] -> [..., rank], and what takes a derivative back."""
        D = pooled.shape[-1]
        if self.rank is None or self.rank >= D:
            return pooled, lambda by: by
        table, size = (
            signs(D, self.rank, Purpose.REDUCTION, pooled.device).to(pooled.dtype),
            sqrt(self.rank),
        )
        return pooled @ table / size, lambda by: by @ table.mT / size


def _mapped_before(pool: Trace, canvas: Tensor, table: Tensor) -> tuple[Tensor, Pull]:
    """A pooling of canvas @ table, and what takes a derivative back to the canvas."""
    pooled, back = pool(canvas @ table)
    return pooled, lambda by: back(by) @ table.mT


def _mapped_after(pool: Trace, canvas: Tensor, table: Tensor) -> tuple[Tensor, Pull]:
    """The same of a linear pooling: the table meets what is pooled instead of every position."""
    V, H = table.shape
    pooled, back = pool(canvas)
    mapped = (pooled.unflatten(-1, (-1, V)) @ table).flatten(-2)
    return mapped, lambda by: back((by.unflatten(-1, (-1, H)) @ table.mT).flatten(-2))


FEATURE_OPTIONS = {
    f.name: f.default for f in fields(Feature) if f.name != "pooling"
}  # of every feature


def build_feature(spec: str | Mapping[str, Any] | Pooling | Feature) -> Feature:
    """`"max_pool"` or `{"name":
    "positional", "scale": 128, "space": "embedding", "top_k": 50, "ignore_ids": [0]}`.
    """
    if isinstance(spec, Feature):
        return spec
    if not isinstance(spec, Mapping):
        return Feature(FEATURES.build(spec))
    shared = {k: v for k, v in spec.items() if k in FEATURE_OPTIONS}
    if "ignore_ids" in shared:
        shared["ignore_ids"] = tuple(shared["ignore_ids"])
    return Feature(FEATURES.build({k: v for k, v in spec.items() if k not in shared}), **shared)

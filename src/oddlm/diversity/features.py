"""How a soft canvas becomes one vector per sample. A new pooling is one function here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import pi, sqrt
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..checks import ids, one_of, whole
from ..noise import Purpose
from ..registry import Registry
from .maps import meanings, signs

Pooling = Callable[[Tensor], Tensor]  # [..., S, C] -> [..., D]
Space = Literal["probs", "embedding", "semantic"]
MOST = 1024  # dimensions of a random projection: its table has so many numbers per token, and requests may ask for it

FEATURES: Registry[Pooling] = Registry("feature")


@FEATURES.register
def max_pool(canvas: Tensor) -> Tensor:
    """The strongest claim on each token anywhere in the answer (the paper's)."""
    return canvas.max(dim=-2).values  # not amax: on ties the first position owns the gradient


@FEATURES.register
def mean_pool(canvas: Tensor) -> Tensor:
    """A soft bag of words: the average over all positions."""
    return canvas.mean(dim=-2)


@FEATURES.register
def positional(canvas: Tensor, *, scale: int = 64) -> Tensor:
    """A bag of words that knows where: sums weighted by the cosine and the sine of the position."""
    S = canvas.shape[-2]
    angles = torch.arange(S, device=canvas.device).float() * ((pi / 2) / max(scale, S))
    return torch.cat([(canvas * wave.to(canvas.dtype)[:, None]).sum(dim=-2) for wave in (angles.cos(), angles.sin())], dim=-1)


@FEATURES.register
def ngrams(canvas: Tensor, *, size: int = 256, order: int = 2) -> Tensor:
    """A soft bag of pairs (order 3: triples) of neighbours, which knows the order of tokens, in `size` dimensions.

    A tensor sketch: the product of one random projection per place in the n-gram keeps inner products of the bags themselves,
    which have V^order columns (Pham and Pagh 2013). Behind the last position stands an end that all answers have in common.
    """
    table = signs(canvas.shape[-1], order * size, Purpose.SKETCH, canvas.device).to(canvas.dtype)
    first, *others = torch.split(canvas @ table, size, dim=-1)  # each [..., S, size]
    for shift, other in enumerate(others, start=1):
        first = first * torch.nn.functional.pad(other[..., shift:, :], (0, 0, 0, min(shift, other.shape[-2])), value=1.0)
    return first.sum(dim=-2) / sqrt(size)


@dataclass(frozen=True, slots=True)
class Feature:
    """A pooling and what it is shown: probabilities, their mean embedding, or their mean meaning (`maps.meanings` of the same
    embedding); all tokens or some.

    rank: the pooled vector is projected to so many dimensions by random signs, which keeps cosines up to about 1 / sqrt(rank)
    (Johnson and Lindenstrauss 1984). Principal directions would have to be fitted to each model, and probabilities have none
    worth keeping; signs serve every space alike.
    """

    pooling: Pooling
    space: Space = "probs"
    top_k: int | None = None  # only the k likeliest tokens of a position count; they are not renormalised
    ignore_ids: tuple[int, ...] = ()  # columns that never count
    rank: int | None = None

    @property
    def label(self) -> str:
        """Name and options: two features with the same label measure the same."""
        options = {**getattr(self.pooling, "keywords", {}), "space": self.space, "top_k": self.top_k}
        options |= {"ignore_ids": list(self.ignore_ids)}
        if self.rank is not None:
            options["rank"] = self.rank
        return f"{getattr(self.pooling, '__name__', self.pooling)} {options}"

    def __post_init__(self) -> None:
        one_of("feature space", self.space, get_args(Space))
        if self.top_k is not None:
            whole("feature top_k", self.top_k)
        options = getattr(self.pooling, "keywords", {}) if getattr(self.pooling, "__module__", None) == __name__ else {}
        for name, value in (("rank", self.rank), ("size", options.get("size"))):
            if value is not None and whole(f"feature {name}", value) > MOST:
                raise ValueError(f"feature {name} must be at most {MOST}, not {value!r}")
        if options.get("order", 2) not in (2, 3):
            raise ValueError(f"feature order must be 2 or 3, not {options['order']!r}")

    def check(self, vocab_size: int, embedding: Tensor | None) -> None:
        """Refuse a vocabulary or an embedding that does not fit."""
        ids("feature ignore_ids", self.ignore_ids, vocab_size)
        if self.space != "probs" and (embedding is None or embedding.dim() != 2 or len(embedding) != vocab_size):
            shape = None if embedding is None else tuple(embedding.shape)
            raise ValueError(f"feature space {self.space!r} needs embedding of shape [{vocab_size}, H], got {shape}")

    def extract(self, canvas: Tensor, embedding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Soft canvas [..., S, V] -> (the part that counts, features [..., D])."""
        if self.ignore_ids:
            canvas = canvas.index_fill(-1, torch.tensor(self.ignore_ids, device=canvas.device), 0.0)
        if self.top_k is not None and self.top_k < canvas.shape[-1]:
            likeliest = canvas.detach().sort(dim=-1, descending=True, stable=True).indices[..., : self.top_k]
            canvas = canvas * torch.zeros_like(canvas).scatter(-1, likeliest, 1.0)
        return canvas, self._reduced(self.pooling(self._seen(canvas, embedding)))

    def _seen(self, canvas: Tensor, embedding: Tensor | None) -> Tensor:
        """What is pooled, [..., S, V or H]."""
        if self.space == "probs":
            return canvas
        assert embedding is not None
        if self.space == "semantic":
            return canvas @ meanings(embedding).to(canvas.dtype)
        return canvas @ embedding.detach().to(canvas.dtype, copy=True)

    def _reduced(self, pooled: Tensor) -> Tensor:
        D = pooled.shape[-1]
        if self.rank is None or self.rank >= D:
            return pooled
        return pooled @ signs(D, self.rank, Purpose.REDUCTION, pooled.device).to(pooled.dtype) / sqrt(self.rank)


FEATURE_OPTIONS = {f.name: f.default for f in fields(Feature) if f.name != "pooling"}  # of every feature


def build_feature(spec: str | Mapping[str, Any] | Pooling | Feature) -> Feature:
    """`"max_pool"` or `{"name": "positional", "scale": 128, "space": "embedding", "top_k": 50, "ignore_ids": [0]}`."""
    if isinstance(spec, Feature):
        return spec
    if not isinstance(spec, Mapping):
        return Feature(FEATURES.build(spec))
    shared = {k: v for k, v in spec.items() if k in FEATURE_OPTIONS}
    if "ignore_ids" in shared:
        shared["ignore_ids"] = tuple(shared["ignore_ids"])
    return Feature(FEATURES.build({k: v for k, v in spec.items() if k not in shared}), **shared)

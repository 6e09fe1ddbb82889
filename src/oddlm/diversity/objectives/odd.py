"""Orthogonal diverse diffusion: repel each sample from the span of the earlier ones.

With unit features u_k, directions e_k (Gram-Schmidt over the earlier samples) and quality q_k, the
loss of sample k is -q_k <u_k, e_k>: it falls as the feature turns away from that span.
"""

import torch
from torch import Tensor

from ...kernels.contract import Batch, Coordinates, Weights
from ...kernels.directions import Directions, lengths
from .base import OBJECTIVES, Quality, quality_of, scaled, traits, until_enough


def loss(
    batch: Batch, found: Directions, normalize: bool, quality: Quality, quality_scale: float
) -> Tensor:
    """[G, n]: minus the part of each feature along its direction, weighted by quality."""
    v = batch.features if batch.duplicates.native else batch.features.double()
    u, _ = scaled(v, normalize)
    gain = (u * found.vectors).sum(dim=-1)
    return torch.where(found.pushed, -gain * quality_of(batch, quality) * quality_scale, 0.0)


def slope(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    found: Directions | None = None,
) -> tuple[Tensor, Tensor]:
    """The derivative of the summed `loss`, by default along the batch's own directions."""
    found = batch.directions if found is None else found
    v = batch.features.to(torch.float64, copy=True)  # becomes the result: [n, V] is 16 MB for LLaDA
    size = lengths(v) if normalize else torch.ones_like(v[..., 0])
    gain = (v[..., None, :] @ found.vectors[..., None]).flatten(2).squeeze(2) / size  # [G, n]
    scale = torch.where(found.pushed, -quality_scale, 0.0)
    inward = gain / size if normalize else torch.zeros_like(gain)  # a unit feature cannot grow
    factor = scale * quality_of(batch, quality) / size
    by_feature = v.mul_(-inward[..., None]).add_(found.vectors).mul_(factor[..., None])
    return by_feature, scale * gain if quality == "grad" else torch.zeros_like(gain)


def weigh(
    seen: Coordinates,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
) -> Weights:
    """`slope` in coordinates."""
    n = seen.quality.shape[1]
    own = seen.inner[:, :n]
    if normalize:
        size = own.diagonal(dim1=1, dim2=2).clamp(min=1e-24).sqrt()
    else:
        size = torch.ones_like(seen.quality)
    gain = torch.linalg.vecdot(own, seen.basis) / size  # [G, n]
    scale = seen.pushed * -quality_scale
    factor = scale * quality_of(seen, quality) / size
    by_feature = seen.basis * factor[..., None]
    if normalize:
        by_feature.diagonal(dim1=1, dim2=2).addcmul_(factor, gain / size, value=-1)
    return Weights(by_feature, scale * gain if quality == "grad" else torch.zeros_like(gain))


@OBJECTIVES.register
@traits(slope=slope, weigh=weigh, need=until_enough)
def odd(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    enough: float | None = None,
) -> Tensor:
    """Repel each sample from the span of the earlier ones.

    A sample whose residual (0 to 1) is at least `enough` is not pushed; below, the share of alpha
    falls linearly from 1 at residual 0.
    """
    return loss(batch, batch.directions, normalize, quality, quality_scale)


@OBJECTIVES.register
@traits(sequential=True, slope=slope, weigh=weigh, need=until_enough)
def odd_sequential(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    enough: float | None = None,
) -> Tensor:
    """`odd` against the earlier samples after their own push: n passes instead of one."""
    return loss(batch, batch.directions, normalize, quality, quality_scale)

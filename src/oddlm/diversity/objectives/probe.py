"""ODD with a random direction outside the span of the earlier samples instead of its own."""

from dataclasses import replace

import torch
from torch import Tensor

from ...kernels.contract import Batch, Coordinates, Weights
from ...kernels.directions import Directions, find_directions
from . import odd
from .base import OBJECTIVES, Quality, padded, traits, until_enough


def probe(batch: Batch) -> Directions:
    """Draw a direction for the one sample of a batch; none if the earlier ones fill the space."""
    drawn = batch.noise(0, batch.features.shape[2]).to(batch.features)[:, None]
    return find_directions(
        drawn, batch.earlier, replace(batch.duplicates, mode="skip"), batch.noise
    )


def slope(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The derivative of the summed loss."""
    return odd.slope(
        batch,
        normalize=normalize,
        quality=quality,
        quality_scale=quality_scale,
        found=probe(batch),
    )


def weigh(
    seen: Coordinates,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
) -> Weights:
    """`slope` in coordinates.

    Rows n to 2n are the probes, made orthogonal to the earlier rows twice.
    """
    n = seen.quality.shape[1]
    size = seen.inner.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    drawn = padded(size[:, n : 2 * n].reciprocal().diag_embed(), seen, before=n)
    for _ in range(2):
        drawn = drawn - padded((drawn @ seen.inner)[..., 2 * n :], seen, before=2 * n)
    left = torch.linalg.vecdot(drawn @ seen.inner, drawn).clamp(min=0).sqrt()
    some_earlier = (size[:, 2 * n :] > 0).any(dim=1, keepdim=True)
    pushed = (left > seen.duplicates.tolerance) & some_earlier
    aimed = replace(seen, basis=drawn / left.clamp(min=1e-12)[..., None], pushed=pushed)
    return odd.weigh(aimed, normalize=normalize, quality=quality, quality_scale=quality_scale)


@OBJECTIVES.register
@traits(sequential=True, slope=slope, weigh=weigh, need=until_enough, probes=True)
def random_probe(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    enough: float | None = None,
) -> Tensor:
    """Push each sample along a random direction outside the span of the earlier ones."""
    return odd.loss(batch, probe(batch), normalize, quality, quality_scale)

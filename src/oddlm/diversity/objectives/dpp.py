"""DiverseFlow's objective on text: the likelihood of a batch under a determinantal point process.

With the kernel L (similarity of unit features, weighted by quality), the loss of the batch is
logdet(L + (1 + jitter) I) - logdet(L + jitter I).
"""

from typing import Literal

import torch
from torch import Tensor

from ...kernels.contract import Batch, Coordinates, Weights
from .base import OBJECTIVES, Quality, padded, quality_of, scaled, traits

Kernel = Literal["authors", "paper"]
# relative noise on the features of duplicates: this objective has no directions to break them
ROUGHEN = 1e-3


def slope(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    kernel: Kernel = "authors",
    jitter: float = 1e-4,
) -> tuple[Tensor, Tensor]:
    """d logdet(L + cI) = tr((L + cI)^-1 dL), for c = 1 + jitter minus the same for c = jitter."""
    roughness = _roughness(batch)
    u, size = scaled(_precise(batch) * roughness, normalize)
    q = quality_of(batch, quality).double()
    similarity, weight = u @ u.mT, _weight(q, quality_scale, kernel)
    values, vectors = torch.linalg.eigh(similarity * weight)
    by_value = ((values + jitter) * (values + 1 + jitter)).reciprocal().neg()
    by_kernel = vectors @ by_value.diag_embed() @ vectors.mT
    pull = 2 * by_kernel * weight  # [G, n, n]
    by_feature = pull @ u
    if normalize:
        by_feature -= torch.linalg.vecdot(pull, similarity)[..., None] * u
    by_feature = roughness * by_feature / size[..., None]
    by_quality = 2 * quality_scale * ((by_kernel * similarity) @ q[..., None]).squeeze(-1)
    return by_feature, by_quality if quality == "grad" else torch.zeros_like(by_quality)


def weigh(
    seen: Coordinates,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    kernel: Kernel = "authors",
    jitter: float = 1e-4,
) -> Weights:
    """`slope` in coordinates; a roughened feature is the feature plus ROUGHEN times its draw."""
    n = seen.quality.shape[1]
    rough = torch.where(seen.duplicate & (seen.duplicates.mode == "break"), ROUGHEN, 0.0).double()
    own = torch.cat([torch.ones_like(rough).diag_embed(), rough.diag_embed()], dim=2)
    u = padded(own, seen)
    if normalize:
        size = torch.linalg.vecdot(u @ seen.inner, u).clamp(min=0).sqrt().clamp(min=1e-12)
    else:
        size = torch.ones_like(seen.quality)
    u = u / size[..., None]
    q = quality_of(seen, quality)
    similarity, weight = u @ seen.inner @ u.mT, _weight(q, quality_scale, kernel)
    eye = torch.eye(n, dtype=u.dtype, device=u.device)
    near, far = (
        torch.linalg.inv_ex(similarity * weight + c * eye).inverse for c in (jitter, 1 + jitter)
    )
    by_kernel = far - near
    pull = 2 * by_kernel * weight
    by_feature = pull @ u
    if normalize:
        by_feature = by_feature - torch.linalg.vecdot(pull, similarity)[..., None] * u
    by_quality = 2 * quality_scale * ((by_kernel * similarity) @ q[..., None]).squeeze(-1)
    if quality != "grad":
        by_quality = torch.zeros_like(by_quality)
    return Weights(by_feature / size[..., None], by_quality, rough)


@OBJECTIVES.register
@traits(coupled=True, slope=slope, weigh=weigh)
def dpp(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    kernel: Kernel = "authors",
    jitter: float = 1e-4,
) -> Tensor:
    """Likelihood of the whole batch under a determinantal point process (DiverseFlow on text)."""
    u, _ = scaled(_precise(batch) * _roughness(batch), normalize)
    q = quality_of(batch, quality)
    similarity = (u @ u.mT) * _weight(q, quality_scale, kernel)
    similarity = similarity.to(torch.promote_types(u.dtype, torch.float32))  # logdet has no half
    eye = torch.eye(u.shape[1], dtype=similarity.dtype, device=u.device)
    loss = torch.logdet(similarity + (1 + jitter) * eye) - torch.logdet(similarity + jitter * eye)
    return loss[:, None] / u.shape[1] * torch.ones_like(q)


def _weight(q: Tensor, scale: float, kernel: Kernel) -> Tensor:
    pairs = scale * q[:, :, None] * q[:, None, :]
    return pairs if kernel == "paper" else 1 + pairs


def _precise(batch: Batch) -> Tensor:
    return batch.features if batch.duplicates.native else batch.features.double()


def _roughness(batch: Batch) -> Tensor:
    """[G, n, D] or 1: a factor that makes duplicates distinct if the rule is to break them."""
    n, D = batch.features.shape[1:]
    one = torch.ones((), dtype=_precise(batch).dtype, device=batch.features.device)
    if batch.duplicates.mode == "skip" or not batch.directions.duplicate.any():
        return one
    noise = torch.stack([batch.noise(k, D) for k in range(n)], dim=1)
    duplicate = batch.directions.duplicate[..., None]
    return torch.where(duplicate, 1 + ROUGHEN * noise.to(one.dtype), one)

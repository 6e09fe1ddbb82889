"""What makes a batch diverse: a loss per sample, small when the sample is unlike the others. A new one is one function here.

An objective sees a `Batch` (features, quality, the directions of earlier samples) and returns a loss [G, n]; autograd and
the guide do the rest. Its keyword-only arguments are its hyperparameters.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from ..kernels.directions import find_directions
from ..kernels.reference import Batch, Objective
from ..registry import Registry

Quality = Literal["grad", "detached", "none"]
Kernel = Literal["authors", "paper"]

OBJECTIVES: Registry[Objective] = Registry("objective")


def sequential(function: Objective) -> Objective:
    """Call the objective with one sample at a time, against the others as they are after their own push."""
    function.sequential = True  # type: ignore[attr-defined]
    return function


@OBJECTIVES.register
def none(batch: Batch) -> Tensor:
    """No repulsion: plain sampling."""
    return torch.zeros_like(batch.quality)


@OBJECTIVES.register
def odd(batch: Batch, *, normalize: bool = True, quality: Quality = "grad", quality_scale: float = 1.0) -> Tensor:
    """Repel each sample from the span of the earlier ones: reward the part of its feature outside that span."""
    found = batch.directions
    gain = (_features(batch, normalize) * found.vectors).sum(dim=-1)
    return torch.where(found.guided, -gain * _quality(batch, quality) * quality_scale, 0.0)


@OBJECTIVES.register
@sequential
def odd_sequential(batch: Batch, *, normalize: bool = True, quality: Quality = "grad", quality_scale: float = 1.0) -> Tensor:
    """`odd` against the earlier samples as they are after their own push: n backward passes instead of one."""
    return odd(batch, normalize=normalize, quality=quality, quality_scale=quality_scale)


@OBJECTIVES.register
@sequential
def random_probe(batch: Batch, *, normalize: bool = True, quality: Quality = "grad", quality_scale: float = 1.0) -> Tensor:
    """Push each sample along a random direction outside the span of the earlier ones: ODD without its aim."""
    probe = batch.noise(0, batch.features.shape[2]).to(batch.features)[:, None]
    found = find_directions(probe, batch.earlier, batch.duplicates, batch.noise)
    gain = (_features(batch, normalize) * found.vectors).sum(dim=-1)
    return torch.where(found.guided, -gain * _quality(batch, quality) * quality_scale, 0.0)


@OBJECTIVES.register
def dpp(
    batch: Batch,
    *,
    normalize: bool = True,
    quality: Quality = "grad",
    quality_scale: float = 1.0,
    kernel: Kernel = "authors",
    jitter: float = 1e-4,
) -> Tensor:
    """Likelihood of the whole batch under a determinantal point process (DiverseFlow's objective on text)."""
    if kernel not in get_args(Kernel):
        raise ValueError(f"dpp kernel must be one of {', '.join(get_args(Kernel))}, not {kernel!r}")
    u = _features(batch, normalize, roughen=1e-3)
    q = _quality(batch, quality)
    pairs = quality_scale * q[:, :, None] * q[:, None, :]
    similarity = (u @ u.mT) * (pairs if kernel == "paper" else 1 + pairs)
    similarity = similarity.to(torch.promote_types(u.dtype, torch.float32))  # logdet knows no half precision
    eye = torch.eye(u.shape[1], dtype=similarity.dtype, device=u.device)
    loss = torch.logdet(similarity + (1 + jitter) * eye) - torch.logdet(similarity + jitter * eye)
    return loss[:, None] / u.shape[1] * torch.ones_like(q)


def _features(batch: Batch, normalize: bool, roughen: float = 0.0) -> Tensor:
    """Features as the algebra wants them: float64 (unless native), unit length (unless not).

    `roughen` makes duplicates distinct where the rule is to break them, for objectives that know no directions.
    """
    v = batch.features if batch.duplicates.native else batch.features.double()
    if roughen and batch.duplicates.mode == "break" and batch.directions.duplicate.any():
        noise = torch.stack([batch.noise(k, v.shape[2]) for k in range(v.shape[1])], dim=1).to(v.dtype)
        v = torch.where(batch.directions.duplicate[..., None], v * (1 + roughen * noise), v)
    return v / v.norm(dim=-1, keepdim=True).clamp(min=1e-12) if normalize else v


def _quality(batch: Batch, mode: Quality) -> Tensor:
    if mode not in get_args(Quality):
        raise ValueError(f"quality must be one of {', '.join(get_args(Quality))}, not {mode!r}")
    if mode == "none":
        return torch.ones_like(batch.quality)
    return batch.quality.detach() if mode == "detached" else batch.quality

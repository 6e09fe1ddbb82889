"""The direction in which each sample is unlike the ones before it, by Gram-Schmidt, and the rule
for duplicates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# a shorter feature is a rounding error, or all but nothing of it counts: it has no direction
SHORTEST = 1e-12
DirectionNoise = Callable[[int, int], Tensor]  # sample k of the batch, D -> standard normal [G, D]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """When a residual of a unit feature is at most `tolerance`, the sample says nothing new.

    "break": a seeded random direction on the support of its feature takes the place of the
    residual.
    "skip": the sample is not pushed and adds nothing to the basis.
    `native` keeps the arithmetic of the published code: one pass, in the precision of the logits.
    """

    mode: Literal["break", "skip"] = "break"
    tolerance: float = 1e-3
    native: bool = False


@dataclass(frozen=True, slots=True)
class Directions:
    vectors: Tensor  # [G, n, D]: orthonormal, zero where a sample was skipped
    pushed: Tensor  # [G, n] bool: has a direction, and somebody to be unlike
    duplicate: Tensor  # [G, n] bool: said nothing new
    # [G, n]: length of what of the unit feature the samples before it did not say, 0 to 1
    residual: Tensor


@torch.no_grad()
def find_directions(
    features: Tensor, earlier: Tensor | None, rule: Duplicates, noise: DirectionNoise
) -> Directions:
    """features [G, n, D] in order; earlier [G, h, D] orthonormal rows, or zero rows, of samples
    that came before.
    """
    G, n, D = features.shape
    h = 0 if earlier is None else earlier.shape[1]
    basis = torch.zeros(
        G, h + n, D, dtype=features.dtype if rule.native else torch.float64, device=features.device
    )
    if earlier is not None:
        basis[:, :h] = earlier
    basis[:, h:] = features  # each row is a unit feature until its turn comes, then its direction
    sizes = lengths(basis[:, h:])
    basis[:, h:] /= sizes[..., None]
    kept, duplicate = (
        torch.zeros(G, n, dtype=torch.bool, device=features.device) for _ in range(2)
    )
    residuals = torch.zeros_like(sizes)
    for k in range(n):
        before, unit = basis[:, : h + k], basis[:, h + k]
        direction, residual = _unit(_project_out(unit, before, rule.native))
        residuals[:, k] = residual
        new = residual > rule.tolerance
        if not new.all():
            duplicate[:, k] = ~new & sizes[:, k].isfinite()
            if rule.mode == "break":
                draw, _ = _unit(unit * noise(k, D).to(unit.dtype))
                drawn, left = _unit(_project_out(draw, before, rule.native))
                broken = duplicate[:, k] & (
                    left > rule.tolerance
                )  # otherwise the basis fills the space: nowhere to go
                direction, new = torch.where(broken[:, None], drawn, direction), new | broken
            direction = direction.where(new[:, None], 0.0)
        kept[:, k] = new
        basis[:, h + k] = direction
    others = kept.cumsum(dim=1) - kept.long() + basis[:, :h].any(dim=2).sum(dim=1, keepdim=True)
    return Directions(basis[:, h:], kept & (others > 0), duplicate, residuals)


def lengths(features: Tensor) -> Tensor:
    """[...]: what to divide features [..., D] by for unit length; infinity for one too short, which
    makes it zero.
    """
    size: Tensor = features.norm(dim=-1)
    return size.where(size > SHORTEST, math.inf)


def extend(earlier: Tensor | None, vectors: Tensor) -> Tensor:
    """Earlier rows [G, h, D], if any, and new ones behind them."""
    return vectors if earlier is None else torch.cat([earlier.to(vectors.dtype), vectors], dim=1)


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """x / max(norm, 1e-12), and the norm. A zero stays zero, in float16 too, where 1e-12 is 0."""
    size = x.norm(dim=-1)
    return x / size.clamp(min=1e-12).where(size > 0, 1.0)[..., None], size


def _project_out(x: Tensor, basis: Tensor, native: bool) -> Tensor:
    """x [G, D] without its components along basis [G, m, D]."""
    if native:
        for j in range(basis.shape[1]):
            x = x - (x * basis[:, j]).sum(dim=-1, keepdim=True) * basis[:, j]
        return x
    for _ in range(2):  # the second pass removes what rounding left of the first
        x = x - ((basis @ x[..., None]).mT @ basis).squeeze(1)
    return x

"""The direction in which each sample differs from the earlier ones, and the rule for duplicates.

Directions come from Gram-Schmidt orthogonalization in the order of the samples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# A shorter feature is a rounding error and has no direction.
SHORTEST = 1e-12
DirectionNoise = Callable[[int, int], Tensor]  # sample k of the batch, D -> standard normal [G, D]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The rule for duplicates: samples whose unit feature has a residual of at most `tolerance`.

    "break" replaces the residual by a seeded random direction on the support of the feature. "skip"
    does not push the sample and adds nothing to the basis. `native` keeps the arithmetic of the
    published code: one pass, in the precision of the logits.
    """

    mode: Literal["break", "skip"] = "break"
    tolerance: float = 1e-3
    native: bool = False


@dataclass(frozen=True, slots=True)
class Directions:
    """The result of `find_directions`."""

    vectors: Tensor  # [G, n, D]: orthonormal, zero if a sample was skipped
    pushed: Tensor  # [G, n] bool: has a direction, and an earlier sample to differ from
    duplicate: Tensor  # [G, n] bool: adds nothing to the span of the earlier ones
    residual: Tensor  # [G, n]: norm of the unit feature outside that span, 0 to 1


@torch.no_grad()
def find_directions(
    features: Tensor, earlier: Tensor | None, rule: Duplicates, noise: DirectionNoise
) -> Directions:
    """Find the direction of each sample by Gram-Schmidt.

    features [G, n, D] are in the order of the samples; earlier [G, h, D] holds the orthonormal or
    zero directions of the samples before them.
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
                # Otherwise the basis fills the space, and there is no new direction.
                broken = duplicate[:, k] & (left > rule.tolerance)
                direction, new = torch.where(broken[:, None], drawn, direction), new | broken
            direction = direction.where(new[:, None], 0.0)
        kept[:, k] = new
        basis[:, h + k] = direction
    others = kept.cumsum(dim=1) - kept.long() + basis[:, :h].any(dim=2).sum(dim=1, keepdim=True)
    return Directions(basis[:, h:], kept & (others > 0), duplicate, residuals)


def lengths(features: Tensor) -> Tensor:
    """Return the norms of features [..., D], and infinity for one too short.

    Dividing by infinity makes such a feature zero.
    """
    size: Tensor = features.norm(dim=-1)
    return size.where(size > SHORTEST, math.inf)


def extend(earlier: Tensor | None, vectors: Tensor) -> Tensor:
    """Append new rows to the earlier rows [G, h, D], if there are any."""
    return vectors if earlier is None else torch.cat([earlier.to(vectors.dtype), vectors], dim=1)


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x / max(norm, 1e-12) and the norm. Zero stays zero, even in float16 (1e-12 is 0)."""
    size = x.norm(dim=-1)
    return x / size.clamp(min=1e-12).where(size > 0, 1.0)[..., None], size


def _project_out(x: Tensor, basis: Tensor, native: bool) -> Tensor:
    """Return x [G, D] without its components along basis [G, m, D]."""
    if native:
        for j in range(basis.shape[1]):
            x = x - (x * basis[:, j]).sum(dim=-1, keepdim=True) * basis[:, j]
        return x
    for _ in range(2):  # the second pass removes what rounding left of the first
        x = x - ((basis @ x[..., None]).mT @ basis).squeeze(1)
    return x

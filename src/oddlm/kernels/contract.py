"""The types that kernels take and return.

Shapes: G groups of n samples, S positions, V vocabulary, D feature size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..core.noise import Purpose, key, normal
from ..core.step import id_tensor
from .directions import DirectionNoise, Directions, Duplicates, find_directions

# Soft canvas [G, n, S, V] -> (the part of it that counts, features [G, n, D]).
Extract = Callable[[Tensor], tuple[Tensor, Tensor]]
# Derivative by features [G, n, D] -> by the part of the canvas that counts [G, n, S or 1, V].
Pull = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Batch:
    """The input of an objective."""

    features: Tensor  # [G, n, D], with gradient
    quality: Tensor  # [G, n], with gradient: mean top probability over the masked positions
    earlier: Tensor | None  # [G, h, D]: orthonormal or zero directions of earlier samples
    duplicates: Duplicates
    noise: DirectionNoise

    @cached_property
    def directions(self) -> Directions:
        """The direction in which each sample differs from the ones before it."""
        return find_directions(self.features, self.earlier, self.duplicates, self.noise)

    @property
    def residual(self) -> Tensor:
        """[G, n]: norm of each unit feature outside the span of the earlier ones, 0 to 1."""
        return self.directions.residual


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A batch seen through its inner products, for kernels that never hold its [n, V] features.

    A group has N rows: n features, n draws (each feature times its noise, used for duplicates; for
    an objective with `probes`, the noise itself) and h earlier directions. A vector in their span
    is a row of N coefficients.
    """

    inner: Tensor  # [G, N, N] float64: inner products of the rows
    quality: Tensor  # [G, n] float64
    basis: Tensor  # [G, n, N] float64: the direction of each sample, zero if it was skipped
    pushed: Tensor  # [G, n] bool: has a direction, and an earlier sample to differ from
    duplicate: Tensor  # [G, n] bool: adds nothing to the span of the earlier ones
    residual: Tensor  # [G, n] float64: norm of the unit feature outside that span, 0 to 1
    duplicates: Duplicates


@dataclass(frozen=True, slots=True)
class Weights:
    """Derivatives of a summed loss, those by features in coordinates."""

    by_feature: Tensor  # [G, n, N] float64
    by_quality: Tensor  # [G, n] float64
    rough: Tensor | None = None  # [G, n] float64: features had been multiplied by 1 + rough * noise


Objective = Callable[[Batch], Tensor]  # -> loss [G, n], to be minimised
# -> the derivative of the summed loss by features [G, n, D] and quality [G, n].
Slope = Callable[[Batch], tuple[Tensor, Tensor]]
Weigh = Callable[[Coordinates], Weights]  # -> the same derivative in coordinates
Need = Callable[[Tensor], Tensor]  # residuals [G, n] -> the share of alpha that each sample needs


@dataclass(frozen=True, slots=True)
class Repel:
    """Everything a push needs besides the logits."""

    extract: Extract
    trace: Callable[[Tensor], tuple[Tensor, Tensor, Pull]] | None  # `extract` with its derivative
    top_k: int | None  # the truncation in `extract`, for kernels that truncate themselves
    objective: Objective
    slope: Slope | None
    weigh: Weigh | None
    need: Need | None  # None: every sample gets all of alpha
    sequential: bool  # one sample at a time, against the others as they are after their own push
    probes: bool  # in coordinates, a draw is the noise itself and not the feature times noise
    duplicates: Duplicates
    raw_gradient: bool
    protected: tuple[int, ...]
    remember: bool  # return the directions
    seeds: Tensor  # [G]: with step and sample, the address of the directions drawn for duplicates
    first_sample: int  # number of samples of each prompt before this batch
    step: int

    def noise(self, k: int, size: int) -> Tensor:
        """Return standard normal noise [G, size] for sample k."""
        keys = key(self.seeds, self.first_sample + k, self.step, Purpose.DIRECTION)
        return normal(keys, size)

    def for_sample(self, k: int) -> "Repel":
        """Return the same push for a batch that holds only sample k."""
        return replace(self, first_sample=self.first_sample + k)

    def eased(self, alpha: Tensor, seen: Batch | Coordinates) -> Tensor:
        """Return alpha [G, n], scaled by need.

        (Scaling the loss would have no effect, since its gradient is normalised.)
        """
        return alpha if self.need is None else alpha * self.need(seen.residual).to(alpha.dtype)

    def protected_on(self, device: torch.device) -> Tensor:
        return id_tensor(self.protected, device)

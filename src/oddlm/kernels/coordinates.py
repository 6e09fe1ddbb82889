"""A batch as its inner products show it: all that an objective needs where nobody wants to touch [n, V] arrays again.

The rows of a group are its n features, n draws (each feature times its noise, for duplicates; for an objective that probes, the
noise itself) and h earlier directions: N in all. A vector in their span is a row of N coefficients.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .directions import Duplicates


@dataclass(frozen=True, slots=True)
class Coordinates:
    inner: Tensor  # [G, N, N] float64: inner products of the rows
    quality: Tensor  # [G, n] float64
    basis: Tensor  # [G, n, N] float64: the direction of each sample, zero where it was skipped
    guided: Tensor  # [G, n] bool: has a direction, and somebody to be unlike
    duplicate: Tensor  # [G, n] bool: said nothing new
    residual: Tensor  # [G, n] float64: length of what of the unit feature the samples before it did not say, 0 to 1
    duplicates: Duplicates


@dataclass(frozen=True, slots=True)
class Weights:
    """The derivatives of a loss, by features in coordinates."""

    by_feature: Tensor  # [G, n, N] float64
    by_quality: Tensor  # [G, n] float64
    rough: Tensor | None = None  # [G, n] float64: the features were multiplied by 1 + rough * noise before


Weigh = Callable[[Coordinates], Weights]

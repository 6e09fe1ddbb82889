"""The arrays that the fused kernels pass to each other on the device.

Shapes: B samples, S positions, V columns, W columns with padding.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from . import passes as device


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of the vocabulary are protected or never written."""

    flags: Tensor  # [V] uint8
    busy: Tensor  # [blocks of BUSY columns] uint8: whether any flag is set in the block
    protected: Tensor  # [p] int32, without those that are never written


@dataclass(frozen=True, slots=True)
class Push:
    """The push on the masked rows of B samples; with the logits it gives the pushed logits."""

    largest: Tensor  # [B, S] largest logit, or NaN if the row has one
    likeliest: Tensor  # [B, S] int32: its column
    rest: Tensor  # [B, S]: sum of exp(x - largest) over the other columns
    at_peak: Tensor  # [B, S]: decrease of the likeliest column
    even: Tensor  # [B, S]: increase of every other column, divided by exp(x - largest)
    force: Tensor  # [B]
    pull: Tensor  # [B, W]: decrease of an owned column, divided by force
    owner: Tensor  # [B, W]: the row that owns a column, or S if a committed token does
    columns: Columns


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of one pass over the masked rows of B samples, besides features and draws."""

    largest: Tensor  # [B, S]
    likeliest: Tensor
    rest: Tensor
    power: Tensor  # [B, S]: sum of squared probabilities, without the likeliest and the protected
    peaks: Tensor  # [B, S]: zeros, for the pull of the likeliest columns
    owner: Tensor  # [B, W]
    order: Tensor  # [B, S]: positions, the masked ones first
    counts: Tensor  # [B]: of masked positions
    quality: Tensor  # [B] float64: mean probability of the likeliest token


@dataclass(frozen=True, slots=True)
class Drawn:
    """The result of the sampling kernel, [B, S] each; present tokens and zeros where not open."""

    tokens: Tensor  # int64
    confidence: Tensor  # float64, as all that follow: the token's probability after the push
    logprob: Tensor  # its logarithm
    base_logprob: Tensor  # the same before the push
    extra: Tensor  # margin or entropy, if needed
    largest: Tensor  # largest pushed logit, or NaN if the row has one


@lru_cache(maxsize=64)
def columns_of(
    V: int, never: tuple[int, ...], protected: tuple[int, ...], where: torch.device
) -> Columns:
    """Make the columns, cached because every copy from the host would wait for the device."""
    flags = torch.zeros(V, dtype=torch.uint8)
    flags[list(never)] |= device.NEVER.value
    flags[list(protected)] |= device.PROTECTED.value
    cells = torch.nn.functional.pad(flags, (0, -V % device.BUSY.value)).view(-1, device.BUSY.value)
    pushable = torch.tensor(sorted(set(protected) - set(never)), dtype=torch.int32)
    return Columns(flags.to(where), cells.any(dim=1).to(where, torch.uint8), pushable.to(where))

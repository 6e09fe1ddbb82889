"""What the fused kernels leave for each other, as arrays on the device.

B samples, S positions, V columns, W: V rounded up.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from . import passes as device


@dataclass(frozen=True, slots=True)
class Columns:
    """What is special about the columns of a vocabulary."""

    flags: Tensor  # [V] uint8
    busy: Tensor  # [cells of BUSY columns] uint8: any flags there?
    protected: Tensor  # [p] int32, without those that are never written


@dataclass(frozen=True, slots=True)
class Push:
    """How the masked rows of B samples move: what forms the pushed logits, cell by cell, from the
    logits themselves.
    """

    largest: Tensor  # [B, S] largest logit; NaN where there was one
    likeliest: Tensor  # [B, S] int32: its column
    rest: Tensor  # [B, S]: sum of exp(x - largest) over the other columns
    at_peak: Tensor  # [B, S]: what the likeliest column loses
    even: Tensor  # [B, S]: what a column gains, times exp(x - largest)
    force: Tensor  # [B]
    pull: Tensor  # [B, W]: what an owned column loses, times force
    owner: Tensor  # [B, W]: the row that owns a column, S where a committed token does
    columns: Columns


@dataclass(frozen=True, slots=True)
class Rows:
    """What one pass over the masked rows of B samples leaves behind, beside features and draws."""

    largest: Tensor  # [B, S]
    likeliest: Tensor
    rest: Tensor
    power: Tensor  # [B, S]: sum of squared probabilities, without the likeliest and the protected
    owner: Tensor  # [B, W]
    order: Tensor  # [B, S]: positions, the masked ones first
    counts: Tensor  # [B]: of masked positions


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the sampling kernel leaves behind, [B, S] each; where not open the tokens as they are,
    and zeros.
    """

    tokens: Tensor  # int64
    confidence: Tensor  # float64, as the next three: the token's probability after the push
    logprob: Tensor  # its logarithm
    base_logprob: Tensor  # the same before the push
    extra: Tensor  # margin or entropy, where needed
    largest: Tensor  # largest pushed logit; NaN where there was one


@lru_cache(maxsize=64)
def columns_of(
    V: int, never: tuple[int, ...], protected: tuple[int, ...], where: torch.device
) -> Columns:
    """Made once, since every copy from the host would wait for the device."""
    flags = torch.zeros(V, dtype=torch.uint8)
    flags[list(never)] |= device.NEVER.value
    flags[list(protected)] |= device.PROTECTED.value
    cells = torch.nn.functional.pad(flags, (0, -V % device.BUSY.value)).view(-1, device.BUSY.value)
    pushable = torch.tensor(sorted(set(protected) - set(never)), dtype=torch.int32)
    return Columns(flags.to(where), cells.any(dim=1).to(where, torch.uint8), pushable.to(where))

"""Alpha schedules: how alpha falls over the steps. A new schedule is one function here."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Registry

# Time left [B] (from 1 to 0) and planned steps -> factor on alpha [B].
AlphaSchedule = Callable[[Tensor, int], Tensor]
ALPHA_SCHEDULES: Registry[AlphaSchedule] = Registry("alpha_schedule")


@ALPHA_SCHEDULES.register
def linear(time_left: Tensor, total: int) -> Tensor:
    """Full alpha at the start, falling linearly to 0 (the published code)."""
    return time_left


@ALPHA_SCHEDULES.register
def constant(time_left: Tensor, total: int) -> Tensor:
    """The same alpha at every step."""
    return torch.ones_like(time_left)


@ALPHA_SCHEDULES.register
def cosine(time_left: Tensor, total: int) -> Tensor:
    """Falls like half a cosine: slowly at the start and at the end."""
    return 0.5 * (1 - (math.pi * time_left).cos())


@ALPHA_SCHEDULES.register
def paper(time_left: Tensor, total: int) -> Tensor:
    """1 - 1/t with t steps left (the paper's Algorithm 1): nearly full alpha until the end."""
    return 1 - 1 / (time_left * total).clamp(min=1)

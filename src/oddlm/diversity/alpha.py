"""How the force of a push falls over the steps of a run. A new schedule is one function here."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Registry

AlphaSchedule = Callable[
    [Tensor, int], Tensor
]  # time left [B] (1 to 0), planned steps -> factor on alpha [B]
ALPHA_SCHEDULES: Registry[AlphaSchedule] = Registry("alpha_schedule")


@ALPHA_SCHEDULES.register
def linear(time_left: Tensor, total: int) -> Tensor:
    """Full force at the start, falling in a straight line (the published code)."""
    return time_left


@ALPHA_SCHEDULES.register
def constant(time_left: Tensor, total: int) -> Tensor:
    """The same force at every step."""
    return torch.ones_like(time_left)


@ALPHA_SCHEDULES.register
def cosine(time_left: Tensor, total: int) -> Tensor:
    """Slow to fall, slow to end."""
    return 0.5 * (1 - (math.pi * time_left).cos())


@ALPHA_SCHEDULES.register
def paper(time_left: Tensor, total: int) -> Tensor:
    """1 - 1/t with t steps left (the paper's Algorithm 1): full force almost to the end."""
    return 1 - 1 / (time_left * total).clamp(min=1)

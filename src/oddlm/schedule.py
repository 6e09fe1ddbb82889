"""How many positions each row commits at a step, and which ones those are."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from .alarm import Alarm
from .checks import outside, whole
from .types import Step


@dataclass(frozen=True, slots=True)
class Schedule:
    """`steps` network evaluations over `length` positions, in blocks from left to right."""

    length: int
    steps: int
    block_length: int

    @classmethod
    def plan(cls, length: int, steps: int, block_length: int | None, *, fork: bool) -> "Schedule":
        """Check and clamp: no step may commit nothing."""
        length, steps = whole("length", length), whole("steps", steps)
        block_length = length if block_length is None else whole("block_length", block_length)
        if length % block_length:
            divisors = ", ".join(str(d) for d in range(1, length + 1) if length % d == 0)
            raise ValueError(f"block_length {block_length} does not divide length {length}; allowed: {divisors}")
        blocks = length // block_length
        if steps > length:
            warnings.warn(f"steps {steps} clamped to length {length}: a step commits at least one token", stacklevel=outside())
            steps = length
        if steps % blocks:
            raise ValueError(f"steps {steps} do not divide evenly over {blocks} blocks; use a multiple of {blocks}")
        if fork and steps // blocks < min(2, block_length):
            raise ValueError(f"fork spends step 0 on one token per sample: it needs steps >= {2 * blocks}, not {steps}")
        return cls(length, steps, block_length)

    @property
    def steps_per_block(self) -> int:
        return self.steps * self.block_length // self.length

    def open(self, masked: Tensor) -> Tensor:
        """[B, L]: the masked positions of each row's first unfinished block."""
        blocks: Tensor = masked.unflatten(1, (-1, self.block_length))  # [B, blocks, block_length]
        pending = blocks.any(dim=2)
        first = pending & (pending.cumsum(dim=1) == 1)
        return (blocks & first[..., None]).flatten(1)

    def counts(self, *, fork: bool) -> list[int]:
        """Masked positions of every row before each step, and after the last, where no policy commits more than its quota."""
        counts = [self.length]
        for index in range(self.steps):
            block, written = divmod(self.length - counts[-1], self.block_length)
            left = (block + 1) * self.steps_per_block - index
            quota = -(-(self.block_length - written) // left)
            counts.append(counts[-1] - (1 if fork and index == 0 else quota))
        return counts

    def quota(self, step: Step) -> Tensor:
        """[B]: open positions over the steps left to their block, rounded up.

        A row that a parallel policy has carried ahead keeps the steps it saved.
        """
        block = step.open.unflatten(1, (-1, self.block_length)).any(dim=2).long().argmax(dim=1)
        left = ((block + 1) * self.steps_per_block - step.index).clamp(min=1)
        quota: Tensor = (step.open.sum(dim=1) + left - 1) // left
        return quota


def select(score: Tensor, quota: Tensor | int, step: Step, alarm: Alarm) -> Tensor:
    """[B, L]: the `quota` ([B], or the same for all) best open positions (lowest position on ties), and every +inf of a
    parallel policy.
    """
    if score.shape != step.open.shape:
        raise ValueError(f"policy returned scores of shape {tuple(score.shape)}, expected {tuple(step.open.shape)}")
    alarm.check(score.isnan() & step.open, score, _describe)
    score = score.double()
    among = score.clamp(min=torch.finfo(score.dtype).min).masked_fill(~step.open, -torch.inf)
    ranked = among.sort(dim=1, descending=True, stable=True).indices
    best = torch.arange(score.shape[1], device=score.device) < (quota if isinstance(quota, int) else quota[:, None])
    commit = torch.zeros_like(step.open).scatter(1, ranked, best.expand_as(ranked))
    if step.parallel:
        commit = commit | score.isposinf()
    return commit & step.open


def _describe(row: int, position: int, value: float) -> str:
    return f"score is NaN at row {row}, position {position}: does the guide return NaN logits?"

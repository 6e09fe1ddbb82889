"""How many positions of each sample a step commits, and which ones those are."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import outside, whole
from .alarm import Alarm
from .blocks import Blocks
from .step import Step


@dataclass(frozen=True, slots=True)
class Quota:
    """`steps` network evaluations over `length` positions, in blocks from left to right."""

    length: int
    steps: int
    block_length: int

    @classmethod
    def plan(
        cls, length: int, steps: int, block_length: int | None, *, fork: bool, remasks: bool = False
    ) -> "Quota":
        """Check and clamp: no step may commit nothing, save where tokens are taken back."""
        length, steps = whole("length", length), whole("steps", steps)
        block_length = length if block_length is None else whole("block_length", block_length)
        if length % block_length:
            divisors = ", ".join(str(d) for d in range(1, length + 1) if length % d == 0)
            raise ValueError(
                f"block_length {block_length} does not divide length {length}; allowed: {divisors}"
            )
        blocks = length // block_length
        if steps > length and not remasks:
            warnings.warn(
                f"steps {steps} clamped to length {length}: a step commits at least one token",
                stacklevel=outside(),
            )
            steps = length
        if steps % blocks:
            raise ValueError(
                f"steps {steps} do not divide evenly over {blocks} blocks; use a multiple of {blocks}"
            )
        if fork and steps // blocks < min(2, block_length):
            raise ValueError(
                f"fork spends step 0 on one token per sample: it needs steps >= {2 * blocks}, not {steps}"
            )
        return cls(length, steps, block_length)

    @property
    def steps_per_block(self) -> int:
        return self.steps * self.block_length // self.length

    def per_step(self, left: int, masked: int) -> int:
        """Masked positions over the steps left to their block: rounded up, or down where there are
        more steps than tokens.
        """
        return masked // left if self.steps_per_block > self.block_length else -(-masked // left)

    def counts(self, *, fork: bool) -> list[int]:
        """Masked positions of every sample before each step, and after the last; where no policy
        exceeds its quota.
        """
        counts = [self.length]
        for index in range(self.steps):
            block, done = divmod(index, self.steps_per_block)
            masked = counts[-1] - (
                self.length - (block + 1) * self.block_length
            )  # of the open block
            counts.append(
                counts[-1]
                - (1 if fork and index == 0 else self.per_step(self.steps_per_block - done, masked))
            )
        return counts

    def behind(self, index: int) -> int:
        """Positions of the blocks behind the one that is open at a step."""
        return self.length - (index // self.steps_per_block + 1) * self.block_length

    def ends(self, blocks: Blocks) -> Tensor:
        """[B or 1, blocks]: the step before which each block is written.

        A block that is cut short has fewer steps.
        """
        sizes = torch.zeros(
            len(blocks.ids), blocks.count, dtype=torch.long, device=blocks.ids.device
        )
        sizes.scatter_add_(1, blocks.ids, torch.ones_like(blocks.ids))
        steps = (sizes * self.steps_per_block + self.block_length - 1) // self.block_length
        return steps.cumsum(dim=1)


def quotas(step: Step, ends: Tensor, *, down: bool = False) -> Tensor:
    """[B]: open positions over the steps left to their block, rounded up (or down).

    A sample that has run ahead keeps the steps it saved.
    """
    block = step.blocks.current.clamp(max=ends.shape[1] - 1)[:, None]
    left = (ends.expand(len(block), -1).gather(1, block)[:, 0] - step.index).clamp(min=1)
    masked = step.open.sum(dim=1)
    quota: Tensor = masked // left if down else (masked + left - 1) // left
    return quota


def select(score: Tensor, quota: Tensor | int, step: Step, alarm: Alarm) -> Tensor:
    """[B, L]: the `quota` ([B], or the same for all) best open positions (lowest position on ties),
    and every +inf of a parallel policy.
    """
    if score.shape != step.open.shape:
        raise ValueError(
            f"policy returned scores of shape {tuple(score.shape)}, expected {tuple(step.open.shape)}"
        )
    alarm.check(score.isnan() & step.open, score, _describe)
    score = score.double()
    among = score.clamp(min=torch.finfo(score.dtype).min).masked_fill(~step.open, -torch.inf)
    ranked = among.sort(dim=1, descending=True, stable=True).indices
    best = torch.arange(score.shape[1], device=score.device) < (
        quota if isinstance(quota, int) else quota[:, None]
    )
    commit = torch.zeros_like(step.open).scatter(1, ranked, best.expand_as(ranked))
    if step.parallel:
        commit = commit | score.isposinf()
    return commit & step.open


def _describe(row: int, position: int, value: float) -> str:
    return f"score is NaN at sample {row}, position {position}: does the guide return NaN logits?"

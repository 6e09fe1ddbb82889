"""How many positions of each sample a step commits, and which ones."""

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
        """Check the arguments, and clamp steps so that each commits a token (unless it remasks)."""
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
                f"steps {steps} do not divide evenly over {blocks} blocks; "
                f"use a multiple of {blocks}"
            )
        if fork and steps // blocks < min(2, block_length):
            raise ValueError(
                "fork spends step 0 on one token per sample: "
                f"it needs steps >= {2 * blocks}, not {steps}"
            )
        return cls(length, steps, block_length)

    @property
    def steps_per_block(self) -> int:
        return self.steps * self.block_length // self.length

    def per_step(self, left: int, masked: int) -> int:
        """Divide masked positions by the steps left to their block.

        Rounds up, or down if there are more steps than tokens.
        """
        return masked // left if self.steps_per_block > self.block_length else -(-masked // left)

    def counts(self, *, fork: bool) -> list[int]:
        """Return the masked positions of every sample before each step and after the last.

        This holds for policies that do not exceed their quota.
        """
        counts = [self.length]
        for index in range(self.steps):
            done = index % self.steps_per_block
            masked = counts[-1] - self.behind(index)  # of the open block
            forks = fork and index == 0
            commits = 1 if forks else self.per_step(self.steps_per_block - done, masked)
            counts.append(counts[-1] - commits)
        return counts

    def behind(self, index: int) -> int:
        """Return the number of positions after the block that is open at a step."""
        return self.length - (index // self.steps_per_block + 1) * self.block_length

    def ends(self, blocks: Blocks) -> Tensor:
        """Return the step by which each block is written, [B or 1, blocks].

        A shorter block has fewer steps.
        """
        sizes = torch.zeros(
            len(blocks.ids), blocks.count, dtype=torch.long, device=blocks.ids.device
        )
        sizes.scatter_add_(1, blocks.ids, torch.ones_like(blocks.ids))
        steps = (sizes * self.steps_per_block + self.block_length - 1) // self.block_length
        return steps.cumsum(dim=1)


def quotas(step: Step, ends: Tensor, *, down: bool = False) -> Tensor:
    """Return open positions divided by the steps left to their block, rounded up (or down), [B].

    A sample that is ahead keeps the steps it has saved.
    """
    block = step.blocks.current.clamp(max=ends.shape[1] - 1)[:, None]
    left = (ends.expand(len(block), -1).gather(1, block)[:, 0] - step.index).clamp(min=1)
    masked = step.open.sum(dim=1)
    quota: Tensor = masked // left if down else (masked + left - 1) // left
    return quota


def select(score: Tensor, quota: Tensor | int, step: Step, alarm: Alarm) -> Tensor:
    """Select the `quota` best open positions, and every +inf of a parallel policy, as [B, L] bool.

    `quota` is [B] or the same for all samples. Ties go to the lowest position.
    """
    expected = tuple(step.open.shape)
    if score.shape != expected:
        raise ValueError(
            f"policy returned scores of shape {tuple(score.shape)}, expected {expected}"
        )
    alarm.check(score.isnan() & step.open, score, _describe)
    score = score.double()
    among = score.clamp(min=torch.finfo(score.dtype).min).masked_fill(~step.open, -torch.inf)
    ranked = among.sort(dim=1, descending=True, stable=True).indices
    limit = quota if isinstance(quota, int) else quota[:, None]
    best = torch.arange(score.shape[1], device=score.device) < limit
    commit = torch.zeros_like(step.open).scatter(1, ranked, best.expand_as(ranked))
    if step.parallel:
        commit = commit | score.isposinf()
    return commit & step.open


def _describe(sample: int, position: int, value: float) -> str:
    return (
        f"score is NaN at sample {sample}, position {position}: does the guide return NaN logits?"
    )

"""How many positions of each sample a step commits, and which ones."""

import warnings
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import torch
from torch import Tensor

from ..checks import outside, whole
from .alarm import Alarm, Check
from .blocks import Align, Blocks
from .model import ModelInfo
from .step import Step


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of a run whose samples all write as many tokens at the same time."""

    masked: int  # positions before the step
    open: int  # those of the open block
    low: int  # the first position of that block
    opens: bool  # whether no step was taken in it


@dataclass(frozen=True, slots=True)
class Quota:
    """`steps` network evaluations over `length` positions, in blocks from left to right."""

    length: int
    steps: int
    block_length: int

    @classmethod
    def plan(
        cls,
        length: int,
        steps: int,
        block_length: int | None,
        *,
        fork: bool,
        remasks: bool = False,
        align: Align = "answer",
    ) -> "Quota":
        """Check the arguments, and clamp steps so that each commits a token (unless it remasks).

        With absolute alignment, an answer may begin and end inside a block.
        """
        length, steps = whole("length", length), whole("steps", steps)
        block_length = length if block_length is None else whole("block_length", block_length)
        if length % block_length and align == "answer":
            divisors = ", ".join(str(d) for d in range(1, length + 1) if length % d == 0)
            raise ValueError(
                f"block_length {block_length} does not divide length {length}; allowed: {divisors}"
            )
        if steps > length and not remasks:
            warnings.warn(
                f"steps {steps} clamped to length {length}: a step commits at least one token",
                stacklevel=outside(),
            )
            steps = length
        if steps * block_length % length:
            raise ValueError(
                f"steps {steps} do not divide evenly over {length / block_length:g} blocks; "
                f"use a multiple of {length // gcd(length, block_length)}"
            )
        if fork and steps * block_length // length < min(2, block_length):
            raise ValueError(
                "fork spends step 0 on one token per sample: "
                f"it needs steps >= {-(-2 * length // block_length)}, not {steps}"
            )
        return cls(length, steps, block_length)

    @property
    def steps_per_block(self) -> int:
        return self.steps * self.block_length // self.length

    @property
    def down(self) -> bool:
        """Whether a step's share is rounded down, because there are more steps than tokens."""
        return self.steps_per_block > self.block_length

    def sizes(self, before: int) -> list[int]:
        """Return the lengths of an answer's blocks, given the tokens before it in the first one."""
        edges = [0, *range(self.block_length - before, self.length, self.block_length), self.length]
        return [high - low for low, high in pairwise(edges)]

    def schedule(self, before: int, *, fork: bool) -> tuple[Moment, ...]:
        """Return what is known of each step in advance, if all samples' blocks are alike.

        This holds for policies that do not exceed their quota. `before` is that of `sizes`.
        """
        moments, sizes = [], self.sizes(before)
        index, due, low = 0, 0, 0
        for size in sizes:
            due += self._steps_of(size)
            left, opens = size, True
            while left:
                moments.append(Moment(self.length - low - size + left, left, low, opens))
                steps = max(1, due - index)
                share = left // steps if self.down else -(-left // steps)
                left -= 1 if fork and index == 0 else share
                index, opens = index + 1, False
            low += size
        return tuple(moments)

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

    def most_steps(self, *, fork: bool) -> int:
        """Return the most steps of an answer with absolute alignment, whatever its prompt.

        (So the steps of a sample do not depend on the prompts beside its own.)
        """
        most = 0
        for first in range(1, min(self.block_length, self.length) + 1):
            whole_blocks, last = divmod(self.length - first, self.block_length)
            edges = self._steps_of(first) + self._steps_of(last)
            most = max(most, edges + whole_blocks * self.steps_per_block)
        # A fork takes one step more if it does not finish a block that has only one.
        late = fork and self.steps_per_block < self.block_length
        return most + late

    def _steps_of(self, size: int) -> int:
        """Return the steps of a block of this size; a shorter one has fewer."""
        return -(-size * self.steps_per_block // self.block_length)


def plan_quota(
    length: int,
    steps: int,
    block_length: int | None,
    info: ModelInfo,
    *,
    fork: bool,
    remasks: bool = False,
) -> Quota:
    """Return the quota of a run of this model, in its own blocks if none are asked for.

    Raises ValueError if a block to be written crosses a block boundary of the network.
    """
    asked = info.default_block_length if block_length is None else block_length
    if info.drafting is not None:
        if info.block_length is not None:
            check_drafts(info.identity, info.block_length, whole("length", length), asked)
        remasks = True  # a step that writes nothing is none too many
    quota = Quota.plan(length, steps, asked, fork=fork, remasks=remasks, align=info.align)
    own, used = info.block_length, quota.block_length
    crosses = used > (own or used) or used < quota.length or info.align == "absolute"
    if own is not None and own % used and crosses:
        raise ValueError(
            f"{info.identity} is block-causal, in blocks of {own} tokens, which block_length "
            f"{used} does not divide: give block_length={own} or a divisor of it"
        )
    return quota


def check_drafts(name: str, own: int, length: int, block_length: int | None) -> None:
    """Raise ValueError unless a model that drafts blocks of `own` tokens can write this length."""
    if length % own or block_length != own:
        raise ValueError(
            f"{name} drafts blocks of {own} tokens, all at once: length must be a multiple of "
            f"{own}, not {length}, and block_length {own} or left out"
        )


def quotas(step: Step, ends: Tensor, *, down: bool = False) -> Tensor:
    """Return open positions divided by the steps left to their block, rounded up (or down), [B].

    A sample that is ahead keeps the steps it has saved. Steps that review a block do not count.
    """
    block = step.blocks.current.clamp(max=ends.shape[1] - 1)[:, None]
    index = step.index if step.reviewed is None else step.index - step.reviewed
    left = (ends.expand(len(block), -1).gather(1, block)[:, 0] - index).clamp(min=1)
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
    alarm.check(Check(score, step.open, torch.isnan, _describe))
    score = score.double()
    among = score.clamp(min=torch.finfo(score.dtype).min).where(step.open, -torch.inf)
    ranked = among.sort(dim=1, descending=True, stable=True).indices
    commit = torch.zeros_like(step.open)
    if isinstance(quota, int):
        commit = commit.scatter_(1, ranked[:, :quota], True)
    else:
        best = torch.arange(score.shape[1], device=score.device) < quota[:, None]
        commit = commit.scatter_(1, ranked, best)
    if step.parallel:
        commit = commit | score.isposinf()
    return commit & step.open


def _describe(sample: int, position: int, value: float) -> str:
    return (
        f"score is NaN at sample {sample}, position {position}: does the guide return NaN logits?"
    )

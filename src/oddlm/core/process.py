"""What a step may do to tokens.

Absorbing: MASK becomes a token, and stays one. Remasking: a policy may take tokens of the open block back (ReMDM: Wang et al.
2025, arXiv:2503.00307). Uniform: the canvas holds random tokens where nothing is accepted yet, new ones at every step; a token
that is taken back becomes noise again.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .noise import Purpose
from .step import Decision, Prediction, Step


class Process(Protocol):
    def blank(self, step: Step) -> Tensor | int:
        """What stands where nothing is written, before this step: [B, L] or one token for all."""

    def write(self, prediction: Prediction, decision: Decision, step: Step) -> tuple[Tensor, Tensor]:
        """Tokens [B, L] and what is masked [B, L] after a step; what stands where nothing is written is `blank`'s business."""


@dataclass(frozen=True, slots=True)
class Absorbing:
    mask_id: int

    def blank(self, step: Step) -> Tensor | int:
        return self.mask_id

    def write(self, prediction: Prediction, decision: Decision, step: Step) -> tuple[Tensor, Tensor]:
        return torch.where(decision.commit, prediction.tokens, step.tokens), step.masked & ~decision.commit


@dataclass(frozen=True, slots=True)
class Remasking(Absorbing):
    def write(self, prediction: Prediction, decision: Decision, step: Step) -> tuple[Tensor, Tensor]:
        tokens, masked = Absorbing.write(self, prediction, decision, step)
        if decision.remask is None:
            return tokens, masked
        return tokens.masked_fill(decision.remask, self.mask_id), masked | decision.remask


@dataclass(frozen=True, slots=True)
class Uniform:
    vocab_size: int
    never: tuple[int, ...]  # tokens that noise is not made of, in ascending order

    def blank(self, step: Step) -> Tensor | int:
        keys = step.keys(Purpose.CANVAS, step.tokens.shape[1])
        noise = (keys >> 1).bitwise_and((1 << 62) - 1) % (self.vocab_size - len(self.never))
        for token in self.never:
            noise = noise + (noise >= token)
        return noise

    def write(self, prediction: Prediction, decision: Decision, step: Step) -> tuple[Tensor, Tensor]:
        tokens, masked = torch.where(decision.commit, prediction.tokens, step.tokens), step.masked & ~decision.commit
        return tokens, masked if decision.remask is None else masked | decision.remask

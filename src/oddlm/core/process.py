"""What a step may do to tokens.

Absorbing: MASK becomes a token, and stays one. Remasking: a policy may take tokens of the open
block back (ReMDM: Wang et al.
2025, arXiv:2503.00307). Uniform: the canvas holds random tokens where nothing is accepted yet, new
ones at every step; a token that is taken back becomes noise again.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from .noise import Purpose
from .step import Step


class Process(Protocol):
    renews: ClassVar[
        bool
    ]  # is `blank` written anew before every step? Else what is masked holds it from the start

    def blank(self, step: Step) -> Tensor | int:
        """What stands where nothing is written, before this step: [B, L] or one token for all."""


@dataclass(frozen=True, slots=True)
class Absorbing:
    mask_id: int
    renews: ClassVar[bool] = False

    def blank(self, step: Step) -> Tensor | int:
        return self.mask_id


@dataclass(frozen=True, slots=True)
class Remasking(Absorbing):
    renews: ClassVar[bool] = True  # also where a token was taken back


@dataclass(frozen=True, slots=True)
class Uniform:
    vocab_size: int
    never: tuple[int, ...]  # tokens that noise is not made of, in ascending order
    renews: ClassVar[bool] = True

    def blank(self, step: Step) -> Tensor | int:
        keys = step.keys(Purpose.CANVAS, step.tokens.shape[1])
        noise = (keys >> 1).bitwise_and((1 << 62) - 1) % (self.vocab_size - len(self.never))
        for token in self.never:
            noise = noise + (noise >= token)
        return noise

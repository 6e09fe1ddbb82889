"""The diffusion process: what a step may do to tokens.

Absorbing: MASK becomes a token and stays one. Remasking: a policy may mask tokens of the open block
again (ReMDM: Wang et al. 2025, arXiv:2503.00307). Editing: a policy may replace tokens of the open
block by others (LLaDA2.1). Uniform: positions without an accepted token hold random tokens, new
ones at every step; a remasked token becomes noise again. Renoising: a token is accepted for one
step only, and nothing is written before the whole block is (`drafts`).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from .noise import Purpose
from .step import Step


class Process(Protocol):
    """How masked positions are filled."""

    renews: ClassVar[bool]  # whether `blank` is written before every step, or only at the start

    def blank(self, step: Step) -> Tensor | int:
        """Return the tokens of masked positions before this step: [B, L], or one for all."""


@dataclass(frozen=True, slots=True)
class Absorbing:
    """Masked positions hold MASK."""

    mask_id: int
    renews: ClassVar[bool] = False

    def blank(self, step: Step) -> Tensor | int:
        return self.mask_id


@dataclass(frozen=True, slots=True)
class Remasking(Absorbing):
    """Masked positions hold MASK, also after a token was remasked."""

    renews: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Editing(Absorbing):
    """Written tokens of the open block may be replaced until the block is settled.

    A step on a block without masks is a review. The block is settled by a review that replaces
    nothing, or by the last of `reviews`, since two tokens may replace each other for ever.
    """

    reviews: int = 16

    def settled(self, step: Step, commit: Tensor) -> Tensor:
        """Return which samples [B] settle their block by a step that commits these tokens."""
        assert step.reviews is not None
        replaced = (commit & ~step.masked).any(dim=1)
        last = step.reviews >= self.reviews - 1
        return step.reviewing & (~replaced | last)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Masked positions hold random tokens, new ones at every step."""

    vocab_size: int
    never: tuple[int, ...]  # tokens that are never noise, in ascending order
    renews: ClassVar[bool] = True

    def blank(self, step: Step) -> Tensor:
        keys = step.keys(Purpose.CANVAS, step.tokens.shape[1])
        noise = (keys >> 1).bitwise_and((1 << 62) - 1) % (self.vocab_size - len(self.never))
        for token in self.never:
            noise = noise + (noise >= token)
        return noise


@dataclass(frozen=True, slots=True)
class Renoising(Uniform):
    """Masked positions hold what the last step accepted, and new random tokens elsewhere."""

    def blank(self, step: Step) -> Tensor:
        assert step.draft is not None
        return step.tokens.where(step.draft.held, Uniform.blank(self, step))

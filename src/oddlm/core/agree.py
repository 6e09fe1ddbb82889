"""Parallel policies under a guide: what the push alone makes certain is no reason to hurry.

A push of some logits makes the token that it favours look certain at every position it reaches, so
a parallel policy would commit them all at once, and their tokens would not fit each other.
Therefore a position exceeds the quota only where the push does not change the choice: where plain
sampling, with the same noise, would commit the same token at once, too. The quota itself goes to
the best positions after the push, as always.
"""

import torch
from torch import Tensor

from .step import Prediction, Proposal


def agreed(pushed: tuple[Prediction, Proposal], plain: tuple[Prediction, Proposal]) -> Tensor:
    """Return the pushed score [B, L], with +inf only where plain sampling agrees.

    Other positions that had +inf are ranked by confidence, before all that had a finite score.
    """
    (prediction, proposal), (own, other) = pushed, plain
    hurried = proposal.score.isposinf()
    both = hurried & other.score.isposinf() & (prediction.tokens == own.tokens)
    ranked = torch.finfo(torch.float64).max * prediction.confidence
    return torch.where(hurried & ~both, ranked, proposal.score.double())

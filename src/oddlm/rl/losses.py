"""What is made of rewards and likelihoods: advantages, and losses.

A loss is a function of the log-probabilities of the tokens, [B, S], now and when they were drawn,
and of the batch; it returns a number for each token. Its keyword-only arguments are its
hyperparameters. An advantage is a function of rewards [G, n] with values of the same shape.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Registry
from .batch import Batch

Loss = Callable[[Tensor, Tensor, Batch], Tensor]
Advantage = Callable[[Tensor], Tensor]
LOSSES: Registry[Loss] = Registry("loss")
ADVANTAGES: Registry[Advantage] = Registry("advantage")
USUAL = {"wd1": "softmax"}  # the advantage that belongs to a loss; that of all others is `group`


@LOSSES.register
def grpo(
    logprobs: Tensor, before: Tensor, batch: Batch, *, low: float = 0.2, high: float = 0.2
) -> Tensor:
    """The clipped surrogate: no gain from a ratio below 1 - low or above 1 + high."""
    ratio = (logprobs - before).exp()
    advantages = batch.advantages[:, None]
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


@LOSSES.register
def wd1(logprobs: Tensor, before: Tensor, batch: Batch) -> Tensor:
    """The weighted negative log-likelihood, without a ratio (Tang et al. 2025, wd1).

    It cannot grow without bound where an estimate of the ratio is poor (arXiv:2507.08838).
    """
    return -batch.advantages[:, None] * logprobs


@ADVANTAGES.register
def group(rewards: Tensor, *, scale: bool = True) -> Tensor:
    """How much better than the mean of its group each sample is.

    scale: in standard deviations of the group.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    if not scale:
        return centred
    # Groups with equal rewards have no deviation, and are 0 anyway.
    return centred / rewards.std(dim=1, keepdim=True, correction=0).clamp(min=1e-6)


@ADVANTAGES.register
def softmax(rewards: Tensor, *, sharpness: float = 1.0) -> Tensor:
    """The softmax of the rewards in a group minus that of the penalties, times n."""
    centred = sharpness * (rewards - rewards.mean(dim=1, keepdim=True))
    return rewards.shape[1] * (centred.softmax(dim=1) - (-centred).softmax(dim=1))


def tilted(advantages: Tensor, negative_weight: float) -> Tensor:
    """Give samples that are worse than their group less weight, or none."""
    return torch.where(advantages < 0, advantages * negative_weight, advantages)

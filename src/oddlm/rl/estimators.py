"""Estimators of the log-probability of each token of a sample.

An estimator hides tokens of answers and looks at what the network makes of them. It is a function
of the batch, of `look`, and of a generator for its choices; its keyword-only arguments are its
hyperparameters. `look(prompts, answers)` takes what the network is to see, [B, P] and [B, S], and
returns the log-probabilities of the true tokens, [B, S].
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..checks import whole
from ..registry import Registry
from .batch import Batch

Look = Callable[[Tensor, Tensor], Tensor]
Estimator = Callable[[Batch, Look, torch.Generator], Tensor]
ESTIMATORS: Registry[Estimator] = Registry("estimator")


@ESTIMATORS.register
def d1(
    batch: Batch, look: Look, generator: torch.Generator, *, prompt_mask: float = 0.15
) -> Tensor:
    """Look once, at nothing but the prompt, some of whose tokens are hidden, too.

    The hidden tokens differ from update to update, which regularises those that share rollouts
    (diffu-GRPO: Zhao et al. 2025, arXiv:2504.12216).
    """
    shape, device = batch.prompts.shape, batch.prompts.device
    hidden = torch.rand(shape, generator=generator, device=device) < prompt_mask
    prompts = batch.prompts.masked_fill(hidden, batch.mask_id)
    return look(prompts, torch.full_like(batch.tokens, batch.mask_id))


@ESTIMATORS.register
def coupled(
    batch: Batch,
    look: Look,
    generator: torch.Generator,
    *,
    pairs: int = 1,
    low: float = 0.2,
    high: float = 0.8,
) -> Tensor:
    """Look at answers with a random share of their tokens hidden, and with exactly the others.

    Every token is therefore seen hidden in a partly written answer, once per pair, and once more
    in an answer that is hidden whole; the mean is returned (coupled-GRPO: Gong et al. 2025,
    arXiv:2506.20639). `low` and `high` bound the share.
    """
    pairs = whole("pairs", pairs)
    tokens, device = batch.tokens, batch.tokens.device
    total = look(batch.prompts, torch.full_like(tokens, batch.mask_id))
    for _ in range(pairs):
        share = low + (high - low) * torch.rand(len(tokens), 1, generator=generator, device=device)
        first = torch.rand(tokens.shape, generator=generator, device=device) < share
        for hidden in (first, ~first):
            seen = look(batch.prompts, tokens.masked_fill(hidden, batch.mask_id))
            total = total + seen * hidden
    return total / (pairs + 1)


@ESTIMATORS.register
def trace(batch: Batch, look: Look, generator: torch.Generator, *, join: int = 1) -> Tensor:
    """Look at every canvas that the rollout went through: exact, at one pass for each step.

    `join` neighbouring steps are replayed as one, from the canvas before the first of them, which
    divides the cost (TraceRL: Wang et al. 2025, arXiv:2509.06949).
    """
    total = torch.zeros(batch.tokens.shape, device=batch.tokens.device)
    step = torch.where(batch.counted, batch.commit_step, -1)
    for first in range(0, batch.canvases.shape[1], whole("join", join)):
        written = (step >= first) & (step < first + join)
        if written.any():
            total = total + look(batch.prompts, batch.canvases[:, first]) * written
    return total

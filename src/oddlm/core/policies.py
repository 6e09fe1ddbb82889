"""Policies, which score the open positions; the sampler commits the best ones up to the quota.

A score is in the log domain, so that `order_temperature` (Gumbel noise on it) means the same for
every policy. A parallel policy gives +inf to positions that are committed whatever the quota. The
sampler takes care of selection, ties, the quota and closed positions; a policy cannot break them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Registry
from . import noise
from .step import Policy, Prediction, Proposal, Step

POLICIES: Registry[Policy] = Registry("policy")


def policy(
    *,
    needs: str | None = None,
    parallel: bool = False,
    remasks: bool = False,
    edits: bool = False,
) -> Callable[[Policy], Policy]:
    """Declare the properties of a policy.

    Args:
        needs: The statistic it reads besides confidence, "margin" or "entropy".
        parallel: It may exceed its quota.
        remasks: It may mask written tokens again, and returns a `Proposal`.
        edits: It may replace written tokens of the open block, and returns a `Proposal`.
    """

    def mark(function: Policy) -> Policy:
        function.needs = needs  # type: ignore[attr-defined]
        function.parallel = parallel  # type: ignore[attr-defined]
        function.remasks = remasks  # type: ignore[attr-defined]
        function.edits = edits  # type: ignore[attr-defined]
        return function

    return mark


@POLICIES.register
def low_confidence(prediction: Prediction, step: Step) -> Tensor:
    """Most probable choices first; the least confident stay masked (LLaDA's default)."""
    return prediction.confidence.log()


@POLICIES.register
def random(prediction: Prediction, step: Step) -> Tensor:
    """Positions in random order."""
    seeds, samples = step.address()
    return noise.gumbel(
        noise.key(seeds, samples, step.index, noise.Purpose.POLICY), step.tokens.shape[1]
    )


@POLICIES.register
@policy(needs="margin")
def margin(prediction: Prediction, step: Step) -> Tensor:
    """Largest lead of the most likely token over the second first."""
    assert prediction.margin is not None
    return prediction.margin.log()


@POLICIES.register
@policy(needs="entropy")
def entropy(prediction: Prediction, step: Step) -> Tensor:
    """Lowest entropy first (Dream's default)."""
    assert prediction.entropy is not None
    return -prediction.entropy


@POLICIES.register
@policy(parallel=True)
def threshold(prediction: Prediction, step: Step, *, threshold: float = 0.9) -> Tensor:
    """Everything more confident than `threshold` at once (Fast-dLLM)."""
    return prediction.confidence.log().masked_fill(prediction.confidence > threshold, torch.inf)


@POLICIES.register
@policy(parallel=True)
def factor(prediction: Prediction, step: Step, *, factor: float = 1.0) -> Tensor:
    """As many at once as joint confidence allows (Fast-dLLM's factor rule).

    Commits the longest prefix, most confident first, whose m-th member has
    (m + 1)(1 - confidence) < factor.
    """
    doubt = (1 - prediction.confidence).masked_fill(~step.open, torch.inf)
    ranked = doubt.sort(dim=1, stable=True)
    members = torch.arange(1, doubt.shape[1] + 1, device=doubt.device)
    prefix = ((members + 1) * ranked.values < factor).long().cumprod(dim=1).bool()
    return prediction.confidence.log().masked_fill(_unsort(prefix, ranked.indices), torch.inf)


@POLICIES.register
@policy(needs="entropy", parallel=True)
def entropy_bound(prediction: Prediction, step: Step, *, bound: float = 0.1) -> Tensor:
    """As many at once as their joint entropy allows (EB-Sampler).

    Commits the longest prefix, lowest entropy first, whose entropies without the largest sum to at
    most `bound` nats.
    """
    assert prediction.entropy is not None
    ranked = prediction.entropy.masked_fill(~step.open, torch.inf).sort(dim=1, stable=True)
    # Closed positions give inf - inf, which is never true.
    prefix = ranked.values.cumsum(dim=1) - ranked.values <= bound
    return (-prediction.entropy).masked_fill(_unsort(prefix, ranked.indices), torch.inf)


@POLICIES.register
@policy(remasks=True)
def remdm(
    prediction: Prediction, step: Step, *, eta: float = 0.1, weighted: bool = False
) -> Proposal:
    """Most probable choices first; written tokens are remasked with probability `eta` (ReMDM).

    Only tokens of the open block are remasked. The probability is capped by the share of positions
    that stay masked (ReMDM's capped schedule). `weighted` prefers tokens that were written with low
    confidence (its `conf` schedule). A step writes as many tokens more as it remasks, so a run
    takes no more steps.
    """
    assert step.revisable is not None
    assert step.target is not None
    assert step.confidence is not None
    written = step.revisable.sum(dim=1, keepdim=True)  # [B, 1]
    share = (step.target[:, None] / written.clamp(min=1)).clamp(max=eta)  # [B, 1]
    if weighted:
        weight = (
            (-step.confidence).masked_fill(~step.revisable, -torch.inf).softmax(dim=1).nan_to_num()
        )
        share = share * written * weight
    seeds, samples = step.address()
    keys = noise.key(seeds, samples, step.index, noise.Purpose.REMASK)
    return Proposal(
        prediction.confidence.log(),
        step.revisable & (noise.uniform(keys, step.tokens.shape[1]) < share),
    )


@POLICIES.register
@policy(parallel=True, edits=True)
def joint_threshold(
    prediction: Prediction, step: Step, *, threshold: float = 0.7, editing: float = 0.5
) -> Proposal:
    """Everything more confident than `threshold` at once, and written tokens edited (LLaDA2.1).

    A token of the open block is replaced by another one that is more confident than `editing`. The
    defaults are those that LLaDA2.1 calls its quality mode; its speed mode is 0.5 and 0.
    """
    assert step.editable is not None
    score = prediction.confidence.log().masked_fill(prediction.confidence > threshold, torch.inf)
    return Proposal(score, edit=step.editable & (prediction.confidence > editing))


def _unsort(flags: Tensor, order: Tensor) -> Tensor:
    return torch.zeros_like(flags).scatter(1, order, flags)

"""Repulsion without autograd for features with a known derivative, by the chain rule.

docs/kernels.md has the derivation. Shapes: G groups of n samples, S positions, V vocabulary, D
feature size.
"""

import torch
from torch import Tensor

from . import reference
from .batching import by_groups
from .contract import Batch, Repel

ELEMENTS = 1 << 21  # logits per pass on a CPU, which holds a handful of arrays of that size


def repel(
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> tuple[Tensor, Tensor | None]:
    """Do `reference.repel` for features with a trace and objectives with a slope."""
    # Every pass makes a GPU wait, so it gets no more of them than with autograd.
    elements = reference.ELEMENTS if logits.is_cuda else ELEMENTS
    return by_groups(_push, _features, elements, logits, tokens, masked, alpha, earlier, how)


def _push(
    pushed: Tensor,
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> Tensor | None:
    """Write the pushed logits into `pushed`; return the directions added, if wanted."""
    assert how.trace is not None
    assert how.slope is not None
    canvas = _soft_canvas(logits, tokens, masked)
    counted, features, pull = how.trace(canvas)
    peak, likeliest = counted.max(dim=-1, keepdim=True)  # [G, n, S, 1]
    share = (masked.to(canvas.dtype) / masked.sum(dim=-1, keepdim=True).clamp(min=1))[..., None]
    batch = Batch(features, (peak * share).sum(dim=(-2, -1)), earlier, how.duplicates, how.noise)
    by_feature, by_quality = how.slope(batch)
    gradient = counted * pull(by_feature.to(canvas.dtype))  # P dL/dP so far
    gradient.scatter_add_(
        -1, likeliest, by_quality.to(canvas.dtype)[..., None, None] * share * peak
    )
    # Where committed this gives 0, since P is one-hot there.
    gradient.addcmul_(canvas, gradient.sum(dim=-1, keepdim=True), value=-1)
    _settle(gradient, likeliest)
    gradient.index_fill_(-1, how.protected_on(logits.device), 0.0)
    force = how.eased(alpha, batch).to(canvas.dtype)
    if not how.raw_gradient:
        largest = gradient.norm(dim=-1).amax(dim=-1)
        force = force / largest.clamp(min=1e-8).where(largest > 0, 1.0)
    torch.sub(logits, gradient.mul_(force[..., None, None]), out=pushed)
    return batch.directions.vectors if how.remember else None


def _settle(gradient: Tensor, likeliest: Tensor) -> None:
    """Set the gradient of the likeliest token so that each row sums to 0, as a softmax's does.

    This avoids the cancellation that its direct formula has in nearly one-hot rows.
    """
    gradient.scatter_(-1, likeliest, 0.0)
    gradient.scatter_(-1, likeliest, -gradient.sum(dim=-1, keepdim=True))


def _features(logits: Tensor, tokens: Tensor, masked: Tensor, how: Repel) -> Tensor:
    assert how.trace is not None
    return how.trace(_soft_canvas(logits, tokens, masked))[1]


def _soft_canvas(logits: Tensor, tokens: Tensor, masked: Tensor) -> Tensor:
    """Compute `reference.soft_canvas` in place, and at least in single precision."""
    here, dtype = masked[..., None], torch.promote_types(logits.dtype, torch.float32)
    canvas = logits.masked_fill(~here, 0.0).softmax(dim=-1, dtype=dtype).mul_(here)
    committed = (~masked & (tokens >= 0)).to(dtype)[..., None]
    return canvas.scatter_add_(-1, tokens.where(~masked, 0).clamp(min=0)[..., None], committed)

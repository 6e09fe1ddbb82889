"""Repulsion by autograd: slow and short, the oracle that every other kernel is compared with.

At each step the masked positions are softmax distributions. A feature vector sums up each sample,
the objective turns the features of a group into a loss per sample, and the logits take one step
down its gradient, scaled so that the position of a sample that moves most moves by alpha.

Shapes: G groups of n samples, S positions, V vocabulary, D feature size.
"""

import torch
from torch import Tensor

from .batching import by_groups
from .contract import Batch, Repel

ELEMENTS = 1 << 23  # logits per pass: autograd holds about a dozen arrays of that size


def repel(
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> tuple[Tensor, Tensor | None]:
    """Return the pushed logits, and the directions [G, n, D] these samples add, if wanted.

    Shapes: logits [G, n, S, V], tokens and masked [G, n, S], alpha [G, n], earlier [G, h, D]. This
    works under `no_grad` and `inference_mode`; inputs are copied, never changed.
    """
    with torch.inference_mode(False), torch.enable_grad():
        tokens, masked, alpha = tokens.clone(), masked.clone(), alpha.clone()
        earlier = None if earlier is None else earlier.clone()
        inputs = logits.detach(), tokens, masked, alpha, earlier
        return by_groups(push, features_of, ELEMENTS, *inputs, how)


def push(
    out: Tensor,
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> Tensor | None:
    """Write the pushed logits of some groups into `out`; return their directions, if wanted."""
    here = masked[..., None]
    known = logits.masked_fill(~here, 0.0)  # logits of committed positions are undefined
    single = torch.promote_types(logits.dtype, torch.float32)
    x = known.to(logits.dtype if how.duplicates.native else single).requires_grad_()

    counted, features = how.extract(soft_canvas(x, tokens, masked))
    top = counted.max(dim=-1).values.where(masked, 0.0)  # [G, n, S]
    quality = top.sum(dim=-1) / masked.sum(dim=-1).clamp(min=1)  # [G, n]
    batch = Batch(features, quality, earlier, how.duplicates, how.noise)

    loss = how.objective(batch).sum()
    added = batch.directions.vectors if how.remember else None
    if not loss.requires_grad:
        out.copy_(logits)
        return added
    (gradient,) = torch.autograd.grad(loss, x)
    with torch.no_grad():
        gradient = gradient.index_fill(-1, how.protected_on(x.device), 0.0).masked_fill(~here, 0.0)
        if not how.raw_gradient:
            largest = gradient.norm(dim=-1).amax(dim=-1)  # [G, n]: over the positions of a sample
            gradient = gradient / largest.clamp(min=1e-8).where(largest > 0, 1.0)[..., None, None]
        step = how.eased(alpha, batch).to(x.dtype)[..., None, None] * gradient
        out.copy_(torch.where(here, (x - step).to(logits.dtype), logits))
    return added


@torch.no_grad()
def features_of(logits: Tensor, tokens: Tensor, masked: Tensor, how: Repel) -> Tensor:
    """Return the features [G, n, D] of a canvas."""
    return how.extract(soft_canvas(logits, tokens, masked))[1]


def soft_canvas(logits: Tensor, tokens: Tensor, masked: Tensor) -> Tensor:
    """Return [..., S, V]: softmax if masked, one-hot if committed, zero if the token is ABSENT."""
    there = (tokens >= 0).to(logits.dtype)[..., None]
    index = tokens.where(~masked, 0).clamp(min=0)[..., None]
    committed = torch.zeros_like(logits).scatter(-1, index, there)
    return torch.where(masked[..., None], logits.softmax(dim=-1), committed)

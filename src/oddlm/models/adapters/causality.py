"""Whether a network attends in both directions, one direction, or block-causally.

This is measured: tokens are changed, and the positions whose logits react are those that attend to
them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

LONGEST = 128  # the longest block that can be detected, in tokens
# LONGEST plus a tail whose tokens all change at once, so that every position attending to it reacts
CANVAS = 160
RESERVE = 2  # some networks number their positions from 2 on
# logits count as changed if they differ by more than this multiple of the run-to-run difference
TOLERANCE = 2.0


def probe(
    context: int | None, mask_id: int, vocab_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return two canvases [T] that differ at every position: all masks, and other tokens."""
    T = CANVAS if context is None else max(2, min(CANVAS, context - RESERVE))
    # multiples of a prime: tokens from the whole vocabulary
    text = torch.arange(1, T + 1, device=device) * 7919 % vocab_size
    masks = torch.full_like(text, mask_id)
    return masks, torch.where(text == mask_id, (text + 1) % vocab_size, text)


def find_block_length(
    network: Callable[[Tensor], Tensor], masks: Tensor, text: Tensor, logits: Tensor
) -> int | None:
    """Return b if the network is bidirectional within blocks of b tokens and causal across them.

    Blocks are counted from the first token. An autoregressive network has b = 1. None means that
    there are no such blocks, or that they are longer than LONGEST or than the canvas.

    network: maps tokens [T] to logits [T, V]. It is called twice, and twice more if it seems to
    have blocks.
    logits: those of `masks`.
    """
    T = len(masks)
    noise = TOLERANCE * (network(masks) - logits).abs().max()  # GPU kernels may be nondeterministic

    def attends_to(low: int, high: int) -> Tensor:
        """Return [T]: whether each position reacts to other tokens in low..high - 1.

        NaN counts as a reaction.
        """
        changed = torch.cat([masks[:low], text[low:high], masks[high:]])
        return ~((network(changed) - logits).abs().amax(dim=-1) <= noise)

    def border(start: int) -> int:
        """Return the first position that attends to anything from `start` on."""
        attends = attends_to(start, T)
        return int(attends.byte().argmax()) if attends.any() else T

    start = T - max(1, T // 5)
    if (end := border(start)) == 0:
        return None
    # position end - 1 closes a block, and the first position to attend to it opens that block
    block = end - border(end - 1)
    if block <= 1:
        return 1
    aligned = end % block == 0 and start - end < block
    # otherwise it is a sliding window
    return block if aligned and bool(attends_to(0, block)[-1]) else None


@contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Put all modules in eval mode, and restore each module's own mode afterwards."""
    training = (
        [module for module in network.modules() if module.training]
        if isinstance(network, nn.Module)
        else []
    )
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True

"""Which positions of somebody's network hear which others, found by changing tokens and looking who
notices.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

LONGEST = 128  # the longest block that is found, in tokens
# LONGEST, and a tail whose tokens change all at once, so that nobody who hears them can miss it
CANVAS = 160
RESERVE = 2  # some networks number their positions from 2 on
TREMBLE = 2.0  # times the difference of two equal calls: what differs by less is the same


def probe(
    context: int | None, mask_id: int, vocab_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Two canvases [T] for `find_block_length` that differ everywhere: masks, and other tokens."""
    T = CANVAS if context is None else max(2, min(CANVAS, context - RESERVE))
    text = (
        torch.arange(1, T + 1, device=device) * 7919 % vocab_size
    )  # a prime: tokens from all over the vocabulary
    masks = torch.full_like(text, mask_id)
    return masks, torch.where(text == mask_id, (text + 1) % vocab_size, text)


def find_block_length(
    network: Callable[[Tensor], Tensor], masks: Tensor, text: Tensor, logits: Tensor
) -> int | None:
    """The b of a network that is bidirectional inside blocks of b tokens, counted from the first
    one, and causal over them.

    1 is an autoregressive network; None one without such blocks, or with blocks longer than
    LONGEST, or than the canvas.
    network: tokens [T] -> logits [T, V]; `logits` are those of `masks`. It is called twice, and
    twice more where blocks show.
    """
    T = len(masks)
    noise = (
        TREMBLE * (network(masks) - logits).abs().max()
    )  # kernels of a GPU need not repeat themselves

    def who_hears(low: int, high: int) -> Tensor:
        """[T]: does the position notice other tokens from `low` to `high`? NaN is noticed."""
        changed = torch.cat([masks[:low], text[low:high], masks[high:]])
        return ~((network(changed) - logits).abs().amax(dim=-1) <= noise)

    def border(start: int) -> int:
        """The first position that hears anything from `start` on."""
        heard = who_hears(start, T)
        return int(heard.byte().argmax()) if heard.any() else T

    start = T - max(1, T // 5)
    if (end := border(start)) == 0:
        return None
    block = end - border(end - 1)  # what stands before a border hears back to the one before it
    if block <= 1:
        return 1
    aligned = end % block == 0 and start - end < block
    return (
        block if aligned and bool(who_hears(0, block)[-1]) else None
    )  # else a window that moves along


@contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """No dropout in here; afterwards every module is in the mode in which it was."""
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

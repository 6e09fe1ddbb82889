"""How a block-causal network is trained: all blocks of an answer at once.

A noisy block follows clean ones in sampling, so the network reads every sequence twice, clean and
noisy, at the same positions. A noisy position sees its own noisy block and the clean blocks before
it; a clean position sees clean blocks up to its own (BD3-LM, Arriola et al. 2025,
arXiv:2503.09573). Blocks are counted from the first token of the prompt.
"""

import torch
from torch import Tensor

from ..models.transformer import Layout, Transformer


def answer_logits(network: Transformer, canvas: Tensor, lengths: Tensor, answers: Tensor) -> Tensor:
    """Return the logits of the answers, [B, L, V], from a canvas [B, T] on which some are masked.

    Each block of a block-causal network is predicted after clean blocks.
    """
    T = canvas.shape[1]
    start = T - answers.shape[1]
    if network.config.block_length is None:
        logits: Tensor = network(canvas, start, lengths)
        return logits
    clean = torch.cat([canvas[:, :start], answers], dim=1)
    both = torch.cat([clean, canvas], dim=1)
    return network.predict(both, T + start, lengths, doubled_layout(network, T, start, lengths))


def doubled_layout(network: Transformer, T: int, start: int, lengths: Tensor) -> Layout:
    """Return the layout of a clean copy of T positions, followed by a noisy one."""
    assert network.config.block_length is not None
    index = torch.arange(T, device=lengths.device)
    position_ids = index - (start - lengths)[:, None]  # [B, T], negative on padding
    real, position_ids = (position_ids >= 0)[:, None, None], position_ids.clamp(min=0)
    block = position_ids // network.config.block_length
    key, query = block[:, None, None], block[:, None, :, None]
    clean = network.visible(position_ids, real)  # [B, 1, T, T]
    of_clean = torch.cat([clean, torch.zeros_like(clean)], dim=-1)
    of_noisy = torch.cat([real & (key < query), real & (key == query)], dim=-1)
    mask = torch.cat([of_clean, of_noisy], dim=-2)
    return Layout(*network.rope(position_ids.repeat(1, 2)), mask)

"""Queries made by hand, for tests of sessions by themselves."""

import torch
from torch import Tensor

from oddlm.core.blocks import Blocks
from oddlm.core.canvas import lay_prompts
from oddlm.core.model import ModelInfo, Query


def canvas(info: ModelInfo, prompts: list[list[int]], n: int, length: int) -> tuple[Tensor, Tensor]:
    """Left-padded prompts with `length` masks behind them, and their lengths."""
    left, lengths = lay_prompts(prompts, n, info)
    return torch.cat([left, left.new_full((len(left), length), info.mask_id)], dim=1), lengths


def query(
    info: ModelInfo,
    tokens: Tensor,
    lengths: Tensor,
    length: int,
    block_length: int,
    number: int = 0,
    **aside: Tensor,
) -> Query:
    """What a run on this canvas would ask; whatever is no MASK is written."""
    start = tokens.shape[1] - length
    masked = tokens[:, start:] == info.mask_id
    blocks = Blocks.lay(masked, block_length, lengths, info.align)
    rest = {"samples": None, "positions": None, "nudge": None, **aside}
    return Query("a run", number, tokens, start, lengths, blocks=blocks, **rest)

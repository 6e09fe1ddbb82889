"""Low-rank adaptation (Hu et al. 2021, arXiv:2106.09685): the matrices of the blocks stay frozen,
and a product of two thin ones is learned beside each.
"""

import torch
from torch import Tensor, nn

from ..models.transformer import Transformer

PARTS = ("qkv", "attention_out", "gate_up", "down")


class LowRank(nn.Module):
    """A linear map with a frozen matrix, plus one of small rank that is learned from zero."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        like = linear.weight.requires_grad_(False)  # a bias is trained
        self.down = nn.Parameter(like.new_empty(rank, like.shape[1]))
        self.up = nn.Parameter(like.new_zeros(like.shape[0], rank))
        nn.init.normal_(self.down, std=like.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        learned = nn.functional.linear(nn.functional.linear(x, self.down), self.up)
        result: Tensor = self.linear(x) + learned
        return result


def add_low_rank(network: Transformer, rank: int) -> None:
    """Freeze the matrices of the blocks and add factors of this rank to them, in place."""
    for block in network.blocks:
        for part in PARTS:
            setattr(block, part, LowRank(getattr(block, part), rank))


@torch.no_grad()
def merge_low_rank(network: Transformer) -> dict[str, tuple[Tensor, Tensor]]:
    """Add the factors to their matrices, in place; return them by the name of the matrix."""
    factors = {}
    for i, block in enumerate(network.blocks):
        for part in PARTS:
            own: LowRank = getattr(block, part)
            down, up = own.down.bfloat16().float(), own.up.bfloat16().float()  # as they are stored
            own.linear.weight += (up @ down).to(own.linear.weight.dtype)
            factors[f"blocks.{i}.{part}.weight"] = (down, up)
            setattr(block, part, own.linear)
    return factors

"""Fixed linear maps that features are made with: random signs, and a vocabulary's embeddings
without what all tokens share.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..core import noise

SEED = 0  # one for all: features of two runs are comparable

_meanings: WeakTensorKeyDictionary = (
    WeakTensorKeyDictionary()
)  # embedding -> (its version, what `meanings` made of it)


@lru_cache(maxsize=4)
def signs(rows: int, columns: int, purpose: noise.Purpose, device: torch.device) -> Tensor:
    """[rows, columns] float32 of +1 and -1, the same on every device: as good as Gaussian numbers
    for keeping inner products (Achlioptas 2003, "Database-friendly random projections").
    """
    with torch.inference_mode(False), torch.no_grad():
        keys = noise.key(
            torch.tensor([SEED], device=device), torch.arange(rows, device=device), 0, purpose
        )
        tile = max(1, noise.tile_elements(device) // columns)
        return torch.cat([noise.signs(some, columns) for some in keys.split(tile)])


def meanings(embedding: Tensor) -> Tensor:
    """[V, H]: embeddings centred, without their leading principal directions, of unit length; made
    once per embedding.

    The mean and about one direction in a hundred are common to all tokens and say how frequent one
    is, not what it means (Mu and Viswanath 2018, "All-but-the-top"). Tokens are compared by their
    cosine there, hence the unit length.
    """
    version = None if embedding.is_inference() else embedding._version  # training writes in place
    held = _meanings.get(embedding)
    if held is None or held[0] != version:
        with torch.inference_mode(False), torch.no_grad():
            held = version, _without_the_common(embedding.detach())
        _meanings[embedding] = held
    table: Tensor = held[1]
    return table


def _without_the_common(embedding: Tensor) -> Tensor:
    V, H = embedding.shape
    common = max(
        0, min(max(1, H // 100), H - 1, V - 2)
    )  # V centred rows span V - 1 directions at most: one is left
    x = embedding.to(torch.promote_types(embedding.dtype, torch.float32), copy=True)
    x = x - x.mean(dim=0)
    leading = torch.linalg.eigh((x.mT @ x).double()).eigenvectors[:, H - common :].to(x.dtype)
    x = x - (x @ leading) @ leading.mT
    return torch.nn.functional.normalize(x, dim=1)

"""Fixed linear maps for features: random signs, and embeddings without their common directions."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..core import noise

SEED = 0  # the same for all runs, so that their features are comparable

# embedding -> (its version, its `meanings`)
_meanings: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


@lru_cache(maxsize=4)
def signs(rows: int, columns: int, purpose: noise.Purpose, device: torch.device) -> Tensor:
    """Return random signs [rows, columns] float32, the same on every device.

    They preserve inner products as well as Gaussian numbers do (Achlioptas 2003, "Database-friendly
    random projections").
    """
    with torch.inference_mode(False), torch.no_grad():
        keys = noise.key(
            torch.tensor([SEED], device=device), torch.arange(rows, device=device), 0, purpose
        )
        tile = max(1, noise.tile_elements(device) // columns)
        return torch.cat([noise.signs(some, columns) for some in keys.split(tile)])


def meanings(embedding: Tensor) -> Tensor:
    """Return the embeddings [V, H] centred, without leading principal directions, normalized.

    The mean and about one direction in a hundred are common to all tokens and encode frequency
    rather than meaning (Mu and Viswanath 2018, "All-but-the-top"). Tokens are then compared by
    cosine, hence the unit norm. The result is cached per embedding.
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
    # V centred rows span at most V - 1 directions, of which one must be left.
    common = max(0, min(max(1, H // 100), H - 1, V - 2))
    x = embedding.to(torch.promote_types(embedding.dtype, torch.float32), copy=True)
    x = x - x.mean(dim=0)
    leading = torch.linalg.eigh((x.mT @ x).double()).eigenvectors[:, H - common :].to(x.dtype)
    x = x - (x @ leading) @ leading.mT
    return torch.nn.functional.normalize(x, dim=1)

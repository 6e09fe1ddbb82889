"""`attention.weights_of` as one GPU kernel, instead of one for each of its operations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .softmax_kernel import softmax_rows

SOURCES = 3  # products that one kernel takes
BLOCK = 1024
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fused_weights(
    products: Sequence[Tensor], mask: Tensor | None, queries: int, scale: float, aligned: int
) -> Tensor:
    """Return what `weights_of` does; the last dimension of products and mask is dense."""
    R, heads, rows, _ = products[0].shape
    sizes = [x.shape[3] for x in products]
    total = -(-sum(sizes) // aligned) * aligned
    weights = products[0].new_empty(R, heads, rows, total)
    missing = SOURCES - len(products)
    sources = [*products, *[products[0]] * missing]
    seen = products[0] if mask is None else mask.to(weights.device).view(torch.uint8)
    step = 0 if mask is None or mask.shape[2] == 1 else seen.stride(2)
    with torch.cuda.device_of(weights):
        softmax_rows[(R * heads * rows,)](
            *sources, *(n for x in sources for n in x.stride()[:3]), *sizes, *[0] * missing,
            seen, seen.stride(0), step, weights, heads, rows, queries, total, scale,
            MASKED=mask is not None, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return weights

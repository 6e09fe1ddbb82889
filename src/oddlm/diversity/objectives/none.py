"""No repulsion."""

import torch
from torch import Tensor

from ...kernels.contract import Batch
from .base import OBJECTIVES


@OBJECTIVES.register
def none(batch: Batch) -> Tensor:
    """No repulsion: plain sampling."""
    return torch.zeros_like(batch.quality)

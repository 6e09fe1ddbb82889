"""What makes a batch diverse: one objective per file, found by being in this folder.

An objective maps a `Batch` (features, quality, directions of earlier samples) to a loss [G, n] that
is small when a sample differs from the others; autograd does the rest. Its keyword-only arguments
are its hyperparameters. `traits` adds what makes it faster: the derivative of its summed loss
(`slope`) runs without autograd, the same in coordinates (`weigh`) runs fused on a GPU.
"""

from importlib import import_module
from pkgutil import iter_modules

from .base import (
    OBJECTIVES,
    Quality,
    build_objective,
    need_of,
    slope_of,
    traits,
    weigh_of,
)

for _module in iter_modules(__path__):
    import_module(f".{_module.name}", __name__)

__all__ = [
    "OBJECTIVES",
    "Quality",
    "build_objective",
    "need_of",
    "slope_of",
    "traits",
    "weigh_of",
]

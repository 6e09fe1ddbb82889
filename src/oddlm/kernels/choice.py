"""The one place that chooses between autograd, torch and Triton, by device and dtype."""

import os
import warnings
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from . import closed_form, pulled, reference

Backend = Literal["auto", "triton", "closed_form", "reference"]
OLDEST = (8, 0)  # compute capability: the first with bfloat16
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def choose(backend: Backend, logits: Tensor, *, traced: bool, closed: bool, fused: bool) -> Any:
    """The module whose `repel` pushes these logits. traced: no autograd is needed; closed: nor arrays of the size of the
    logits, for max-pooling; fused: the same in coordinates.
    """
    if fused and backend in ("auto", "triton") and (kernel := triton_kernel(logits)) is not None:
        return kernel
    if backend == "triton":
        raise ValueError(f"backend 'triton' is not to be had: {_obstacle(logits.device, logits.dtype)}")
    if backend == "reference" or not traced:
        return reference
    return closed_form if closed else pulled


def triton_kernel(logits: Tensor) -> Any:
    """`kernels.triton` where it can run on these logits, else None; a GPU that has to do without is told once."""
    obstacle = _obstacle(logits.device, logits.dtype)
    if obstacle is None:
        return import_module("oddlm.kernels.triton")
    if logits.is_cuda and logits.dtype in DTYPES:
        _say(obstacle)
    return None


def _obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    if dtype not in DTYPES:
        return f"it computes in single precision, the logits are {dtype}"
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return f"it needs a GPU, the logits are on {device.type} (TRITON_INTERPRET=1 interprets it, slowly)"
    if find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    return None if interpreted else _too_old(device)


@lru_cache
def _too_old(device: torch.device) -> str | None:
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    needed = ".".join(map(str, OLDEST))
    return None if capability >= OLDEST else f"{name} has compute capability {capability[0]}.{capability[1]}, below {needed}"


@lru_cache
def _say(obstacle: str) -> None:
    warnings.warn(f"without the fused kernels, sampling on this GPU is slower: {obstacle}", stacklevel=2)

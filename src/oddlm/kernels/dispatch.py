"""Chooses between autograd, torch and Triton, once per run, by device, dtype, guide and filters."""

import os
import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, cast, get_args

import torch

Asked = Literal["auto", "triton", "closed_form", "reference"]
Form = Literal["triton", "closed_form", "analytic", "reference"]
FORMS: tuple[Form, ...] = get_args(Form)  # best first
MODULES: dict[Form, str] = {"triton": "fused.launch"}  # the others are named like their form
OLDEST = (8, 0)  # the first compute capability with bfloat16
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Backend:
    """The implementation that computes a run; `str(backend)` is its name."""

    push: Form | None  # pushes the logits; None without a guide of ours
    fused: bool  # whether the fused kernels can run on these logits
    draws: bool  # whether they also draw the tokens
    asked: Asked  # the backend that was requested
    forms: tuple[Form, ...]
    dtype: torch.dtype
    filtered: bool

    @property
    def name(self) -> str:
        draw = "triton" if self.draws else "torch"
        if self.push is None:
            return draw
        return f"{self.push}, {draw}" if (self.push == "triton") != self.draws else self.push

    def __str__(self) -> str:
        return self.name

    @property
    def kernel(self) -> Any:
        """The module of the fused kernels, or None."""
        return module("triton") if self.fused else None

    def to(self, device: torch.device) -> "Backend":
        """Return the choice for the same run on another device.

        A requested backend that is not available there is replaced by the best one.
        """
        asked = "auto" if self.asked == "triton" and obstacle(device, self.dtype) else self.asked
        found = choose(device, self.dtype, asked=asked, forms=self.forms, filtered=self.filtered)
        return replace(found, asked=self.asked)


def choose(
    device: torch.device,
    dtype: torch.dtype | None = None,
    *,
    asked: Asked = "auto",
    forms: Collection[Form] = (),
    filtered: bool = False,
) -> Backend:
    """Return the backend of a run.

    Args:
        device: Device of the logits.
        dtype: Dtype of the logits; None is taken for float32.
        asked: The requested backend.
        forms: The backends that can compute the guide; empty without a guide of ours.
        filtered: Tokens are drawn from a filtered distribution, which no fused kernel does.
    """
    dtype = torch.float32 if dtype is None else dtype
    why_not = obstacle(device, dtype)
    if why_not is not None and device.type == "cuda" and dtype in DTYPES:
        _warn_slow(why_not)
    fused = why_not is None
    push: Form | None = None
    if forms:
        able = [form for form in FORMS if form in forms]
        if asked == "triton" and not fused:
            raise ValueError(f"backend 'triton' is not available: {why_not}")
        if asked == "triton" and "triton" not in able:
            raise ValueError("backend 'triton' cannot compute this guide or policy: use 'auto'")
        if asked == "auto" or (asked == "closed_form" and "closed_form" not in able):
            able = [form for form in able if form != "triton" or (fused and asked == "auto")]
            push = able[0]
        else:
            push = cast("Form", asked)
    return Backend(push, fused, fused and not filtered, asked, tuple(forms), dtype, filtered)


@lru_cache
def module(form: Form) -> Any:
    """Return the module of a backend; each has a function `repel`."""
    return import_module(f".{MODULES.get(form, form)}", __package__)


def obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the fused kernels cannot run on such logits, or None if they can."""
    if dtype not in DTYPES:
        return f"it computes in single precision, the logits are {dtype}"
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return (
            f"it needs a GPU, the logits are on {device.type} "
            "(TRITON_INTERPRET=1 interprets it, slowly)"
        )
    if find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    return None if interpreted else _too_old(device)


@lru_cache
def _too_old(device: torch.device) -> str | None:
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    if capability >= OLDEST:
        return None
    needed = ".".join(map(str, OLDEST))
    return f"{name} has compute capability {capability[0]}.{capability[1]}, below {needed}"


@lru_cache
def _warn_slow(why_not: str) -> None:
    warnings.warn(
        f"without the fused kernels, sampling on this GPU is slower: {why_not}", stacklevel=2
    )

"""Devices and dtypes."""

import torch

from ...checks import NUMBERS, one_of, short_dtype

DTYPES: dict[str, torch.dtype] = {short: getattr(torch, long) for short, long in NUMBERS.items()}
DEVICES = "use cpu, cuda, one of several GPUs as cuda:1, or mps"


def chosen_device(device: str | torch.device | None) -> torch.device:
    """Return the requested device if it can be used; None selects a GPU if available."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"device {device!r} cannot be used: {DEVICES}") from None
    if (obstacle := _obstacle(found)) is not None:
        raise ValueError(f"device {str(device)!r} cannot be used: {obstacle}")
    return found


def _obstacle(device: torch.device) -> str | None:
    """Return why the device cannot be used, or None if it can."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return f"no GPU is visible to torch ({torch.__version__}); use cpu"
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        names = ", ".join(f"cuda:{i}" for i in range(count))
        return f"torch sees {count} GPU{'s' * (count > 1)}; use {names} or cpu"
    if device.type == "mps" and not torch.backends.mps.is_available():
        return f"torch ({torch.__version__}) finds no Apple GPU; use cpu"
    try:
        torch.zeros(1, device=device).item()  # fails on devices without data, such as "meta"
    # a build of torch without the device may raise AssertionError
    except (RuntimeError, AssertionError, ImportError) as error:
        return f"{(str(error).splitlines() or [type(error).__name__])[0]:.100}; {DEVICES}"
    return None


def chosen_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return the dtype with this name; None selects fp32 on a CPU and bf16 elsewhere."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return named_dtype(dtype)


def named_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype with this name, short (bf16) or torch's own (bfloat16)."""
    short = next((name for name, known in DTYPES.items() if known is dtype), short_dtype(dtype))
    one_of("dtype", short, tuple(DTYPES))
    return DTYPES[short]


def dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, known in DTYPES.items() if known is dtype)

"""Where a network lives and in which numbers it computes."""

import torch

from ...checks import NUMBERS, one_of, short_dtype

DTYPES: dict[str, torch.dtype] = {short: getattr(torch, long) for short, long in NUMBERS.items()}
DEVICES = "use cpu, cuda, one of several GPUs as cuda:1, or mps"


def chosen_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, if it is there; by default a GPU where there is one."""
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
    """Why nothing can be computed there, if so."""
    if device.type == "cuda" and not torch.cuda.is_available():
        return f"no GPU is visible to torch ({torch.__version__}); use cpu"
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        return f"torch sees {count} GPU{'s' * (count > 1)}; use {', '.join(f'cuda:{i}' for i in range(count))} or cpu"
    if device.type == "mps" and not torch.backends.mps.is_available():
        return f"torch ({torch.__version__}) finds no Apple GPU; use cpu"
    try:
        torch.zeros(1, device=device).item()  # what holds no numbers ("meta") cannot give one back
    except (
        RuntimeError,
        AssertionError,
        ImportError,
    ) as error:  # a build of torch without the device may assert
        return f"{(str(error).splitlines() or [type(error).__name__])[0]:.100}; {DEVICES}"
    return None


def chosen_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype by its name; by default bf16, and fp32 on a CPU."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return named_dtype(dtype)


def named_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """By our name or torch's."""
    short = next((name for name, known in DTYPES.items() if known is dtype), short_dtype(dtype))
    one_of("dtype", short, tuple(DTYPES))
    return DTYPES[short]


def dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, known in DTYPES.items() if known is dtype)

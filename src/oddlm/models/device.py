"""Where a network lives and in which numbers it computes."""

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}


def chosen_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, if it is there; by default a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # a build of torch without the device asserts
        raise ValueError(f"device {str(device)!r} cannot be used ({str(error).splitlines()[0]}); cpu can, or cuda:0") from error
    return found


def chosen_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype by its name; by default bf16, and fp32 on a CPU."""
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return named_dtype(dtype)


def named_dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, known in DTYPES.items() if known is dtype)

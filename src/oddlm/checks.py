"""Arguments as they come through a door: clear errors that name them."""

import math
import operator
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

PACKAGE = f"{Path(__file__).parent}{os.sep}"
NUMBERS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
}  # ours, and torch's


def outside() -> int:
    """The stacklevel at which a warning of who calls this points at the line outside the package
    that led to it.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def whole(name: str, value: Any, least: int = 1) -> int:
    """An integer of any kind (numpy's too), but no bool."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name} must be an integer >= {least}, not {value!r}")
    return number


def finite(name: str, value: Any, most: float = math.inf) -> float:
    """A finite number from 0 to `most`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not 0 <= number <= most or math.isinf(number):
        limit = "a finite number >= 0" if math.isinf(most) else f"a number from 0 to {most:g}"
        raise ValueError(f"{name} must be {limit}, not {value!r}")
    return number


def ids(name: str, values: Collection[int], vocab_size: int) -> tuple[int, ...]:
    """Token ids inside the vocabulary."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise ValueError(f"{name} must be token ids, not {values!r}")
    for value in values:
        try:
            inside = not isinstance(value, bool) and 0 <= operator.index(value) < vocab_size
        except TypeError:
            inside = False
        if not inside:
            raise ValueError(f"{name} holds {value!r}, outside the vocabulary 0..{vocab_size - 1}")
    return tuple(operator.index(v) for v in values)


def short_dtype(name: Any) -> Any:
    """`bfloat16` in our spelling, `bf16`; what is none of torch's names stays as it is."""
    return next((short for short, long in NUMBERS.items() if name == long), name)


def one_of(name: str, value: Any, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")

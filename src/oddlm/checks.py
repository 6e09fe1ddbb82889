"""Checks of arguments, with errors that name the argument and its value."""

import math
import operator
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

PACKAGE = f"{Path(__file__).parent}{os.sep}"
# Our names and torch's.
NUMBERS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def outside() -> int:
    """Return the stacklevel at which the caller's warning points outside the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return an integer of any kind (numpy's too, but not a bool) that is at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name} must be an integer >= {least}, not {value!r}")
    return number


def finite(name: str, value: Any, most: float = math.inf) -> float:
    """Return the value as a finite number from 0 to `most`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not 0 <= number <= most or math.isinf(number):
        limit = "a finite number >= 0" if math.isinf(most) else f"a number from 0 to {most:g}"
        raise ValueError(f"{name} must be {limit}, not {value!r}")
    return number


def ids(name: str, values: Collection[int], vocab_size: int) -> tuple[int, ...]:
    """Return the values as token ids; all must be inside the vocabulary."""
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
    """Return the short name of a dtype (`bf16` for `bfloat16`); other values are returned as is."""
    return next((short for short, long in NUMBERS.items() if name == long), name)


def one_of(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise ValueError unless the value is allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")

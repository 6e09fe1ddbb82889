"""Numbers and counts as they are written wherever people read them: one rule for each. Imports nothing of the package."""

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal


def fixed(value: float, digits: int = 1, sign: str = "") -> str:
    """`70.3` for 70.25: ties go away from zero, as in JavaScript's toFixed, so that pages and tables say the same.

    sign: "+" writes that of positive numbers, too.
    """
    number = float(value)
    if not abs(number) < 1e15:  # nan, infinite, or without a fraction that could be a tie
        return f"{number:{sign}.{digits}f}"
    return f"{Decimal(number).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):{sign}.{digits}f}"


def percent(share: float, digits: int = 1, sign: str = "") -> str:
    """100 times a share; the caller writes the unit."""
    return fixed(100 * share, digits, sign)


def number_of(count: int, one: str, many: str = "") -> str:
    """`1 problem`, `2 problems`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def named(one: str, values: Iterable[object]) -> str:
    """`seed 0`, `seeds 0, 1`."""
    texts = [str(value) for value in values]
    return f"{one}{'' if len(texts) == 1 else 's'} {', '.join(texts)}"

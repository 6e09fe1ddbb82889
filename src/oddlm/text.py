"""Texts and numbers as people read them: one rule for each. Imports nothing of the package."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal


def fixed(value: float, digits: int = 1, sign: str = "") -> str:
    """`70.3` for 70.25: ties go away from zero.

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


def visible(text: str) -> str:
    """Control characters become pictures of themselves, so that no text can steer the terminal."""
    if (
        text.replace("\n", "").replace("\t", "").isprintable()
    ):  # most are, and a report shows 128,000
        return text
    return "".join(
        c if c in "\n\t" or unicodedata.category(c)[0] != "C" else _picture(c) for c in text
    )


def one_line(text: str) -> str:
    """The same, without line breaks and tabs: a name."""
    return re.sub(r"\s", " ", visible(text))


def _picture(character: str) -> str:
    return chr(0x2400 + ord(character)) if ord(character) < 0x20 else "\N{REPLACEMENT CHARACTER}"


def setting_label(method: str, alpha: float, temperature: float) -> str:
    """`odd α8 T0.5`; plain sampling has no alpha."""
    return f"{method}{f' α{alpha:g}' if alpha else ''} T{temperature:g}"


def text_length(tokens: Sequence[int | None], end_ids: Collection[int]) -> int:
    """How many tokens come before the first that ends a text; all of them where none does."""
    return next((i for i, token in enumerate(tokens) if token in end_ids), len(tokens))

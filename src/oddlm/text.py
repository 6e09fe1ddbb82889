"""Formatting of texts and numbers for people. This module imports nothing of the package."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal


def fixed(value: float, digits: int = 1, sign: str = "") -> str:
    """Format with a fixed number of digits; ties go away from zero, so 70.25 is `70.3`.

    With `sign="+"`, positive numbers get a sign, too.
    """
    number = float(value)
    if not abs(number) < 1e15:  # nan, infinite, or without a fraction that could be a tie
        return f"{number:{sign}.{digits}f}"
    return f"{Decimal(number).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):{sign}.{digits}f}"


def percent(share: float, digits: int = 1, sign: str = "") -> str:
    """Format 100 times a share; the caller writes the unit."""
    return fixed(100 * share, digits, sign)


def number_of(count: int, one: str, many: str = "") -> str:
    """Format a count with its noun: `1 problem`, `2 problems`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def named(one: str, values: Iterable[object]) -> str:
    """Format values with their noun: `seed 0`, `seeds 0, 1`."""
    texts = [str(value) for value in values]
    return f"{one}{'' if len(texts) == 1 else 's'} {', '.join(texts)}"


def visible(text: str) -> str:
    """Replace control characters by pictures of them, so that no text can steer the terminal."""
    # Most texts are printable, and a report shows 128,000.
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        c if c in "\n\t" or unicodedata.category(c)[0] != "C" else _picture(c) for c in text
    )


def one_line(text: str) -> str:
    """Make a text visible on one line, without line breaks and tabs."""
    return re.sub(r"\s", " ", visible(text))


def _picture(character: str) -> str:
    return chr(0x2400 + ord(character)) if ord(character) < 0x20 else "\N{REPLACEMENT CHARACTER}"


def setting_label(method: str, alpha: float, temperature: float) -> str:
    """Format a setting as `odd α8 T0.5`; plain sampling has no alpha."""
    return f"{method}{f' α{alpha:g}' if alpha else ''} T{temperature:g}"


def text_length(tokens: Sequence[int | None], end_ids: Collection[int]) -> int:
    """Return how many tokens come before the first end token; all of them if there is none."""
    return next((i for i, token in enumerate(tokens) if token in end_ids), len(tokens))


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the first stop text, and whether there is one."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)

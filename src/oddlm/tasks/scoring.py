"""Extract numbers from model texts: pure functions of hostile text, linear in its length."""

import re
from collections import deque
from collections.abc import Callable, Iterator

from .base import Score

TOLERANCE = 1e-4
DIGITS = 60  # a longer run of digits is noise, not an answer
LONGEST = 100_000  # characters at the end of a text that are searched

_PLAIN = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"(?:(?P<whole>\d+)[ \xa0](?=\d+/\d))?(?P<value>{_PLAIN})"
    rf"(?P<power>[eE][-+]?\d{{1,3}}\b)?(?:\s?/\s?(?P<under>{_PLAIN}))?"
)
_CURRENCY = re.compile(r"(?:[$€£¥₹]|USD|EUR|GBP|Rs\.?)\s?$")
_MINUS = "-\u2212\u2013"  # hyphen, minus sign, en dash
_CLEANING = (
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\{,\}|(?<=\d)\\,(?=\d)"), ","),
    (re.compile(r"\\([$%,;! ])"), r"\1"),
    (re.compile(r"(?<=\d):00\b"), ""),
    (re.compile(r"(?<=\d)[\u202f\u2009](?=\d{3})"), ","),
    (re.compile(r"([$€£¥₹]\d{1,3})[ \xa0](?=\d{3}(?!\d))"), r"\1,"),
)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_MARKED = re.compile(r"####([^\n]*)")
# Possessive quantifiers (*+, ?+): what follows them cannot begin with anything they consume, so
# backtracking would only cost time.
_STATED = re.compile(
    r"answer\s++is\b[\s:=*$\\(]*+(?:approximately|about|exactly|equal to)?+"
    r"[\s*$\\(]*+(?=[-\u2212\u2013€£¥₹.\d])",
    re.IGNORECASE,
)
_LABELLED = re.compile(r"answer\**\s*:([^\n]{1,40})(?:\n|$)", re.IGNORECASE)
_OPERATOR = re.compile(r"\s*[-+*/=x\u00d7\u00f7\u2212]\s*[\d$(]")


def find_number(text: str) -> float | None:
    """Return the final number of a worked answer.

    A marked answer takes precedence: after ####, in \\boxed{}, after "the answer is", or alone on
    a line "Answer: ...". Otherwise it is the last number. A minus is a sign unless there is
    something before it to subtract from.
    """
    text = text[-LONGEST:]
    for pattern, plain in _CLEANING:
        text = pattern.sub(plain, text)
    for pattern in (_MARKED, _BOXED):
        for part in reversed(pattern.findall(text)):
            values = [value for value, _ in numbers(part)]
            if values:
                return values[-1] if "=" in part else values[0]
    stated = _stated(text)
    if stated is not None:
        return stated
    last = deque(numbers(text), maxlen=1)
    return last[0][0] if last else None


def marked_number(text: str) -> float | None:
    """Return the number after the last ####, in the same line, or None if there is none."""
    _, mark, rest = text.rpartition("####")
    return find_number(mark + rest.partition("\n")[0]) if mark else None


def _stated(text: str) -> float | None:
    found = None
    for match in _STATED.finditer(text):
        here = next(numbers(text[max(0, match.end() - 2) : match.end() + DIGITS]), None)
        if here and not _OPERATOR.match(text, max(0, match.end() - 2) + here[1]):
            found = here[0]
    if found is not None:
        return found
    for part in reversed(_LABELLED.findall(text)):
        values = [value for value, _ in numbers(part)]
        if len(values) == 1:
            return values[0]
    return None


def numbers(text: str) -> Iterator[tuple[float, int]]:
    """Yield every number in reading order, and the position of its end."""
    for match in _NUMBER.finditer(text):
        before = _CURRENCY.sub("", text[max(0, match.start() - 12) : match.start()])
        if match.end() - match.start() > DIGITS or _is_index(before):
            continue
        value = float(match["value"].replace(",", "") + (match["power"] or ""))
        if match["under"]:
            under = float(match["under"].replace(",", ""))
            value = value / under if under else value
        value += float(match["whole"] or 0)
        yield (-value if _is_negative(before) else value), match.end()


def _is_index(before: str) -> bool:
    """Return whether a number is an index, such as the 2 of cm2, CO2 or x^2."""
    return bool(re.search(r"\^\{?$|(?:^|[^A-Za-z])[A-Za-z]{1,2}$", before)) and not before.endswith(
        "is"
    )


def _is_negative(before: str) -> bool:
    if before[-1:] not in _MINUS or not before:
        return False
    attached, apart = before[-2:-1], before[:-1].rstrip()[-1:]
    return not (
        attached.isalnum()
        or attached in tuple(_MINUS)
        or apart.isdigit()
        or apart in (")", "]", "%")
    )


def score_number(value: float | None, target: float) -> Score:
    if value is None:
        return Score(False, None, "no number in the text")
    correct = abs(value - target) < TOLERANCE
    return Score(
        correct,
        show_number(value),
        f"{show_number(value)} {'is' if correct else 'is not'} {show_number(target)}",
    )


def read_number(find: Callable[[str], float | None], text: str) -> str | None:
    """Return the number that `find` finds in a text, in the form in which it is shown."""
    value = find(text)
    return None if value is None or value != value else show_number(value)


def show_number(value: float) -> str:
    is_whole = value == value and abs(value) < 1e15 and value == int(value)
    return str(int(value)) if is_whole else repr(value)

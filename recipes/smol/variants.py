"""Number variants of word problems: the same wording with other numbers, recomputed exactly.

Candidates are drawn and sifted with floats, many at a time; those that pass are computed again with
fractions.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

import numpy as np
from equations import decimal, evaluate
from tracing import Problem, Trace, trace
from wording import Number

Array = np.ndarray
DRAWS = 60  # for each variant that is wanted
ROUNDS = 6  # they are made in
LARGEST = 10_000_000
SPREAD = 3  # a new number is between a third and three times the old one
SMALL = (2, 12, 20)  # numbers from the first to the second become up to the third
NEAR = 1e-7  # how far floats may be from what fractions will say
AN = re.compile(r"8|1[18](?:$|,|\d{3}$|\.)")  # numbers that follow "an"
PERCENT = re.compile(r"percent|%")


@dataclass(frozen=True)
class Bounds:
    """What the numbers and results of a variant must keep of the original's."""

    ordered: tuple[tuple[int, int], ...]  # values of which the first is less than the second
    limits: tuple[Fraction, ...]  # numbers that stay: each result stays on its side
    percents: tuple[int, ...]  # shares that must not exceed 100 together
    shares: frozenset[int]  # equations whose result is a percentage


def variants(problem: Problem, wanted: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Up to so many different variants: question and answer text. NotVariable says why none."""
    found = trace(problem)
    tables = [choices(found.values[i]) for i in found.varied]
    bounds = _bounds(found)
    old = tuple(group[0].value for group in found.values)
    made: dict[tuple[Fraction, ...], tuple[str, str]] = {old: ("", "")}
    for _ in range(ROUNDS):
        for values in _candidates(found, tables, bounds, wanted * DRAWS // ROUNDS, rng):
            if len(made) > wanted:
                break
            if values not in made and (answer := solve(found, values)):
                made[values] = (rewrite(problem.question, found, values), answer)
    return list(made.values())[1:]


def choices(group: Sequence[Number]) -> list[Fraction]:
    """What a value of the question may become, the least first."""
    first = group[0]
    value, decimals = first.value, first.decimals
    whole = int(value * 10**decimals)
    low, high = value / SPREAD, value * SPREAD
    if first.kind == "percent":
        if decimals or not 5 <= value <= 95:
            return [value]
        step, low, high = 5, max(low, Fraction(5)), min(high, Fraction(95))
    else:
        step = _step(whole, first)
        if not decimals and SMALL[0] <= value <= SMALL[1]:
            low, high = Fraction(SMALL[0]), Fraction(SMALL[2])
    high = min([high, *(Fraction(n.most) for n in group if n.most)])
    if value < 1:
        high = min(high, 1 - Fraction(1, 10**decimals))
    least, most = ceil(low * 10**decimals / step), floor(high * 10**decimals / step)
    found = (Fraction(n * step, 10**decimals) for n in range(least, most + 1))
    fit = [new for new in found if new > 0 and new != 1 and all(_fits(n, new) for n in group)]
    return fit or [value]


def _step(whole: int, number: Number) -> int:
    """How round the new numbers are: $2.50 becomes a multiple of 0.25, 3000 one of 100."""
    if number.decimals == 2 and number.kind == "money":
        return next(step for step in (25, 5, 1) if whole % step == 0)
    zeros = len(str(whole)) - len(str(whole).rstrip("0"))
    return int(10 ** max(zeros - 1, len(str(whole)) - 4, 0))


def _fits(number: Number, value: Fraction) -> bool:
    """Whether a value can stand in a place: the article before it, no trailing zero by itself."""
    written = write(number, value)
    if number.decimals and number.kind != "money" and written.endswith("0"):
        return False
    return not number.article or (number.article == "an") == bool(AN.match(written))


def write(number: Number, value: Fraction) -> str:
    """A value the way the number in its place was written."""
    whole = int(value * 10**number.decimals)
    head, tail = divmod(whole, 10**number.decimals)
    text = f"{head:,}" if number.comma else str(head)
    return f"{text}.{tail:0{number.decimals}}" if number.decimals else text


def rewrite(question: str, found: Trace, values: Sequence[Fraction]) -> str:
    """The question with other values."""
    places = [(n, values[i]) for i in found.varied for n in found.values[i]]
    for number, value in sorted(places, key=lambda place: -place[0].start):
        question = question[: number.start] + write(number, value) + question[number.end :]
    return question


def solve(found: Trace, values: Sequence[Fraction]) -> str | None:
    """The answer text for other values, or None where a result is not what the original's is."""
    slots = list(values)
    lines = []
    for equation, origins in zip(found.problem.equations, found.origins, strict=True):
        operands = [origin.value(slots) for origin in origins]
        partial: list[Fraction] = []
        result = evaluate(equation.program, operands, partial)
        old: list[Fraction] = []
        evaluate(equation.program, equation.operands, old)
        whole = all(
            new.denominator == 1
            for new, was in zip(partial, old, strict=True)
            if was.denominator == 1
        )
        if not whole or 100 % result.denominator or result > LARGEST:
            return None
        lines.append(equation.text(operands, result))
        slots.append(result)
    answer = slots[len(values) + found.final]
    return "\n".join([*lines, f"#### {decimal(answer)}"])


def _bounds(found: Trace) -> Bounds:
    question, groups = found.problem.question, found.values
    used = found.used()
    ordered = set()
    for i in found.varied:
        for j in range(len(groups)):
            if _comparable(question, groups[i], groups[j], j in used):
                low, high = (i, j) if groups[i][0].value < groups[j][0].value else (j, i)
                ordered.add((low, high))
    limits = [
        group[0].value
        for j, group in enumerate(groups)
        if group[0].kind != "percent"
        and j not in found.varied
        and (j not in used or group[0].value >= 10)
    ]
    percents = [j for j, group in enumerate(groups) if group[0].kind == "percent"]
    if sum(groups[j][0].value for j in percents) > 100:
        percents = []
    shares = set()
    if PERCENT.search(question):
        for i, equation in enumerate(found.problem.equations):
            asked = i == found.final and PERCENT.search(question.rpartition(". ")[2])
            if (asked or 100 in equation.operands) and equation.result <= 100:
                shares.add(i)
    return Bounds(tuple(sorted(ordered)), tuple(limits), tuple(percents), frozenset(shares))


def _comparable(question: str, one: Sequence[Number], other: Sequence[Number], used: bool) -> bool:
    """Whether the order of two values may matter: of one unit, an unused one, or 3 of the 8."""
    a, b = one[0], other[0]
    if a.value == b.value or (a.kind == "percent") != (b.kind == "percent"):
        return False
    if not used or a.unit == b.unit:
        return (a.kind == "money") == (b.kind == "money")
    for n in one:
        for m in other:
            between = question[min(n.end, m.end) : max(n.start, m.start)]
            if re.search(r"\b(?:of|to)\b", between) and len(between.split()) <= 6:
                return True
    return False


def _candidates(
    found: Trace,
    tables: Sequence[Sequence[Fraction]],
    bounds: Bounds,
    draws: int,
    rng: np.random.Generator,
) -> Iterator[tuple[Fraction, ...]]:
    """Values of the question that pass all tests with floats."""
    slots: list[Array | float] = [float(group[0].value) for group in found.values]
    picked = {}
    for i, table in zip(found.varied, tables, strict=True):
        floats = np.array([float(value) for value in table])
        shares = np.cumsum(1 / floats)  # log-uniform
        picked[i] = np.searchsorted(shares, rng.random(draws) * shares[-1], side="right")
        slots[i] = floats[picked[i]]  # [draws]
    good = np.ones(draws, dtype=bool)
    for low, high in bounds.ordered:
        good &= slots[low] < slots[high]
    if bounds.percents:
        good &= sum(slots[j] for j in bounds.percents) <= 100
    with np.errstate(divide="ignore", invalid="ignore"):
        good &= _sound(found, bounds, slots)
    values = [group[0].value for group in found.values]
    for row in np.flatnonzero(good):
        for i, table in zip(found.varied, tables, strict=True):
            values[i] = table[picked[i][row]]
        yield tuple(values)


def _sound(found: Trace, bounds: Bounds, slots: Sequence[Array | float]) -> Array:
    """Which draws give results like the original's: as positive, as whole, as small."""
    slots = list(slots)
    good: Array = np.ones(1, dtype=bool)
    for i, (equation, origins) in enumerate(
        zip(found.problem.equations, found.origins, strict=True)
    ):
        new: list[Array] = []
        old: list[Fraction] = []
        result = evaluate(equation.program, [origin.array(slots) for origin in origins], new)
        evaluate(equation.program, equation.operands, old)
        for now, was in zip(new, old, strict=True):
            good = good & (
                (now > NEAR) if was > 0 else (now < NEAR) if was < 0 else abs(now) < NEAR
            )
            if was.denominator == 1:
                good = good & (abs(now - np.rint(now)) < NEAR)
            else:
                good = good & ((now < 1) if was < 1 else (now > 1))
        good = good & (abs(result * 100 - np.rint(result * 100)) < NEAR) & (result <= LARGEST)
        if i in bounds.shares:
            good = good & (result <= 100)
        for limit in bounds.limits:
            if equation.result != limit:
                side = equation.result > limit
                good = good & ((result > float(limit)) == side)
        slots.append(result)
    return good

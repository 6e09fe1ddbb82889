"""Where the operands of a problem's equations come from, and which numbers may change.

Every operand is traced to a number of the question, to an earlier result or to a constant. What can
be read in two ways is kept as it is; a problem with an operand of unknown origin has no variants.
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from equations import Equation, decimal, evaluate
from wording import Number, constants_of, numbers_of

CENT = Fraction(1, 100)
SHARE = (Fraction(0), CENT)  # offset and factor: 0.2 for 20%
CHANGED = tuple(  # 0.8, 80, 1.2 and 120 for 20%
    (Fraction(offset), Fraction(factor))
    for offset, factor in ((1, -CENT), (100, -1), (1, CENT), (100, 1))
)
UNITS = 7  # days of a week; smaller numbers are too common to be taken for units
LARGE = 10  # from here on, it is no coincidence when two numbers explain a third
WHOLE = re.compile(r"\b(?:others?|rest|remaining|remainder|total|altogether|out of)\b", re.I)
NAMES = re.compile(r"[A-Z][a-z]+(?:, [A-Z][a-z]+)*,? and (?:[a-z]+ )?[A-Z][a-z]+")
LISTED = re.compile(r"[$\d][\d.,%]*(?: [a-z]+)?(?:, [$\d][\d.%]*(?: [a-z]+)?)*,? and [$\d]")


class NotVariable(ValueError):  # noqa: N818
    """No variants can be made of a problem; the message says why in a few words."""


@dataclass(frozen=True)
class Problem:
    """A question, its equations in order, and the answer."""

    question: str
    equations: tuple[Equation, ...]
    answer: Fraction
    complete: bool = True  # or else a step was given without its equation

    def text(self) -> str:
        """What a model writes: the equations, one a line, and the answer."""
        return "\n".join([*map(str, self.equations), f"#### {decimal(self.answer)}"])


@dataclass(frozen=True)
class Origin:
    """An operand as offset + factor * the value of a slot; slot -1 is the offset alone."""

    slot: int  # the values of the question, then the results
    offset: Fraction = Fraction(0)
    factor: Fraction = Fraction(1)

    def value(self, slots: Sequence[Any]) -> Any:
        """The operand, for slots of fractions."""
        if self.slot < 0:
            return self.offset
        if self.factor == 1 and not self.offset:
            return slots[self.slot]
        return self.offset + self.factor * slots[self.slot]

    def array(self, slots: Sequence[Any]) -> Any:
        """The operand, for slots of floats."""
        if self.slot < 0:
            return float(self.offset)
        return float(self.offset) + float(self.factor) * slots[self.slot]


@dataclass(frozen=True)
class Trace:
    """A problem with the origin of every operand."""

    problem: Problem
    values: tuple[tuple[Number, ...], ...]  # the distinct values of the question, where they stand
    origins: tuple[tuple[Origin, ...], ...]  # [equation][operand]
    final: int  # the equation whose result is the answer
    varied: tuple[int, ...]  # the values that may change

    def used(self) -> set[int]:
        """The slots that operands stand for."""
        return {origin.slot for origins in self.origins for origin in origins}


def trace(problem: Problem) -> Trace:
    """The origins of all operands; NotVariable where a number has none or nothing may change."""
    if not all(equation.exact for equation in problem.equations):
        raise NotVariable("rounded")
    if not problem.complete:
        raise NotVariable("a step is missing")
    values = _grouped(numbers_of(problem.question))
    results = [equation.result for equation in problem.equations]
    final = len(results) - 1 - results[::-1].index(problem.answer)
    readings = _all_readings(problem, values)
    _settle(readings, len(values))
    mentioned = {reading.slot for own in readings for choice in own for reading in choice}
    unused = {len(values) + i for i in range(len(results)) if i != final} - mentioned
    if unused:
        raise NotVariable("a result without use")
    origins, fixed = _chosen(problem, values, readings)
    used = {origin.slot for own in origins for origin in own}
    fixed |= {i for i, group in enumerate(values) if _stays(group)}
    fixed |= _dependent(problem, values, used) | _counts(problem, values)
    varied = tuple(i for i in range(len(values)) if i in used and i not in fixed)
    if not varied:
        raise NotVariable("nothing may change")
    return Trace(problem, values, origins, final, varied)


def _grouped(numbers: list[Number]) -> tuple[tuple[Number, ...], ...]:
    groups: dict[Fraction, list[Number]] = {}
    for number in numbers:
        groups.setdefault(number.value, []).append(number)
    return tuple(map(tuple, groups.values()))


def _stays(group: tuple[Number, ...]) -> bool:
    """Whether one of the places of a value keeps it, or they are of different kinds."""
    kinds = {
        (number.kind in ("percent", "cents") and number.kind, number.decimals) for number in group
    }
    return group[0].value in (0, 1) or len(kinds) > 1 or any(number.fixed for number in group)


def _all_readings(
    problem: Problem, values: tuple[tuple[Number, ...], ...]
) -> list[list[list[Origin]]]:
    """All that each operand of each equation may stand for."""
    said, meant = constants_of(problem.question)
    slots = [group[0].value for group in values]
    counts: set[int] = set()
    found = []
    for equation in problem.equations:
        own = []
        for operand in equation.operands:
            readings = list(_plain_readings(operand, values, slots, said, meant))
            readings = readings or list(_percent_readings(operand, values, slots))
            if not readings and (
                operand in counts or (operand in meant and not _explained(operand, slots))
            ):
                readings = [Origin(-1, operand)]
            if not readings:
                raise NotVariable("an unknown constant")
            own.append(readings)
        found.append(own)
        slots.append(equation.result)
        counts |= _terms(equation)
    return found


def _plain_readings(
    operand: Fraction,
    values: tuple[tuple[Number, ...], ...],
    slots: Sequence[Fraction],
    said: set[Fraction],
    meant: set[Fraction],
) -> Iterator[Origin]:
    """Results, the last one first, numbers of the question and constants.

    Where a number of the question is also one of units, as 12 inches are a foot, it may be both.
    """
    asked = operand in slots[: len(values)]
    for slot in reversed(range(len(slots))):
        kind = values[slot][0].kind if slot < len(values) else ""
        if slots[slot] == operand:
            yield Origin(slot)
        elif kind in ("percent", "cents") and slots[slot] * CENT == operand:
            yield Origin(slot, *SHARE)
    if operand in said or (asked and operand in meant and operand >= UNITS):
        yield Origin(-1, operand)


def _percent_readings(
    operand: Fraction, values: tuple[tuple[Number, ...], ...], slots: Sequence[Fraction]
) -> Iterator[Origin]:
    """What is left or what becomes of a percentage, which may be a result."""
    if not any(group[0].kind == "percent" for group in values):
        return
    for slot, value in enumerate(slots):
        if slot >= len(values) and 0 < value < 100:
            changes = (SHARE, *CHANGED[:2])
        else:
            changes = CHANGED if slot < len(values) and values[slot][0].kind == "percent" else ()
        for offset, factor in changes:
            if offset + factor * value == operand:
                yield Origin(slot, offset, factor)


def _settle(readings: list[list[list[Origin]]], questions: int) -> None:
    """Choose between results: one that only one operand may stand for is that operand."""
    flat = [choice for own in readings for choice in own]
    for slot in range(questions, questions + len(readings)):
        able = [choice for choice in flat if any(reading.slot == slot for reading in choice)]
        if len(able) == 1 and all(reading.slot >= questions for reading in able[0]):
            able[0][:] = [reading for reading in able[0] if reading.slot == slot]


def _chosen(
    problem: Problem, values: tuple[tuple[Number, ...], ...], readings: list[list[list[Origin]]]
) -> tuple[tuple[tuple[Origin, ...], ...], set[int]]:
    """One reading of every operand, and the values of the question behind ambiguous ones."""
    shaken = random.Random(0)  # readings that agree on other numbers, too, are one
    probe = [float(group[0].value) * shaken.uniform(0.5, 2) for group in values]
    origins = tuple(tuple(choice[0] for choice in own) for own in readings)
    doubtful: set[int] = set()
    for equation, own, first in zip(problem.equations, readings, origins, strict=True):
        for choice in own:
            seen = [reading.array(probe) for reading in choice]
            if max(seen) - min(seen) > 1e-9 * abs(max(seen)):
                doubtful |= {reading.slot for reading in choice}
        probe.append(evaluate(equation.program, [origin.array(probe) for origin in first]))
    fixed = set()
    for slot in doubtful:
        fixed |= _feeding(slot, origins, len(values))
    return origins, fixed


def _explained(operand: Fraction, slots: Sequence[Fraction]) -> bool:
    """Whether a constant may be a step that was done in the head."""
    for a, b in itertools.permutations(slots, 2):
        if operand in (a + b, a - b, a * b, a * b * CENT) or (b and a / b == operand):
            return True
    return False


def _feeding(slot: int, origins: Sequence[tuple[Origin, ...]], questions: int) -> set[int]:
    """The values of the question that a slot depends on."""
    found, waiting = set(), [slot]
    while waiting:
        slot = waiting.pop()
        if slot >= questions:
            waiting += [origin.slot for origin in origins[slot - questions]]
        elif slot >= 0:
            found.add(slot)
    return found


def _dependent(
    problem: Problem, values: tuple[tuple[Number, ...], ...], used: set[int]
) -> set[int]:
    """Values of which one follows from others: 80% and 20%, or 5 rows of 6 among 30 chairs."""
    fixed: set[int] = set()
    whole = WHOLE.search(problem.question) is not None
    known = [(group[0].value, group[0].kind == "percent") for group in values]
    for (i, (a, a_percent)), (j, (b, b_percent)) in itertools.combinations(enumerate(known), 2):
        if a_percent and b_percent and a + b == 100:
            fixed |= {i, j}
        products = {a * b} if a > 1 and b > 1 else set()
        products |= {a * b * CENT} if a_percent != b_percent else set()
        for k, (c, _) in enumerate(known):
            if k in (i, j):
                continue
            sums = a + b == c and a_percent == b_percent and (whole or not {i, j, k} <= used)
            if sums or (c in products and c >= LARGE):
                fixed |= {i, j, k}
    return fixed


def _counts(problem: Problem, values: tuple[tuple[Number, ...], ...]) -> set[int]:
    """Values that may count what the text or an equation lists: 3 tests with 80, 85, 90 points."""
    listed = set().union(*map(_terms, problem.equations))
    for match in (*NAMES.finditer(problem.question), *LISTED.finditer(problem.question)):
        items = 2 + match[0].count(", ") - match[0].count(", and")
        listed |= {items, items + 1} if items > 2 else {items}
    if re.search(r"\b(?:average|mean)\b", problem.question, re.I):
        listed |= set(range(2, 13))
    return {i for i, group in enumerate(values) if group[0].value in listed}


def _terms(equation: Equation) -> set[int]:
    """How many numbers an equation adds up, from three on."""
    terms = 1 + equation.tokens.count("+")
    return {terms} if terms > 2 else set()

"""Compositions of operations: how they are drawn, what they compute, which side they are on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from random import Random
from typing import Any, Literal, get_args

from .operations import OPERATIONS, Kind, Operation

Split = Literal["train", "tune", "test"]

DEPTHS = (1, 2, 3)
DEPTH_WEIGHTS = (1, 3, 4)
KIND_WEIGHTS: dict[Kind, int] = {"ints": 8, "words": 5, "str": 5, "int": 3}
INTEGERS = (-99, 999)
LONGEST = 60  # list or string
UNDEFINED = None  # stands for a missing value, or one out of bounds

_BY_KIND = {
    kind: tuple(operation for operation in OPERATIONS if operation.takes == kind)
    for kind in get_args(Kind)
}


@dataclass(frozen=True, slots=True)
class Step:
    operation: Operation
    parameter: Any

    def __str__(self) -> str:
        name = self.operation.name
        return name if self.parameter is None else f"{name}({self.parameter})"


Composition = tuple[Step, ...]
Values = tuple[Any, ...]  # one per probe


def side(names: Sequence[str]) -> Split:
    """Return the side of a composition by the names of its operations, in any order.

    The sides are 80 % train, 8 % tune and 12 % test. The side is a hash: the 8-byte blake2b digest
    of the ASCII text `ints.add+ints.keep_even+ints.sum` (names ascending), read as a big-endian
    integer, modulo 100. Below 80 is train, below 88 tune, the rest test. Parameters do not count:
    no model trained on the training side has seen the operations of a test problem together.
    """
    text = "+".join(sorted(names))
    bucket = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") % 100
    return "train" if bucket < 80 else "tune" if bucket < 88 else "test"


def draw(random: Random, split: Split, operations: int | None = None) -> Composition:
    """Draw a composition of one side without repeated operations.

    No shorter composition is equal to it. operations: their number; None is any.
    """
    if split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}; known: {', '.join(get_args(Split))}")
    if operations is not None and operations not in DEPTHS:
        raise ValueError(
            f"operations must be one of {', '.join(map(str, DEPTHS))}, or None for all, "
            f"not {operations!r}"
        )
    while True:
        composition = _walk(random, operations or random.choices(DEPTHS, DEPTH_WEIGHTS)[0])
        names = {step.operation.name for step in composition}
        if len(names) == len(composition) and side(list(names)) == split and sound(composition):
            return composition


def _walk(random: Random, depth: int) -> Composition:
    kind = random.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))[0]
    steps: list[Step] = []
    for _ in range(depth):
        operation = random.choice(_BY_KIND[kind])
        steps.append(Step(operation, random.choice(operation.parameters)))
        kind = operation.gives
    return tuple(steps)


@lru_cache(maxsize=100_000)
def sound(composition: Composition) -> bool:
    """Return whether a composition is worth a problem.

    It must be defined on at least half of the probes, have at least 4 different values on them, and
    not be equal to a shorter composition.
    """
    found = values(composition)
    defined = sum(value is not UNDEFINED for value in found)
    if defined < len(found) // 2 or len(set(map(repr, found)) - {"None"}) < 4:
        return False
    return repr(found) not in _shorter_reprs(
        composition[0].operation.takes, composition[-1].operation.gives, len(composition)
    )


def values(composition: Composition) -> Values:
    """Return the result of a composition for each probe of its input kind."""
    found: Values = probes(composition[0].operation.takes)
    for step in composition:
        found = _apply(step, found)
    return found


def shorter(takes: Kind, gives: Kind, depth: int) -> Iterator[Values]:
    """Yield the values of every composition of fewer steps, including the identity (no steps)."""
    for fewer in range(depth):
        yield from _of_depth(takes, fewer).get(gives, {}).values()


def neighbours(composition: Composition) -> Iterator[Values]:
    """Yield the values of every composition that differs in one step."""
    for i, step in enumerate(composition):
        before, after = composition[:i], composition[i + 1 :]
        start = values(before) if before else probes(step.operation.takes)
        for other in _steps(step.operation.takes):
            if other != step and other.operation.gives == step.operation.gives:
                found = _apply(other, start)
                for later in after:
                    found = _apply(later, found)
                yield found


@cache
def probes(kind: Kind) -> Values:
    """Return the fixed inputs that every composition is tried on: edge cases, then random ones."""
    random = Random(f"probes of {kind}")
    return (*_EDGES[kind], *(_RANDOM[kind](random) for _ in range(36)))


def _apply(step: Step, found: Values) -> Values:
    return tuple(UNDEFINED if value is UNDEFINED else _value(step, value) for value in found)


def _value(step: Step, value: Any) -> Any:
    try:
        result = step.operation.run(value, step.parameter)
    except (ValueError, IndexError):  # maximum or first of nothing, digits of a negative number
        return UNDEFINED
    return result if _in_bounds(result) else UNDEFINED


def _in_bounds(value: Any) -> bool:
    if isinstance(value, int):
        return INTEGERS[0] <= value <= INTEGERS[1]
    if len(value) > LONGEST or not value or isinstance(value, str):
        return len(value) <= LONGEST
    if isinstance(value[0], int):
        return bool(INTEGERS[0] <= min(value) and max(value) <= INTEGERS[1])
    return max(map(len, value)) <= LONGEST


@cache
def _steps(kind: Kind) -> tuple[Step, ...]:
    return tuple(
        Step(operation, parameter)
        for operation in _BY_KIND[kind]
        for parameter in operation.parameters
    )


@cache
def _of_depth(takes: Kind, depth: int) -> dict[Kind, dict[str, Values]]:
    """Return the values of all compositions of this depth, by output kind and then by repr.

    Equal compositions occur once.
    """
    if depth == 0:
        return {takes: {repr(probes(takes)): probes(takes)}}
    found: dict[Kind, dict[str, Values]] = {}
    for kind, before in _of_depth(takes, depth - 1).items():
        for step in _steps(kind):
            into = found.setdefault(step.operation.gives, {})
            for start in before.values():
                result = _apply(step, start)
                into[repr(result)] = result
    return found


@cache
def _shorter_reprs(takes: Kind, gives: Kind, depth: int) -> frozenset[str]:
    return frozenset(
        text for fewer in range(depth) for text in _of_depth(takes, fewer).get(gives, {})
    )


_VOCABULARY = """
    a as at apple banana bread boat cat coat cloud dog door egg eat fish fog goat green hat house
    ice into jam jar kite lemon lamp moon map nest net of on open orange pen pear queen rain red
    river sun sea stone tea tree toast up under van water wind window yes zebra
"""


def _random_ints(random: Random) -> list[int]:
    size = random.randint(3, 9)
    return [random.randint(*random.choice([(-9, 9), (0, 12), (-5, 20)])) for _ in range(size)]


def _random_words(random: Random) -> list[str]:
    found = random.choices(_VOCABULARY.split(), k=random.randint(3, 6))
    return [*found, random.choice(found)] if random.random() < 0.5 else found


def _random_text(random: Random) -> str:
    return " ".join(
        word.capitalize() if random.random() < 0.3 else word for word in _random_words(random)
    )


_EDGES: dict[Kind, Values] = {
    "ints": ([], [7], [-4], [3, 3], [2, 1], [0, 0, 5]),
    "int": (0, 1, 2, 9, 10, 11),
    "str": ("", "a", "Toast", "a b", "Noon moon"),
    "words": ([], ["tea"], ["a", "a"], ["on", "eat", "tea"]),
}
_RANDOM = {
    "ints": _random_ints,
    "int": lambda random: random.randint(-30, 130),
    "str": _random_text,
    "words": _random_words,
}

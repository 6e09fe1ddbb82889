"""Write a composition as a person would: a signature with a docstring, and a right body."""

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from random import Random
from typing import Any

from .grammar import Composition, Step
from .operations import ANNOTATIONS, ELEMENTS, NAMES, Kind

FUNCTION = "f"
INDENT = " " * 4
FRESH = ("p", "q", "r")  # no operation's code uses these names
# How often a step gets a separate line.
STYLES = {"inline": 0.0, "mixed": 0.5, "steps": 1.0, "loop": 0.5}
TAKES_GENERATOR = (
    "sum(@)", "max(@)", "min(@)", "sorted(@)", "''.join(@)", "' '.join(@)", "'-'.join(@)",
)  # fmt: skip
LONGEST_BODY = 48  # tokens
_TOKEN = re.compile(r"\w+|[^\w\s]|\n *")
_OPERATORS = (ast.BinOp, ast.UnaryOp, ast.Compare)


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    loose: bool = False  # needs parentheses as an operand


@dataclass(frozen=True, slots=True)
class Shape:
    """What may replace the @ of a piece of code, and whether the result needs parentheses."""

    named: bool  # @ occurs more than once: only a name may replace it
    tight: bool  # @ is an operand: loose expressions get parentheses
    loose: bool  # the whole needs parentheses as an operand


def write_prompt(composition: Composition, random: Random) -> str:
    takes, gives = composition[0].operation.takes, composition[-1].operation.gives
    signature = f"def {FUNCTION}({NAMES[takes]}: {ANNOTATIONS[takes]}) -> {ANNOTATIONS[gives]}:"
    return f'{signature}\n{INDENT}"""{_docstring(composition, random)}"""\n'


def _docstring(composition: Composition, random: Random) -> str:
    phrases = [
        _filled(random.choice(step.operation.phrases), step.parameter, str) for step in composition
    ]
    if len(phrases) == 1:
        return _sentence(phrases[0])
    form = random.randrange(3)
    if form == 0:
        return _sentence(", then ".join(phrases))
    if form == 1:
        return " ".join(_sentence(phrase) for phrase in phrases)
    return _sentence(f"first {', then '.join(phrases)}")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def write_body(composition: Composition, random: Random) -> str:
    """Return a right body in a random style, ending in a newline.

    A body longer than LONGEST_BODY is written again, up to 8 times in all; the shortest is kept.
    """
    written = ""
    for _ in range(8):
        again = _written(composition, random)
        written = min(written or again, again, key=tokens)
        if tokens(written) <= LONGEST_BODY:
            break
    return written


def tokens(text: str) -> int:
    """Count words, marks and line starts: about as many tokens as with a small vocabulary."""
    return len(_TOKEN.findall(text))


def _written(composition: Composition, random: Random) -> str:
    style = random.choice(list(STYLES))
    body = _Body(composition[0].operation.takes, random, fresh=random.random() < 0.25)
    for run in _runs(composition):
        if style == "loop" and _elementwise(run[0]) and body.value.text != "out":
            body.loop(run)
        elif len(run) > 1 and random.random() < 0.5:
            body.apply(_comprehension(run, body.random), run[-1].operation.gives)
        else:
            for step in run:
                if random.random() < STYLES[style]:
                    body.name_it()
                body.apply(
                    _filled(random.choice(step.operation.code), step.parameter, repr),
                    step.operation.gives,
                )
    return "".join(f"{INDENT}{line}\n" for line in [*body.lines, f"return {body.value.text}"])


class _Body:
    """The lines written so far, and the expression of the current value."""

    def __init__(self, takes: Kind, random: Random, fresh: bool) -> None:
        self.random = random
        self.lines: list[str] = []
        self.value = Expression(NAMES[takes])
        self.kind = takes
        self.fresh = list(FRESH) if fresh else []

    def name_it(self) -> None:
        if not self.value.text.isidentifier():
            name = self.fresh.pop(0) if self.fresh else NAMES[self.kind]
            self.lines.append(f"{name} = {self.value.text}")
            self.value = Expression(name)

    def apply(self, code: str, gives: Kind) -> None:
        shape = _shape(code)
        if shape.named:
            self.name_it()
        operand = self.value.text
        if code in TAKES_GENERATOR and _is_comprehension(operand) and self.random.random() < 0.5:
            operand = operand[1:-1]
        if shape.tight and self.value.loose:
            operand = f"({operand})"
        self.value = Expression(code.replace("@", operand), shape.loose)
        self.kind = gives

    def loop(self, run: list[Step]) -> None:
        self.name_it()
        element, conditions = _element(run, self.random)
        lines = ["out = []", f"for {ELEMENTS[run[0].operation.takes]} in {self.value.text}:"]
        if conditions:
            lines.append(f"{INDENT}if {' and '.join(conditions)}:")
        lines.append(INDENT * (2 if conditions else 1) + f"out.append({element})")
        self.lines += lines
        self.value, self.kind = Expression("out"), run[-1].operation.gives


def _runs(composition: Composition) -> list[list[Step]]:
    """Group neighbouring maps and filters of the same kind; every other step is a run by itself."""
    runs: list[list[Step]] = []
    for elements, group in groupby(
        composition, lambda step: _elementwise(step) and step.operation.takes
    ):
        steps = list(group)
        runs += [steps] if elements else [[step] for step in steps]
    return runs


def _elementwise(step: Step) -> bool:
    return bool(step.operation.each or step.operation.when)


def _comprehension(run: list[Step], random: Random) -> str:
    x = ELEMENTS[run[0].operation.takes]
    element, conditions = _element(run, random)
    return f"[{element} for {x} in @{' if ' + ' and '.join(conditions) if conditions else ''}]"


def _element(run: list[Step], random: Random) -> tuple[str, list[str]]:
    """Return the new element after a run of maps and filters, and the conditions to keep it."""
    element = Expression(ELEMENTS[run[0].operation.takes])
    conditions = []
    for step in run:
        made = _on_element(step, element, random)
        if step.operation.each:
            element = made
        else:
            conditions.append(made.text)
    return element.text, conditions


def _on_element(step: Step, element: Expression, random: Random) -> Expression:
    ways = [
        _filled(code, step.parameter, repr) for code in step.operation.each or step.operation.when
    ]
    code = random.choice(
        [code for code in ways if element.text.isidentifier() or not _shape(code).named]
    )
    shape = _shape(code)
    operand = f"({element.text})" if shape.tight and element.loose else element.text
    return Expression(code.replace("@", operand), shape.loose)


def _is_comprehension(text: str) -> bool:
    return (
        text.startswith("[")
        and text.endswith("]")
        and isinstance(ast.parse(text, mode="eval").body, ast.ListComp)
    )


def _filled(text: str, parameter: Any, show: Any) -> str:
    return text if parameter is None else text.replace("#", show(parameter))


@lru_cache(maxsize=10_000)
def _shape(code: str) -> Shape:
    tree = ast.parse(code.replace("@", "OPERAND"), mode="eval").body
    tight = any(
        isinstance(node, (*_OPERATORS, ast.Attribute, ast.Subscript))
        and any(
            isinstance(child, ast.Name) and child.id == "OPERAND"
            for child in ast.iter_child_nodes(node)
        )
        for node in ast.walk(tree)
    )
    return Shape(named=code.count("@") > 1, tight=tight, loose=isinstance(tree, _OPERATORS))

"""minicode: write a function body from a signature and a docstring, scored by running checks.

The checks run in the sandbox. The problems are compositions of one to three simple operations on
integers, strings and lists. The test side holds out whole compositions (see `side`), and `stream`
yields training pairs of the other side forever, in many phrasings and with many bodies.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from ...sandbox import Limits, run_python
from ..base import Problem, Score, Task
from ..jsonl import DEFAULT, EXPLORATION, first
from ..programs import read_program
from .grammar import (
    UNDEFINED,
    Composition,
    Split,
    Values,
    draw,
    neighbours,
    probes,
    shorter,
    side,
    values,
)
from .reading import read_answer
from .writing import FUNCTION, write_body, write_prompt

__all__ = ["TASK", "Target", "load", "prompt", "score", "side", "stream"]

CHECKS = 8
MOST_CHECKS = 20
MOST_PROBLEMS = 1000
PATIENCE = 2000  # draws without a new problem after which the search gives up
LIMITS = Limits(timeout_s=5.0)
LONGEST_PROGRAM = 20_000  # characters; a right answer has a few hundred

Check = tuple[tuple[Any, ...], Any]  # arguments, expected result: plain data


@dataclass(frozen=True, slots=True)
class Target:
    checks: tuple[Check, ...]
    solution: str  # one right body of many
    unsafe: bool = field(repr=False)  # scored without a sandbox


def stream(
    *, operations: int | None = None, split: Split = "train", seed: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield (prompt, body) pairs of one side forever.

    operations: how many operations each problem has; None mixes one to three.
    """
    random = Random(f"minicode stream {seed}")
    while True:
        composition = draw(random, split, operations)
        yield write_prompt(composition, random), write_body(composition, random)


def load(
    *,
    operations: int | None = None,
    split: Split = "test",
    count: int = 200,
    seed: int = 0,
    limit: int | None = None,
    unsafe: bool = False,
) -> list[Problem]:
    """Return `count` problems of one side, no two with the same operations.

    operations: how many operations a problem composes, 1 to 3; more are harder. None mixes them
    like the training data.
    limit: return only the first `limit` of the problems.
    """
    if not 1 <= count <= MOST_PROBLEMS:
        raise ValueError(f"count must be 1 to {MOST_PROBLEMS}, not {count}")
    wanted = len(first(range(count), limit))
    random = Random(f"minicode problems {seed}")
    problems: list[Problem] = []
    taken: set[tuple[str, ...]] = set()
    idle = 0
    while len(problems) < wanted:
        composition = draw(random, split, operations)
        names = tuple(sorted(step.operation.name for step in composition))
        idle += 1
        if names not in taken and (chosen := _chosen(composition, random)):
            taken.add(names)
            problems.append(_problem(composition, chosen, random, unsafe))
            idle = 0
        elif idle == PATIENCE:
            what = f"{operations} operation{'' if operations == 1 else 's'}"
            raise ValueError(
                f"found only {len(problems)} problems with {what} on the {split} side, "
                f"but {wanted} were requested"
            )
    return problems


def prompt(problem: Problem) -> str:
    return problem.prompt


def score(problem: Problem, text: str) -> Score:
    answer = read_answer(text, problem.prompt)
    if answer is None:
        return Score(False, None, "there is no code in the text")
    written, program = answer
    if len(program) > LONGEST_PROGRAM:
        return Score(
            False, _readable(written), f"the program is longer than {LONGEST_PROGRAM} characters"
        )
    if program != _readable(program) or "\0" in program:
        return Score(False, _readable(written), "the program is not valid text")
    tests = "".join(
        f"assert {FUNCTION}(*{arguments!r}) == {expected!r}\n"
        for arguments, expected in problem.target.checks
    )
    verdict = run_python(
        program, tests, functions=(FUNCTION,), limits=LIMITS, unsafe=problem.target.unsafe
    )
    return Score(verdict.passed, written, verdict.detail)


def _readable(text: str) -> str:
    return text[: LONGEST_PROGRAM + 1].encode(errors="replace").decode()


def _problem(composition: Composition, chosen: list[int], random: Random, unsafe: bool) -> Problem:
    inputs, outputs = probes(composition[0].operation.takes), values(composition)
    return Problem(
        id="minicode/" + "+".join(map(str, composition)),
        prompt=write_prompt(composition, random),
        target=Target(
            checks=tuple(((deepcopy(inputs[i]),), deepcopy(outputs[i])) for i in chosen),
            solution=write_body(composition, random),
            unsafe=unsafe,
        ),
    )


def _chosen(composition: Composition, random: Random) -> list[int]:
    """Return the probes to check a composition with; empty if it cannot be checked.

    They are CHECKS probes, plus those needed to tell the composition from its rivals. Every shorter
    composition must fail, and so must every composition that differs in one step, unless no probe
    tells the two apart.
    """
    expected = values(composition)
    defined = [i for i, value in enumerate(expected) if value is not UNDEFINED]
    random.shuffle(defined)
    chosen = _varied(defined, expected)
    for rival in shorter(
        composition[0].operation.takes, composition[-1].operation.gives, len(composition)
    ):
        if not _refute(rival, expected, chosen, defined):
            return []
    for rival in neighbours(composition):
        _refute(rival, expected, chosen, defined)
    return chosen if len(chosen) <= MOST_CHECKS else []


def _varied(defined: list[int], expected: Values) -> list[int]:
    """Return CHECKS probes, preferring those whose result no earlier probe has."""
    seen: list[Any] = []
    repeats = []
    for i in defined:
        repeats.append(expected[i] in seen)
        seen.append(expected[i])
    order = sorted(range(len(defined)), key=repeats.__getitem__)
    return [defined[i] for i in order[:CHECKS]]


def _refute(rival: Values, expected: Values, chosen: list[int], defined: list[int]) -> bool:
    """Add a check that the rival fails, unless one does already; return False if there is none."""
    if any(rival[i] != expected[i] for i in chosen):
        return True
    telling = next((i for i in defined if rival[i] != expected[i]), None)
    if telling is not None:
        chosen.append(telling)
    return telling is not None


TASK = Task(
    name="minicode",
    load=load,
    prompt=prompt,
    score=score,
    length=64,
    read=read_program,
    code=True,
    protocols={
        "3_operations": {"load": partial(load, operations=3), "steps": 16},
        # docs/exploration.md
        "exploration": {
            "load": partial(load, operations=3, count=500, seed=EXPLORATION),
            "steps": 16,
        },
        # docs/default.md
        "default": {"load": partial(load, operations=3, count=500, seed=DEFAULT), "steps": 16},
    },
)

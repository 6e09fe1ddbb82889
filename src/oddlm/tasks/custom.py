"""Custom tasks: a JSONL file of prompts and targets, and the name of a scorer."""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..sandbox import TestsError, Trial, read_tests, run_python
from ..sandbox.trial import parsed
from .base import Problem, Score, Task
from .jsonl import first, in_half, read_jsonl, text_field
from .programs import codes_in, given, read_program, readings
from .scoring import find_number, read_number, score_number

# Definitions in a prompt that is the beginning of a program.
_DEFINED = re.compile(r"^(class|def|async def) +(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scorer:
    """How to score the answers of a JSONL task.

    `target` turns a record of the file into the target that `score` compares with, and raises
    ValueError if the record is malformed.
    """

    target: Callable[[Mapping[str, Any]], Any]
    score: Callable[[Problem, str], Score]
    read: Callable[[str], str | None]  # see `Task.read`


@dataclass(frozen=True, slots=True)
class Checks:
    """The tests of a program, and whether to run programs without a sandbox."""

    trial: Trial
    unsafe: bool = field(repr=False)


def target_text(record: Mapping[str, Any]) -> str:
    target = record["target"]
    if not isinstance(target, str):
        raise ValueError(f"target is {type(target).__name__}, not text")
    return target


def target_number(record: Mapping[str, Any]) -> float:
    target = record["target"]
    value = find_number(target) if isinstance(target, str) else target
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(f"target {target!r} is not a number")
    return float(value)


def target_checks(record: Mapping[str, Any], *, unsafe: bool) -> Checks:
    """Read tests in Python, such as `assert double(2) == 4`.

    Tests that no program could pass are refused, and the message names their line. The tests may
    use the prompt's imports from the standard library and its constants.
    """
    by_reference = record.get("by_reference", [])
    if not isinstance(by_reference, list) or not all(
        isinstance(name, str) for name in by_reference
    ):
        raise ValueError('by_reference must be a list of names, such as ["Stack"]')
    defined = _DEFINED.findall(record["prompt"])
    classes = [name for kind, name in defined if kind == "class"]
    tests = target_text(record)
    try:
        used = {node.id for node in ast.walk(parsed(tests, "tests")) if isinstance(node, ast.Name)}
        trial = read_tests(
            tests,
            setup=given(record["prompt"], used - {name for _, name in defined} - set(by_reference)),
            defined=tuple(name for _, name in defined),
            by_reference=tuple(dict.fromkeys([*by_reference, *classes])),
        )
    except TestsError as error:
        raise ValueError(
            f"target, {error} (docs/sandbox.md lists the tests that can be judged)"
        ) from None
    return Checks(trial, unsafe)


def score_exact(problem: Problem, text: str) -> Score:
    correct = text.strip() == problem.target.strip()
    return Score(correct, text.strip(), "the same text" if correct else "not the same text")


def score_last_number(problem: Problem, text: str) -> Score:
    return score_number(find_number(text), problem.target)


def score_python(problem: Problem, text: str) -> Score:
    codes = codes_in(text, problem.prompt)
    checks: Checks = problem.target
    verdict = run_python(
        readings(problem.prompt, codes), checks.trial, tidy=True, unsafe=checks.unsafe
    )
    return Score(verdict.passed, codes[0], verdict.detail)


def _scorers(unsafe: bool) -> dict[str, Scorer]:
    return {
        "exact": Scorer(target_text, score_exact, str.strip),
        "number": Scorer(target_number, score_last_number, partial(read_number, find_number)),
        "python": Scorer(partial(target_checks, unsafe=unsafe), score_python, read_program),
    }


def scorer_names() -> list[str]:
    return list(_scorers(unsafe=False))


def jsonl_task(path: Path, *, score: str, length: int = 256) -> Task:
    """Make a task from a file of lines {"prompt": ..., "target": ...}, with an optional "id".

    score: the name of a scorer: exact, number or python. The problems can be split into halves,
    tune and test (see `in_half`).
    """
    if score not in scorer_names():
        raise ValueError(f"unknown scorer {score!r}; known: {', '.join(scorer_names())}")

    scorer = _scorers(unsafe=False)[score]

    def load(
        *,
        data: Path = path,
        limit: int | None = None,
        split: str | None = None,
        unsafe: bool = False,
    ) -> list[Problem]:
        read_target = _scorers(unsafe)[score].target
        problems: list[Problem] = []
        for index, (number, record) in enumerate(read_jsonl(data, ("prompt", "target"))):
            prompt = text_field(data, number, record, "prompt")
            try:
                target = read_target(record)
            except ValueError as error:
                raise ValueError(f"{data}, line {number}: {error}") from error
            if in_half(prompt, split):
                problems.append(Problem(str(record.get("id", index)), prompt, target))
        return first(problems, limit)

    return Task(
        Path(path).stem,
        load,
        _prompt,
        scorer.score,
        length,
        read=scorer.read,
        code=score == "python",
    )


def _prompt(problem: Problem) -> str:
    return problem.prompt

"""MBPP: short Python functions from a description, scored by running three tests.

(Austin et al. 2021, arXiv:2108.07732.)
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ..sandbox import Limits, TestsError, Trial, read_tests, run_python
from ..sandbox.trial import parsed
from .base import Problem, Score, Task
from .hub import hub_rows
from .jsonl import first, read_rows, text_field
from .programs import codes_in, read_program, readings
from .published import dream, llada

HUB = "google-research-datasets/mbpp"
FIELDS = ("task_id", "code", "test_list")
# The published split, by task_id. Tuning uses the validation problems, so nothing is chosen on the
# test problems.
SPLITS = {
    "test": range(11, 511),
    "tune": range(511, 601),
    "train": range(601, 975),
    "all": range(1, 975),
}
SHOTS = (2, 3, 4)  # the examples of the published prompt, by task_id
END = "[DONE]"
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Checks:
    """The tests of a program."""

    trial: Trial
    shown: tuple[str, ...]  # the tests that the prompt shows
    solution: str  # one right program
    unsafe: bool = field(repr=False)


def load(
    *,
    data: Path | None = None,
    limit: int | None = None,
    split: str | None = None,
    unsafe: bool = False,
    shots: Sequence[int] = (),
    sanitized: bool = False,
) -> list[Problem]:
    """Return the problems of one split (default: the 500 test problems), from the hub or a file.

    data: mbpp.jsonl as published, or sanitized-mbpp.json.
    split: test, tune (validation), train or all.
    shots: the task_ids of worked examples; prompts are then whole, in the published form.
    sanitized: only the 427 problems that the authors have edited by hand, 257 of them in test.
    """
    wanted = "test" if split is None else split
    if wanted not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    source = str(data or f"{HUB} on the hub")
    found: dict[int, Problem] = {}
    rows = (
        chain(_hub_rows("prompt", sanitized) if shots else (), _hub_rows(wanted, sanitized))
        if data is None
        else read_rows(data, FIELDS)
    )
    for number, row in rows:
        if sanitized and "prompt" not in row:
            raise ValueError(
                f"{source}, line {number}: missing: prompt; give sanitized-mbpp.json as published"
            )
        name = row.get("task_id")
        if not isinstance(name, int):
            raise ValueError(f"{source}, line {number}: task_id is {name!r:.40}, not a number")
        if name in SPLITS[wanted] or name in shots:
            found[name] = _problem(source, number, row, unsafe)
    if missing := [name for name in shots if name not in found]:
        raise ValueError(f"{source}: the examples are missing: task_id {missing}")
    examples = "".join(
        f"{_published(found[name])}{found[name].target.solution}\n{END}\n" for name in shots
    )
    problems = [one for name, one in found.items() if name in SPLITS[wanted]]
    if shots:
        problems = [replace(one, prompt=examples + _published(one)) for one in problems]
    return first(problems, limit)


def _published(problem: Problem) -> str:
    """Return a problem in the words of the published prompt (figure 1 of the paper)."""
    tests = "\n".join(problem.target.shown)
    return (
        f"You are an expert Python programmer, and here is your task: {problem.prompt} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )


def _hub_rows(split: str, sanitized: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    parts = {"tune": ("validation",), "all": ("prompt", "test", "validation", "train")}.get(
        split, (split,)
    )
    for part in parts:
        yield from hub_rows(HUB, config="sanitized" if sanitized else "full", split=part)


def _problem(source: str, number: int, row: dict[str, Any], unsafe: bool) -> Problem:
    question = "text" if "text" in row else "prompt"  # the sanitized half names it prompt
    missing = [name for name in (question, *FIELDS) if name not in row]
    if missing:
        raise ValueError(f"{source}, line {number}: missing: {', '.join(missing)}")
    text, code = (text_field(Path(source), number, row, name) for name in (question, "code"))
    setup = [*_lines(source, number, row, "test_imports"), str(row.get("test_setup_code") or "")]
    tests = _lines(source, number, row, "test_list")
    try:
        trial = _trial("\n".join([*setup, *tests]), code)
    except TestsError as error:
        raise ValueError(f"{source}, line {number}: {error}") from None
    return Problem(f"mbpp/{row['task_id']}", text, Checks(trial, tuple(tests), code, unsafe))


def _lines(source: str, number: int, row: dict[str, Any], name: str) -> list[str]:
    lines = row.get(name, [])
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError(f"{source}, line {number}: {name} must be a list of texts")
    return lines


def _trial(tests: str, code: str) -> Trial:
    """Read tests with the names, and among them the classes, that the published solution defines.

    Node and Pair are such classes.
    """
    nodes = parsed(code, "the published solution").body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = tuple(node.name for node in nodes if isinstance(node, kinds))
    classes = tuple(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return read_tests(tests, defined=defined, by_reference=classes)


def prompt(problem: Problem) -> str:
    tests = "\n".join(problem.target.shown)
    return f"{problem.prompt}\nYour code should pass these tests:\n\n{tests}\n"


def score(problem: Problem, text: str) -> Score:
    checks: Checks = problem.target
    codes = codes_in(text)
    limits = Limits(timeout_s=TIMEOUT_S)
    verdict = run_python(
        readings("", codes), checks.trial, tidy=True, limits=limits, unsafe=checks.unsafe
    )
    return Score(verdict.passed, codes[0], verdict.detail)


def whole_prompt(problem: Problem) -> str:
    return problem.prompt


def first_score(problem: Problem, text: str) -> Score:
    """Score what comes before the end mark: a model may go on with a task of its own."""
    return score(problem, text.partition(END)[0])


WHOLE = {"prompt": whole_prompt, "score": first_score}

TASK = Task(
    "mbpp",
    load,
    prompt,
    score,
    length=512,
    read=read_program,
    code=True,
    outside=True,
    protocols={
        "3-shot": {**WHOLE, "load": partial(load, shots=SHOTS)},
        "llada": {**WHOLE, "load": partial(load, shots=SHOTS), **llada(256, eos="late")},
        "dream": dream(1024),
        "sanitized": {"load": partial(load, sanitized=True)},
        "sanitized_3-shot": {**WHOLE, "load": partial(load, shots=SHOTS, sanitized=True)},
    },
)

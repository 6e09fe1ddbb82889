"""The file format and the scoring of EvalPlus, for `humaneval_plus` and `mbpp_plus`."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..sandbox import Limits, TestsError, Trial, Verdict, read_tests, run_python
from .base import Problem, Score, Task
from .evalplus_judge import converted
from .jsonl import first, in_half, read_jsonl, text_field
from .programs import codes_in, read_program, readings

TEXTS = ("task_id", "prompt", "entry_point", "canonical_solution")
FIELDS = (*TEXTS, "base_input", "plus_input", "atol")
# Theirs is 60 s for all inputs; here, the time of the reference counts, too. Every call has a limit
# of its own (evalplus_judge.py).
LIMITS = Limits(timeout_s=120.0, memory_bytes=4 << 30)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a program is tested with: inputs, and the reference that knows the answers."""

    task_id: str
    entry_point: str
    solution: str
    digest: str  # of the inputs, which are long
    inputs: str = field(repr=False)  # a JSON list
    atol: float
    unsafe: bool = field(repr=False)

    def run(self, source: str | Sequence[str]) -> Verdict:
        return run_python(
            source,
            self.trial(),
            tidy=True,
            limits=LIMITS,
            unsafe=self.unsafe,
        )

    def trial(self) -> Trial:
        given = (self.solution, self.entry_point, self.task_id, self.inputs, self.atol)
        return read_tests(
            f"__evalplus__['check']({self.entry_point}, *{given!r})\n",
            setup=_setup(),
            names=(self.entry_point,),
        )


def plus_task(
    name: str,
    source: str,
    prompt: Callable[[Problem], str],
    begun: Callable[[Problem], str] = lambda _: "",
) -> Task:
    """Return the task of a dataset.

    source: HumanEvalPlus or MbppPlus.
    begun: the program that a problem's prompt begins, if it begins one.
    """

    def score(problem: Problem, text: str) -> Score:
        codes = codes_in(text, begun(problem))
        verdict = problem.target.run(readings(begun(problem), codes))
        return Score(verdict.passed, codes[0], verdict.detail)

    return Task(
        name,
        partial(load, source),
        prompt,
        score,
        length=512,
        read=read_program,
        code=True,
        outside=True,
        protocols={"base": {"load": partial(load, source, plus=False)}},
    )


@cache
def _setup() -> str:
    """Return the judge's own code. It has a namespace of its own, whatever a program is called."""
    source = (files(__package__) / "evalplus_judge.py").read_text(encoding="utf-8")
    return f"__evalplus__ = {{'__name__': 'evalplus'}}\nexec({source!r}, __evalplus__)\n"


def load(
    name: str,
    *,
    data: Path | None = None,
    limit: int | None = None,
    split: str | None = None,
    unsafe: bool = False,
    plus: bool = True,
) -> list[Problem]:
    """Return the problems of a file as evalplus publishes it; by default the newest in its cache.

    name: HumanEvalPlus or MbppPlus.
    split: one half of the problems, tune or test (see `in_half`).
    plus: also test with the inputs that EvalPlus has added.
    """
    source = data or cached(name)
    problems = []
    for number, record in read_jsonl(source, FIELDS):
        problem = _problem(source, number, record, plus=plus, unsafe=unsafe)
        if in_half(problem.prompt, split):
            problems.append(problem)
    return first(problems, limit)


def _problem(
    source: Path, number: int, record: dict[str, Any], *, plus: bool, unsafe: bool
) -> Problem:
    name, prompt, entry_point, solution = (text_field(source, number, record, key) for key in TEXTS)
    inputs = [*_inputs(source, number, record, "base_input")]
    inputs += _inputs(source, number, record, "plus_input") if plus else []
    atol = record["atol"]
    if isinstance(atol, bool) or not isinstance(atol, int | float):
        raise ValueError(f"{source}, line {number}: atol is {type(atol).__name__}, not a number")
    text = json.dumps(inputs)
    mark = sha256(text.encode()).hexdigest()[:16]
    target = Inputs(name, entry_point, prompt + solution, mark, text, atol, unsafe)
    try:
        target.trial()
    except TestsError as error:
        raise ValueError(f"{source}, line {number}: {error}") from None
    return Problem(name, prompt, target)


def _inputs(source: Path, number: int, record: dict[str, Any], key: str) -> list[Any]:
    """Return inputs as they are in the file, if they can be read."""
    inputs = record[key]
    if inputs == {}:  # as published where there is none
        return []
    try:
        if not all(isinstance(one, list) for one in inputs) or not isinstance(inputs, list):
            raise TypeError("it must be a list of lists of arguments")
        converted(record["task_id"], inputs)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{source}, line {number}: {key} cannot be read: {error}") from None
    return inputs


def cached(name: str) -> Path:
    """Return the newest file of a dataset in the cache of evalplus."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evalplus"
    found = {
        tuple(map(int, version[1].split("."))): path
        for path in folder.glob(f"{name}-v*.jsonl")
        if (version := re.fullmatch(rf"{name}-v(\d+(?:\.\d+)*)\.jsonl", path.name))
    }
    if not found:
        get = {"HumanEvalPlus": "get_human_eval_plus", "MbppPlus": "get_mbpp_plus"}[name]
        raise ValueError(
            f"there is no {name}-v*.jsonl in {folder}: pip install evalplus, then python -c "
            f"'from evalplus.data import {get} as get; get()'; or give the file: --data FILE"
        )
    return found[max(found)]

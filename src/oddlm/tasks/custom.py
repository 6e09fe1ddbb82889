"""A task of the user's own: a JSONL of prompts and targets, and a scorer by name."""

import ast
import builtins
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..sandbox import require_sandbox, run_python
from .base import Problem, Score, Task
from .data import first, in_half, read_jsonl, text_field
from .scoring import code_of, find_number, readings, score_number


@dataclass(frozen=True, slots=True)
class Scorer:
    """read turns a file's target into what score compares with; ValueError on one that makes no sense."""

    read: Callable[[Any], Any]
    score: Callable[[Problem, str], Score]


@dataclass(frozen=True, slots=True)
class Checks:
    """Assertions, and the functions in them that a completion has to define."""

    code: str
    functions: tuple[str, ...]


def read_text(target: Any) -> str:
    if not isinstance(target, str):
        raise ValueError(f"target is {type(target).__name__}, not text")
    return target


def read_number(target: Any) -> float:
    value = find_number(target) if isinstance(target, str) else target
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(f"target {target!r} is no number")
    return float(value)


def read_checks(target: Any) -> Checks:
    """Python source such as `assert double(2) == 4`."""
    code = read_text(target)
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"target is no Python: {error.msg} (line {error.lineno} of it)") from error
    functions = unbound_calls(tree)
    if not functions:
        raise ValueError("target calls no function that a completion could define")
    return Checks(code, functions)


def unbound_calls(tree: ast.AST) -> tuple[str, ...]:
    """Names that are called but neither built in nor bound in the code itself."""
    nodes = list(ast.walk(tree))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return tuple(dict.fromkeys(name for name in called if name not in bound and not hasattr(builtins, name)))


def score_exact(problem: Problem, text: str) -> Score:
    correct = text.strip() == problem.target.strip()
    return Score(correct, text.strip(), "the same text" if correct else "not the same text")


def score_last_number(problem: Problem, text: str) -> Score:
    return score_number(find_number(text), problem.target)


def score_python(problem: Problem, text: str, *, unsafe: bool) -> Score:
    code = code_of(text)
    checks: Checks = problem.target
    verdict = run_python(readings(problem.prompt, code), checks.code, functions=checks.functions, tidy=True, unsafe=unsafe)
    return Score(verdict.passed, code, verdict.detail)


def scorer(name: str, *, unsafe: bool = False) -> Scorer:
    known = _scorers(unsafe)
    if name not in known:
        raise ValueError(f"unknown scorer {name!r}; known: {', '.join(known)}")
    return known[name]


def scorer_names() -> list[str]:
    return list(_scorers(unsafe=False))


def _scorers(unsafe: bool) -> dict[str, Scorer]:
    return {
        "exact": Scorer(read_text, score_exact),
        "number": Scorer(read_number, score_last_number),
        "python": Scorer(read_checks, partial(score_python, unsafe=unsafe)),
    }


def jsonl_task(path: Path, *, score: str, length: int = 256, unsafe: bool = False) -> Task:
    """A task out of lines {"prompt": ..., "target": ...}, with an "id" if you like; score is exact, number or python.

    Its problems can be split into halves, tune and test (see `in_half`).
    """
    chosen = scorer(score, unsafe=unsafe)

    def load(*, data: Path = path, limit: int | None = None, split: str | None = None) -> list[Problem]:
        if score == "python":
            require_sandbox(unsafe=unsafe)
        problems: list[Problem] = []
        for index, (number, row) in enumerate(read_jsonl(data, ("prompt", "target"))):
            prompt = text_field(data, number, row, "prompt")
            try:
                target = chosen.read(row["target"])
            except ValueError as error:
                raise ValueError(f"{data}, line {number}: {error}") from error
            if in_half(prompt, split):
                problems.append(Problem(str(row.get("id", index)), prompt, target))
        return first(problems, limit)

    return Task(Path(path).stem, load, _prompt, chosen.score, length, code=score == "python")


def _prompt(problem: Problem) -> str:
    return problem.prompt

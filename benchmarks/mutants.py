"""Test whether the scorer passes right programs and catches wrong ones, on HumanEval or MBPP.

    python benchmarks/mutants.py humaneval [--boundary] [--every N] [--workers 2]
    python benchmarks/mutants.py mbpp [--data FILE] [--out benchmarks/results/mbpp.md]

Scores every reference solution, and then its mutants: a mutant changes one operator, one constant
or one comparison (to its opposite; with --boundary, < to <= and the like). Every survivor is run
again in one plain process, program and tests together, as in the published harnesses. One that also
passes there is an equivalent program or a gap in the tests, not in the scorer.
"""

import argparse
import ast
import copy
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from oddlm.sandbox import Limits, run_python
from oddlm.tasks import Problem, Task, find_task

TIMEOUT_S = 3.0
PLAIN_S = 60.0

S, R = TypeVar("S"), TypeVar("R")
Swaps = dict[type[ast.AST], type[ast.AST]]
SWAPS: Swaps = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitXor: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPPOSITE: Swaps = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
BOUNDARY: Swaps = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


@dataclass(frozen=True, slots=True)
class Mutant:
    problem: Problem
    source: str
    change: str


def solution(problem: Problem) -> str:
    """Return the reference as an answer to the problem."""
    tests = problem.target
    return str(tests.canonical_solution if hasattr(tests, "prompt") else tests.solution)


def mutants(problem: Problem, *, boundary: bool = False) -> Iterator[Mutant]:
    """Yield every program that differs in one place from the reference solution.

    In HumanEval, that is a place of the function that the prompt begins.
    """
    tests = problem.target
    prompt, name = (tests.prompt, tests.entry_point) if hasattr(tests, "prompt") else ("", None)
    swaps = SWAPS | (BOUNDARY if boundary else OPPOSITE)
    tree = ast.parse(prompt + solution(problem))
    for place in range(len(_sites(tree, name, swaps))):
        changed = copy.deepcopy(tree)
        node = _sites(changed, name, swaps)[place]
        before = ast.unparse(node)
        _change(node, swaps)
        yield Mutant(problem, ast.unparse(changed), f"{before}  ->  {ast.unparse(node)}")


def _sites(tree: ast.Module, name: str | None, swaps: Swaps) -> list[ast.AST]:
    """Return the nodes to change: of the last function of this name, or of the whole program."""
    body = tree.body
    if name is not None:
        function = next(
            n for n in reversed(tree.body) if isinstance(n, ast.FunctionDef) and n.name == name
        )
        body = function.body
    skipped = {id(n) for n in _descriptions(body)}
    return [
        n for part in body for n in ast.walk(part) if id(n) not in skipped and _changeable(n, swaps)
    ]


def _descriptions(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Bare strings and annotations: changing them changes no program."""
    for part in body:
        for node in ast.walk(part):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield node.value
            for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                if isinstance(annotation, ast.AST):
                    yield from ast.walk(annotation)


def _changeable(node: ast.AST, swaps: Swaps) -> bool:
    match node:
        case (
            ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) | ast.Compare(ops=[op, *_])
        ):
            return type(op) in swaps
        case ast.Constant(value=value):
            return isinstance(value, bool | int | float | str)
    return False


def _change(node: ast.AST, swaps: Swaps) -> None:
    match node:
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
            node.op = swaps[type(node.op)]()  # type: ignore[assignment]
        case ast.Compare():
            node.ops[0] = swaps[type(node.ops[0])]()  # type: ignore[call-overload]
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=str()):
            node.value = "" if node.value else "x"
        case ast.Constant(value=int() | float()):
            node.value = (
                0 if node.value == 1 else node.value + 1
            )  # as PIT's inline-constant mutator


def survives(mutant: Mutant) -> tuple[bool, str]:
    tests = mutant.problem.target
    if hasattr(tests, "prompt"):
        return tests.run(mutant.source, tidy=False, timeout_s=TIMEOUT_S)  # type: ignore[no-any-return]
    verdict = run_python(mutant.source, tests.trial, limits=Limits(timeout_s=TIMEOUT_S))
    return verdict.passed, verdict.detail


def passes_plainly(mutant: Mutant) -> bool:
    """Run program and tests in one unguarded process. Only for survivors: they are known to end."""
    tests = mutant.problem.target
    own = (
        f"{tests.test}\ncheck({tests.entry_point})\n"
        if hasattr(tests, "prompt")
        else tests.trial.tests
    )
    command = [sys.executable, "-I", "-c", f"{mutant.source}\n{own}\n"]
    return subprocess.run(command, capture_output=True, timeout=PLAIN_S).returncode == 0


def timed(
    pool: ThreadPoolExecutor, run: Callable[[S], R], subjects: Sequence[S]
) -> tuple[list[R], list[float]]:
    """Return the results, and the seconds that each took."""

    def one(subject: S) -> tuple[R, float]:
        start = time.perf_counter()
        return run(subject), time.perf_counter() - start

    pairs = list(pool.map(one, subjects))
    return [result for result, _ in pairs], [seconds for _, seconds in pairs]


def row(name: str, wanted: int, total: int, seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=20)
    times = f"{statistics.median(seconds):.2f} | {cuts[-1]:.2f} | {max(seconds):.2f}"
    return f"| {name} | {wanted} of {total} | {wanted / total:.1%} | {times} |"


def report(task: Task, problems: list[Problem], options: argparse.Namespace) -> Iterator[str]:
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    yield f"{options.workers} at a time, {machine}. Seconds are wall clock, with the start of the"
    yield "sandbox's two processes."
    yield "\n| | | | median s | 95 % s | most s |\n|---|---:|---:|---:|---:|---:|"
    chosen = [m for one in problems for m in mutants(one, boundary=options.boundary)]
    chosen = chosen[:: options.every]
    with ThreadPoolExecutor(options.workers) as pool:
        scores, seconds = timed(pool, lambda one: task.score(one, solution(one)), problems)
        right = sum(score.correct for score in scores)
        yield row("reference solutions that pass", right, len(problems), seconds)
        results, seconds = timed(pool, survives, chosen)
        survivors = [mutant for mutant, (passed, _) in zip(chosen, results, strict=True) if passed]
        killed = len(chosen) - len(survivors)
        every = f", every {options.every}th" if options.every > 1 else ""
        yield row(f"mutants that fail{every}", killed, len(chosen), seconds)
        plain = list(pool.map(passes_plainly, survivors))
    for one, score in zip(problems, scores, strict=True):
        if not score.correct:
            yield f"\nfails: {one.id} {score.detail}"
    here = [mutant for mutant, passed in zip(survivors, plain, strict=True) if not passed]
    yield f"\n{len(survivors)} mutants survive; {len(survivors) - len(here)} of them also pass in"
    yield "one plain process with the tests: they are equivalent programs, or gaps in the tests."
    for mutant in here:
        yield f"\npasses here only: {mutant.problem.id}, {mutant.change}"
    unexplained = sum(not detail for _, detail in results)
    late = sum(detail.startswith("took longer than") for _, detail in results)
    yield f"\n{late} mutants fail because they take longer than {TIMEOUT_S:g} s, {unexplained}"
    yield "without a reason."
    most = Counter(mutant.problem.id for mutant in survivors).most_common(5)
    yield "Most survivors: " + ", ".join(f"{name} ({count})" for name, count in most) + "."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["humaneval", "mbpp"])
    parser.add_argument("--data", type=Path, help="the problems; default: the package, or the hub")
    parser.add_argument("--boundary", action="store_true", help="change < to <= instead of to >=")
    parser.add_argument("--every", type=int, default=1, help="only every Nth mutant")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="a file for the table, beside standard output")
    options = parser.parse_args()
    task = find_task(options.task)
    every = {"split": "all"} if options.task == "mbpp" else {}
    problems = task.problems(data=options.data, **every)
    lines = [f"# python {' '.join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])}\n"]
    print(lines[0], flush=True)
    for line in report(task, problems, options):
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

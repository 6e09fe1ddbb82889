"""Test whether the scorer catches wrong programs: mutants of HumanEval's canonical solutions.

    python benchmarks/humaneval_mutants.py [--boundary] [--every N] [--workers 2]

A mutant changes one operator, one constant or one comparison (to its opposite; with --boundary, <
to <= and the like). Prints the share of killed mutants and lists the survivors. Every survivor is
run again in one plain process, program and tests together, like in HumanEval's own harness. One
that also passes there is an equivalent program or a gap in HumanEval's tests, not in the scorer.
"""

import argparse
import ast
import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from oddlm.tasks.base import Problem
from oddlm.tasks.humaneval import TASK

TIMEOUT_S = 3.0

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


def mutants(problem: Problem, *, boundary: bool = False) -> Iterator[Mutant]:
    """Yield every program that differs in one place of the function from the canonical solution."""
    tests = problem.target
    swaps = SWAPS | (BOUNDARY if boundary else OPPOSITE)
    tree = ast.parse(tests.prompt + tests.canonical_solution)
    for place in range(len(_sites(tree, tests.entry_point, swaps))):
        changed = copy.deepcopy(tree)
        node = _sites(changed, tests.entry_point, swaps)[place]
        before = ast.unparse(node)
        _change(node, swaps)
        yield Mutant(problem, ast.unparse(changed), f"{before}  ->  {ast.unparse(node)}")


def _sites(tree: ast.Module, entry_point: str, swaps: Swaps) -> list[ast.AST]:
    function = next(
        n for n in reversed(tree.body) if isinstance(n, ast.FunctionDef) and n.name == entry_point
    )
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
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
    return mutant.problem.target.run(mutant.source, tidy=False, timeout_s=TIMEOUT_S)  # type: ignore[no-any-return]


def passes_plainly(mutant: Mutant) -> bool:
    """Run program and tests in one unguarded process. Only for survivors: they are known to end."""
    tests = mutant.problem.target
    program = f"{mutant.source}\n{tests.test}\ncheck({tests.entry_point})\n"
    return (
        subprocess.run(
            [sys.executable, "-I", "-c", program], capture_output=True, timeout=60
        ).returncode
        == 0
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--boundary", action="store_true", help="change < to <= instead of to >=")
    parser.add_argument("--every", type=int, default=1, help="only every Nth mutant")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    chosen = [
        mutant for problem in TASK.load() for mutant in mutants(problem, boundary=options.boundary)
    ][:: options.every]
    with ThreadPoolExecutor(options.workers) as pool:
        results = list(pool.map(survives, chosen))
        survivors = [mutant for mutant, (passed, _) in zip(chosen, results, strict=True) if passed]
        plain = list(pool.map(passes_plainly, survivors))
    for mutant, passed in zip(survivors, plain, strict=True):
        print(f"survives {'' if passed else 'HERE ONLY '} {mutant.problem.id:14} {mutant.change}")
    killed, unexplained = len(chosen) - len(survivors), sum(not detail for _, detail in results)
    print(
        f"{len(chosen)} mutants, {killed} killed ({killed / len(chosen):.1%}), "
        f"{unexplained} without a reason"
    )
    print(f"{len(survivors)} survivors, {sum(plain)} of which also pass in one plain process")


if __name__ == "__main__":
    main()

"""Check the verdicts of the sandbox on hostile programs, correct programs and reference solutions.

    python benchmarks/verdicts.py [--mbpp FILE] [--workers 2]

The cases are those of tests/sandbox/cases.py. Also counts the hostile programs that would fool
plain Python, with program and tests in one process (itself in a sandbox). HumanEval comes with the
extra `tasks`, MBPP from the hub or from FILE.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sandbox.case import Case
from tests.sandbox.cases import HOSTILE, RIGHT

from oddlm.sandbox import Limits, Verdict, run_python, walls
from oddlm.tasks import Problem, Task, find_task


def fools_plain_python(case: Case) -> bool:
    """Run program and tests as one program, inside the candidate's walls."""
    both = f"{case.program}\n{case.tests}"
    program = f"def whole():\n    exec({both!r}, {{'__name__': 'plain'}})\n    return 1"
    return run_python(
        program, "assert whole() == 1", limits=Limits(timeout_s=min(case.timeout_s, 5.0))
    ).passed


def passes(task: Task, problem: Problem, solution: str) -> Verdict:
    score = task.score(problem, solution)
    return Verdict(score.correct, score.detail, 0.0)


def show(title: str, verdicts: Sequence[tuple[str, Verdict]], wanted: bool) -> None:
    wrong = [(name, verdict.detail) for name, verdict in verdicts if verdict.passed != wanted]
    print(f"{title}: {len(verdicts) - len(wrong)} of {len(verdicts)}")
    for name, detail in wrong:
        print(f"    {name}: {detail}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mbpp", type=Path, help="mbpp.jsonl; default: the hub")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(f"walls: {walls()}")
    with ThreadPoolExecutor(options.workers) as pool:
        hostile = list(pool.map(Case.judge, HOSTILE.values()))
        show("hostile programs contained", list(zip(HOSTILE, hostile, strict=True)), wanted=False)
        fooled = sum(pool.map(fools_plain_python, HOSTILE.values()))
        print(f"    of these, {fooled} fool plain Python")
        right = list(pool.map(Case.judge, RIGHT.values()))
        show("right programs judged right", list(zip(RIGHT, right, strict=True)), wanted=True)
        references: list[tuple[str, Task, list[Problem], Callable[[Problem], str]]] = []
        humaneval, mbpp = find_task("humaneval"), find_task("mbpp")
        references.append(
            ("HumanEval", humaneval, humaneval.problems(), lambda p: p.target.canonical_solution)
        )
        try:
            references.append(
                (
                    "MBPP",
                    mbpp,
                    mbpp.problems(data=options.mbpp, split="all"),
                    lambda p: p.target.solution,
                )
            )
        except ValueError as error:
            print(f"MBPP is left out: {error}")
        for name, task, problems, solution in references:
            verdicts = list(pool.map(lambda p, t=task, s=solution: passes(t, p, s(p)), problems))
            show(
                f"reference solutions of {name} passed",
                list(zip((p.id for p in problems), verdicts, strict=True)),
                wanted=True,
            )


if __name__ == "__main__":
    main()

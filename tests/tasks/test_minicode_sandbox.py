"""minicode from text to verdict, through the sandbox."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from oddlm.tasks import Problem
from oddlm.tasks.minicode import TASK


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return TASK.load()


def test_every_solution_passes(problems):
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(
            pool.map(lambda problem: TASK.score(problem, problem.target.solution), problems)
        )
    assert [verdict for verdict in verdicts if not verdict.correct] == []


def test_solutions_of_other_problems_fail(problems):
    for problem, other in pairwise(problems[:30]):
        verdict = TASK.score(problem, other.target.solution)
        assert not verdict.correct
        assert verdict.detail


def test_a_fenced_definition_passes(problems):
    problem = problems[0]
    text = f"Here it is:\n```python\n{problem.prompt}{problem.target.solution}```\nIt works."
    assert TASK.score(problem, text).correct


HOSTILE = {
    "nothing": "    return None",
    "pass": "    pass",
    "unfinished": "    return (",
    "deep brackets": "    return " + "(" * 5000 + ")" * 5000,
    "deep signs": "    return " + "-" * 15000 + "1",
    "endless": "    while True: pass",
    "exit": "    raise SystemExit(0)",
    "hard exit": "    import os\n    os._exit(0)",
    "equals all": (
        "    class Same:\n        def __eq__(self, other): return True\n    return Same()"
    ),
    "huge": "    return [[]] * 10 ** 9",
    "itself": "    return f",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_wrong_and_hostile_bodies_are_scored_failures(problems, name):
    verdict = TASK.score(problems[0], HOSTILE[name])
    assert not verdict.correct
    assert verdict.detail

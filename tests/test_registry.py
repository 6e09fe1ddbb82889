import subprocess
import sys
from functools import partial

import pytest

from oddlm.registry import Registry


def make() -> Registry:
    registry = Registry("shape")

    @registry.register
    def square(x, *, side=1.0):
        """Four sides."""
        return x * side

    square.corners = 4
    return registry


def test_build_binds_options_and_keeps_marks():
    registry = make()
    assert registry.build("square")(3) == 3
    bound = registry.build({"name": "square", "side": 2.0})
    assert bound(3) == 6
    assert bound.corners == 4
    assert registry.build(abs) is abs
    assert registry.options("square") == {"side": 1.0}
    assert registry.build("math.sqrt")(4) == 2


def test_a_partial_keeps_what_was_declared():
    registry = make()
    bound = registry.build(partial(registry.find("square"), side=3.0))
    assert bound(2) == 6
    assert bound.corners == 4


def test_a_name_is_taken_once():
    registry = make()

    def square(x):
        return x

    with pytest.raises(ValueError, match="shape 'square' is registered already"):
        registry.register(square)


TASK = """
from oddlm.tasks import Problem, Score, Task
from mine.reading import read

TASK = Task("mine", lambda *, limit=None: [Problem("0", "t5", None)], read, \
lambda problem, text: Score(True, text, "")%s)
"""


@pytest.fixture
def own_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "reading.py").write_text("def read(problem):\n    return problem.prompt\n")
    (tmp_path / "mine" / "tk.py").write_text(TASK % ", 4")
    return tmp_path


def installed(folder, *arguments):
    """The command as pip installs it: the current folder is not on its path."""
    command = [sys.executable, "-P", "-c", "from oddlm.cli import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )


def test_dotted_paths_lead_into_the_current_folder(own_folder):
    done = installed(
        own_folder, "eval", "mine.tk.TASK", "--model", "toy", "--n", "2", "--alpha", "0"
    )
    assert done.returncode == 0, done.stderr
    assert "mine, toy: 1 problem" in done.stdout


def test_nothing_in_the_current_folder_stands_in_for_what_is_installed(own_folder):
    """Neither for a package, nor, before anything there is named, for an extra that is missing."""
    for name in ("typer", "json", "torch", "oddlm"):
        (own_folder / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder')")
    assert installed(own_folder, "problems", "mine.tk.TASK").returncode == 0
    (own_folder / "absent.py").write_text("")
    look = "import oddlm.tasks, importlib.util; print(importlib.util.find_spec('absent'))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", look],
        capture_output=True,
        text=True,
        check=True,
        cwd=own_folder,
    )
    assert done.stdout == "None\n"


def test_a_mistake_in_ones_own_file_is_told_with_ones_own_lines(own_folder):
    file = own_folder / "mine" / "tk.py"
    file.write_text(TASK % "")
    done = installed(own_folder, "eval", "mine.tk.TASK")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"oddlm: task 'mine.tk.TASK' cannot be imported:\n  File \"{file}\", line 5, in <module>\n"
    )
    assert done.stderr.endswith(
        "TypeError: Task.__init__() missing 1 required positional argument: 'length'\n"
    )
    assert "importlib" not in done.stderr
    assert done.stderr.count("File ") == 1


def test_other_mistakes_in_ones_own_file(own_folder, monkeypatch):
    monkeypatch.chdir(own_folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text, said in (
        ("slip", "x = (\n", r"(?s):\n  File .*slip\.py\", line 1\n.*SyntaxError: "),
        (
            "lack",
            "import nowhere_at_all\n",
            r"(?s)lack\.py\", line 1.*No module named 'nowhere_at_all'",
        ),
        ("none", "", "module 'none' has no attribute 'thing'"),
    ):
        (own_folder / f"{name}.py").write_text(text)
        with pytest.raises(
            ValueError,
            match=f"shape '{name}.thing' cannot be imported: .*{said}" if name == "none" else said,
        ):
            make().build(f"{name}.thing")
    before = list(sys.path)
    with pytest.raises(
        ValueError, match=r"shape 'no_such\.thing' cannot be imported: No module named 'no_such'$"
    ):
        make().build("no_such.thing")
    assert sys.path == before

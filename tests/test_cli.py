"""The command line as a user types it."""

import subprocess
import sys
from pathlib import Path

import pytest

import oddlm


def run(*arguments: str, module: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oddlm"] if module else [str(Path(sys.executable).with_name("oddlm"))]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_both_spellings_are_one_command():
    for module in (False, True):
        done = run("--version", module=module)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"oddlm {oddlm.__version__}\n", "")


def test_no_arguments_teach():
    done = run()
    assert "demo" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["demo", "names"])
def test_help(command):
    done = run(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_demo_shows_that_the_samples_part():
    done = run("demo", "--n", "4", "--length", "8", "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert "untrained toy network" in done.stdout
    assert "1 / 4" in done.stdout
    assert "4 / 4" in done.stdout
    assert (
        run("demo", "--n", "4", "--length", "8", "--steps", "4").stdout.split("seconds")[0] == done.stdout.split("seconds")[0]
    )


def test_names_lists_everything_with_options():
    done = run("names")
    for word in ("odd_sequential", "low_confidence", "max_pool", "cosine", "quality", "threshold=0.9"):
        assert word in done.stdout


def test_a_bad_value_is_one_line_without_a_traceback():
    done = run("demo", "--steps", "0")
    assert done.returncode == 2
    assert done.stderr == "oddlm: steps must be an integer >= 1, not 0\n"

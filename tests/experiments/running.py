"""Start sweeps as a user does, in separate processes."""

import subprocess
import sys
from pathlib import Path

from ..starting import interruptible
from .test_run import ENV, ROOT

GRID = """
model = "toy"
task = "{task}"
n = 4
seed = [0, 1]
[params]
temperature = [0, 1]
alpha = [0, 8]
"""


def start(grid: Path, store: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "oddlm", "sweep", str(grid), "--store", str(store), *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return interruptible(command, cwd=ROOT, env=ENV, text=True, start_new_session=True, **pipes)


def sweep(grid: Path, store: Path, *more: str) -> tuple[int, str, str]:
    """Run a sweep and return its exit status, stdout and stderr."""
    process = start(grid, store, *more)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err

"""Sweeps as a user starts them, in processes of their own."""

import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from oddlm.experiments.grid import read_grid
from oddlm.experiments.sweep import Result, make_plan, run_sweep
from oddlm.experiments.work import Batch, Bench, Options, Outcome
from oddlm.store import Store

from ..starting import interruptible
from ..test_evaluate import ENV, ROOT, content

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
    """Exit status, stdout and stderr."""
    process = start(grid, store, *more)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@dataclass(frozen=True)
class Inline:
    """Workers without processes: each batch where the driver is."""

    options: Options = Options()  # noqa: RUF009 -- it is frozen
    workers: int = 1
    timeout_s: float | None = None

    def outcomes(self, batches: Iterator[Batch]) -> Generator[Outcome]:
        yield from map(Bench(self.options).run, batches)


def sweep_inline(grid: Path, store: Path) -> Result:
    return run_sweep(make_plan(read_grid(grid)), Store(store), Inline())


def rows(store: Path) -> dict[str, dict[str, dict]]:
    """By run and problem, all but how long it took; a row that is there twice is an error of `read`."""
    return {name: {row["problem"]: row for row in content(Store(store).read(name).rows)} for name in Store(store).ids()}


def lines(store: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in store.glob("*/rows.jsonl"))

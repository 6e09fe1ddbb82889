"""Kill sweeps at random moments, restart them, and check that nothing is lost or changed.

    python benchmarks/kills.py [--kills 20] [--executors inline local ray]
        [--out benchmarks/results/kills.md]

12 settings on 12 problems of the toy model (`tests.own_task.SLOW`: scoring a text takes 0.1 s). A
row of the table only draws, only scores what the row above has drawn, or does both. SIGKILL comes
within 0.3 s of a new record, every fourth time at any moment during start-up. With local workers,
every fifth kill hits a worker instead; on Ray, a raylet is killed as well, once per row, for good.
Then the command is restarted until it reports that everything is done. The records are compared
with those of an undisturbed run, except for times.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from oddlm.store import DRAWN, SCORES, Run, Store

Process = subprocess.Popen[bytes]
ROOT = Path(__file__).parent.parent
CLUSTER = ROOT / "tests" / "experiments" / "ray_cluster.py"
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
GRID = """
model = "toy"
task = "tests.own_task.SLOW"
n = 4
seed = [0, 1, 2]
[params]
length = 48
steps = 48
temperature = [0, 1]
alpha = [0, 8]
"""
PROBLEMS = 144
METHOD = " ".join(str(__doc__).rpartition("\n\n")[2].split())
WAIT_S = 300.0
TIMES = {"seconds", "score_seconds", "draw_seconds"}
STAGES = {"draw": ("--only", "draw"), "score": ("--only", "score"), "both": ()}
COLUMNS = (
    *(
        "executor",
        "stages",
        "kills",
        "of a worker",
        "during start-up",
        "drawn, not scored",
        "torn lines",
        "raylets killed",
    ),
    *("starts", "processes left", "records equal"),
)


@dataclass
class Row:
    executor: str
    stage: str
    randomness: random.Random
    kills: int = 0
    workers: int = 0  # of those kills
    early: int = 0  # before anything was added
    unscored: int = 0  # while some problem was drawn and not scored
    torn: int = 0  # in the middle of a line
    raylets: int = 0
    starts: int = 0
    left: int = 0  # processes that outlived their driver
    equal: bool = False
    start_s: float = 0.0  # from start to the first record
    trouble: list[str] = field(default_factory=list)

    def line(self) -> str:
        cells = (
            self.executor,
            self.stage,
            self.kills,
            self.workers,
            self.early,
            self.unscored,
            self.torn,
            self.raylets,
        )
        return (
            "| "
            + " | ".join(
                map(str, (*cells, self.starts, self.left, "yes" if self.equal else "**no**"))
            )
            + " |"
        )


def lines(store: Path, name: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in store.glob(f"*/{name}"))


def torn(store: Path) -> int:
    ends = [path.read_bytes()[-1:] for name in (DRAWN, SCORES) for path in store.glob(f"*/{name}")]
    return sum(end not in (b"", b"\n") for end in ends)


def added(store: Path, stage: str) -> int:
    """Return a number that grows with every record that this stage makes."""
    return (lines(store, DRAWN) if stage != "score" else 0) + (
        lines(store, SCORES) if stage != "draw" else 0
    )


def equal(mine: Path, theirs: Path, *, scored: bool) -> bool:
    """Compare the records by run and problem, without times; the store refuses duplicates.

    The means of a summary may differ in the last digit, because records are added up in the order
    in which they arrived.
    """
    one, other = Store(mine), Store(theirs)
    if sorted(one.ids()) != sorted(other.ids()):
        return False
    for a, b in ((one.read(name), other.read(name)) for name in one.ids()):
        first, second = (
            {record.problem: record.model_dump(exclude=TIMES) for record in run.records}
            for run in (a, b)
        )
        if first != second or (scored and not (a.complete and b.complete and means(a) == means(b))):
            return False
    return True


def means(run: Run) -> dict[str, str]:
    assert run.summary is not None
    return {
        name: f"{value:.9g}"
        for name, value in {**(run.summary.passed or {}), **run.summary.diversity}.items()
        if value
    }


def start(grid: Path, store: Path, executor: str, stage: str) -> Process:
    """Start a sweep in a new session, by which processes that it leaves behind are found."""
    command = [
        sys.executable,
        "-m",
        "oddlm",
        "sweep",
        str(grid),
        "--store",
        str(store),
        "--executor",
        executor,
    ]
    errors = (store.parent / "errors.txt").open("ab")
    with errors:
        return subprocess.Popen(
            [*command, *STAGES[stage]],
            cwd=ROOT,
            env=ENV,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )


def wait_until(condition: Callable[[], object], process: Process, what: str) -> bool:
    """Wait for a condition; return False if the process ended before."""
    end = time.monotonic() + WAIT_S
    while not condition():
        if process.poll() is not None:
            return False
        if time.monotonic() > end:
            raise SystemExit(f"{what}: nothing happened for {WAIT_S:g} s")
        time.sleep(0.01)
    return True


def living(session: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except (psutil.Error, OSError):
            continue
    return found


def end(process: Process, row: Row) -> None:
    """Kill the driver. Its workers notice by themselves."""
    process.kill()
    process.wait()
    until = time.monotonic() + 30
    while (left := living(process.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    row.left += len(left)
    for pid in left:
        os.kill(pid, signal.SIGKILL)


def kill_often(
    row: Row, grid: Path, store: Path, executor: str, kills: int, raylets: list[int]
) -> Process | None:
    """Start and kill sweeps until there were `kills` kills.

    Returns the driver if it is still running, because the last kill hit a worker.
    """
    process = None
    while row.kills < kills:
        if process is None:
            process, began = start(grid, store, executor, row.stage), time.monotonic()
            row.starts += 1
            torn_before = torn(store)
        before = added(store, row.stage)
        if row.start_s and row.kills % 4 == 3 and time.monotonic() - began < 1:
            time.sleep(row.randomness.uniform(0, row.start_s))
        elif not wait_until(
            lambda known=before: added(store, row.stage) > known,
            process,
            f"{row.executor}, {row.stage}",
        ):
            row.trouble.append(
                f"a sweep ended with status {process.returncode} after {row.kills} kills"
            )
            return None
        else:
            row.start_s = row.start_s or time.monotonic() - began
            time.sleep(row.randomness.uniform(0, 0.3))
        if raylets and row.kills >= kills // 2:
            os.kill(raylets.pop(), signal.SIGKILL)
            row.raylets += 1
            continue
        workers = [
            one
            for one in psutil.Process(process.pid).children()
            if "spawn_main" in " ".join(one.cmdline())
        ]
        row.kills += 1
        row.early += added(store, row.stage) == before
        row.unscored += lines(store, DRAWN) > lines(store, SCORES)
        if row.kills % 5 == 0 and workers:
            row.randomness.choice(workers).kill()
            row.workers += 1
            continue
        end(process, row)
        row.torn += max(0, torn(store) - torn_before)
        process = None
    return process


def finish(row: Row, grid: Path, store: Path, executor: str, process: Process | None) -> None:
    """Run the same command until everything is done."""
    for _ in range(5):
        if process is None:
            process = start(grid, store, executor, row.stage)
            row.starts += 1
        if not process.wait(WAIT_S):
            return
        process = None
        row.trouble.append(f"start {row.starts} ended with a status other than 0")


@contextmanager
def cluster() -> Iterator[dict[str, Any]]:
    """Run a Ray cluster of two raylets on this machine."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        [sys.executable, str(CLUSTER), "2"], cwd=CLUSTER.parent, env=ENV, text=True, **pipes
    )
    try:
        yield json.loads(next(line for line in process.stdout or () if line.startswith("{")))
    finally:
        process.communicate(timeout=WAIT_S)


def rows(name: str, home: Path, kills: int, whole: Path) -> Iterator[Row]:
    grid = home / "grid.toml"
    for stage in STAGES:
        row = Row(name, stage, random.Random(f"{name} {stage}"))
        store = home / name / ("both" if stage == "both" else "apart")
        store.parent.mkdir(exist_ok=True)
        with cluster() if name == "ray" else nullcontext({"address": "", "raylets": []}) as found:
            executor = {"local": "local:workers=2", "ray": f"ray:address={found['address']}"}.get(
                name, name
            )
            finish(
                row,
                grid,
                store,
                executor,
                kill_often(row, grid, store, executor, kills, found["raylets"][1:]),
            )
        drawn_alone = home / "undisturbed-drawn" if stage == "draw" else whole
        row.equal = equal(store, drawn_alone, scored=stage != "draw")
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="per row")
    parser.add_argument(
        "--executors",
        nargs="+",
        default=["inline", "local", "ray"],
        choices=["inline", "local", "ray"],
    )
    parser.add_argument("--out", type=Path, help="a file for the table, beside standard output")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        home = Path(folder)
        (home / "grid.toml").write_text(GRID)
        for stage, name in (("draw", "undisturbed-drawn"), ("both", "undisturbed")):
            process = start(home / "grid.toml", home / name, "inline", stage)
            if process.wait() or lines(home / name, DRAWN) != PROBLEMS:
                raise SystemExit((home / "errors.txt").read_text())
        lines_out = [
            f"# python benchmarks/kills.py --kills {args.kills}",
            f"\n{os.cpu_count()} cores, Python {platform.python_version()}. {METHOD}\n",
            f"| {' | '.join(COLUMNS)} |",
            f"|---|---{'|---:' * (len(COLUMNS) - 3)}|---|",
        ]
        print("\n".join(lines_out), flush=True)
        for name in args.executors:
            for row in rows(name, home, args.kills, home / "undisturbed"):
                lines_out.append(row.line())
                print(lines_out[-1], *row.trouble, sep="\n", flush=True)
                if not row.equal:
                    print((home / name / "errors.txt").read_text()[-3000:], file=sys.stderr)
    if args.out:
        args.out.write_text("\n".join(lines_out) + "\n")


if __name__ == "__main__":
    main()

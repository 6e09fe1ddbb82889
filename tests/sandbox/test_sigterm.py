"""A command that is ended while it runs programs leaves none of them, nor anything around them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ..experiments.running import start as start_sweep
from ..experiments.test_run import ENV, ROOT
from ..waiting import WAIT_S, wait_until
from .test_attacks import _descendants

ENDED = 128 + signal.SIGTERM


def start_scoring(folder: Path) -> "subprocess.Popen[str]":
    """Programs that never end, three at a time."""
    answers = folder / "answers.jsonl"
    answers.write_text(
        "".join(json.dumps({"id": f"own/{i % 12}", "text": f"{i}"}) + "\n" for i in range(999))
    )
    command = [
        sys.executable,
        "-m",
        "oddlm",
        "score",
        "tests.own_task.LOOPING",
        "--in",
        str(answers),
        "--workers",
        "3",
    ]
    return subprocess.Popen(
        command, cwd=ROOT, env=ENV, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def start_sweeping(folder: Path) -> "subprocess.Popen[str]":
    (folder / "grid.toml").write_text('model = "toy"\ntask = "tests.own_task.LOOPING"\nn = 4\n')
    return start_sweep(folder / "grid.toml", folder / "runs", "--workers", "2")


def sandboxes(pid: int) -> list[int]:
    return [one for one in _descendants(pid) if "bwrap" in _name(one)]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def left(others: set[int]) -> list[int]:
    """What has become a child of this process, which has made itself a subreaper; what has ended
    meanwhile is reaped.

    others: what earlier tests have started and keep.
    """
    for pid in set(_descendants(os.getpid())) - others:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return [pid for pid in _descendants(os.getpid()) if pid not in others]


@pytest.mark.parametrize(
    ("start", "times"),
    [
        (start_scoring, 3),
        (start_sweeping, 1),
        pytest.param(start_scoring, 60, marks=pytest.mark.soak),
        pytest.param(start_sweeping, 20, marks=pytest.mark.soak),
    ],
)
def test_nothing_is_left_behind(tmp_path, start, times):
    """Whatever it was about to do."""
    moments, others = random.Random(times), set(_descendants(os.getpid()))
    for _ in range(times):
        process = start(tmp_path)
        wait_until(lambda process=process: sandboxes(process.pid), process)
        time.sleep(moments.uniform(0, 1.5))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, "Traceback" in out + err) == (ENDED, False), err
        wait_until(lambda: not left(others))


def test_a_worker_that_is_ended_takes_its_programs_along(tmp_path):
    others = set(_descendants(os.getpid()))
    process = start_sweeping(tmp_path)
    wait_until(lambda: sandboxes(process.pid), process)
    workers = [
        pid for pid in _descendants(process.pid) if sandboxes(pid) and "bwrap" not in _name(pid)
    ]
    inside = [pid for worker in workers for pid in _descendants(worker)]
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in (*workers, *inside)), process
    )
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == ENDED
    wait_until(lambda: not left(others))

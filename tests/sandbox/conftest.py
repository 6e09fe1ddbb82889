"""Checks that no test here leaves a process running."""

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PR_SET_CHILD_SUBREAPER = 36


def children() -> list[str]:
    return [
        pid for task in Path("/proc/self/task").iterdir() for pid in read(task / "children").split()
    ]


def read(path: Path) -> str:
    """The result is empty if the thread or process has ended meanwhile."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def set_subreaper(on: bool) -> None:
    assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """As a subreaper, this process inherits whatever a sandbox leaves behind, even zombies."""
    set_subreaper(True)
    before = set(children())
    yield
    deadline = time.monotonic() + 0.04
    while time.monotonic() < deadline and set(children()) <= before:
        time.sleep(0.01)
    set_subreaper(False)  # other tests leave zombies to init
    left = {pid: read(Path(f"/proc/{pid}/stat")) for pid in set(children()) - before}
    assert not left

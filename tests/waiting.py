"""Waiting for what will happen, as long as it may take on a busy machine.

A test that waits for a time instead is a race.
"""

import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

WAIT_S = 120.0  # for things that take milliseconds on an idle machine


def wait_until(condition: Callable[[], object], process: Popen[str] | None = None) -> None:
    """Until it holds; the process that is to bring it about must live on."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.01)


def wait_gone(pid: int) -> None:
    wait_until(lambda: not Path(f"/proc/{pid}").exists())

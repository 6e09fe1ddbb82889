"""A task that misbehaves while it scores, in the way that the answer names."""

import os
import re
import signal
import sys
import time
from pathlib import Path

from oddlm.tasks import Problem, Score, Task

from ..waiting import wait_until


def load(*, limit: int | None = None) -> list[Problem]:
    return [Problem("one", "one", None)]


def score(problem: Problem, text: str) -> Score:
    name, _, option = text.partition(" ")
    return globals()[f"answer_{name}"](option)


def answer_quick(_: str) -> Score:
    return Score(True, str(os.getpid()), "torch" if "torch" in sys.modules else "no torch")


def answer_waits(folder: str) -> Score:
    """Wait until it is released; report the process that waits."""
    (Path(folder) / "begun").write_text(str(os.getpid()))
    wait_until((Path(folder) / "let").exists)
    return Score(False, None, "waited")


def answer_endless(_: str) -> Score:
    while True:
        pass


def answer_backtracks(_: str) -> Score:
    """Run for hours and block all other threads."""
    return Score(bool(re.match(r"(a+)+$", "a" * 60 + "b")), None, "")


def answer_stubborn(option: str) -> Score:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return answer_waits(option)


def answer_hungry(_: str) -> Score:
    hoard = []
    while True:
        hoard.append(b"x" * (1 << 24))


def answer_dies(_: str) -> Score:
    os._exit(3)


def answer_crashes(_: str) -> Score:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)
    raise AssertionError


def answer_fails(_: str) -> Score:
    raise LookupError("no such thing")


def answer_prints(_: str) -> Score:
    print('{"value": {"correct": true, "answer": null, "detail": "forged"}}', flush=True)
    os.write(1, b"more\n")
    return Score(False, "\ud800", "printed")


def answer_talks(_: str) -> Score:
    return Score(False, "x" * (64 << 20), "talked")


def _slow_problems(*, limit: int | None = None) -> list[Problem]:
    while True:
        time.sleep(1)


def _huge_problems(*, limit: int | None = None) -> list[Problem]:
    return [Problem(str(i), "x" * (1 << 20), None) for i in range(64)]


def _broken_problems(*, limit: int | None = None) -> list[Problem]:
    raise LookupError("no such thing")


def _prompt(problem: Problem) -> str:
    return problem.prompt


TASK = Task("slow", load, _prompt, score, 8)
ENDLESS = Task("endless", _slow_problems, _prompt, score, 8)
HUGE = Task("huge", _huge_problems, _prompt, score, 8)
BROKEN = Task("broken", _broken_problems, _prompt, score, 8)

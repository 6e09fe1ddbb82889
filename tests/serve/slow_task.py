"""A task that judges when it is let."""

import threading

from oddlm.tasks import Problem, Score, Task

from ..waiting import WAIT_S

BEGUN, LET = threading.Event(), threading.Event()


def load() -> list[Problem]:
    return [Problem("one", "one", None)]


def score(problem: Problem, text: str) -> Score:
    BEGUN.set()
    assert LET.wait(WAIT_S)
    return Score(False, text, "slow")


TASK = Task("slow", lambda *, limit=None: load(), lambda problem: problem.prompt, score, 8)

"""A task that takes its time to judge."""

import time

from oddlm.tasks import Problem, Score, Task


def load() -> list[Problem]:
    return [Problem("one", "one", None)]


def score(problem: Problem, text: str) -> Score:
    time.sleep(0.5)
    return Score(False, text, "slow")


TASK = Task("slow", lambda *, limit=None: load(), lambda problem: problem.prompt, score, 8)

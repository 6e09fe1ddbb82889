"""Tasks for tests: an answer is right where the numbers in it add up to something even."""

import os
import re
import signal
import time

from oddlm.tasks import Problem, Score, Task


def load(*, limit: int | None = None) -> list[Problem]:
    return [Problem(f"own/{i}", f"t{i + 5} t{2 * i + 9}", None) for i in range(12)][:limit]


def prompt(problem: Problem) -> str:
    return problem.prompt


def score(problem: Problem, text: str) -> Score:
    total = sum(map(int, re.findall(r"\d+", text)))
    return Score(total % 2 == 0, str(total), "even" if total % 2 == 0 else "odd")


def score_slowly(problem: Problem, text: str) -> Score:
    time.sleep(0.1)
    return score(problem, text)


TASK = Task(name="own", load=load, prompt=prompt, score=score, length=6)
SLOW = Task(name="slow", load=load, prompt=prompt, score=score_slowly, length=6)


def load_many(*, limit: int | None = None) -> list[Problem]:
    return [Problem(f"own/{i}", f"t{i + 5} t{2 * i + 9}", None) for i in range(20)][:limit]


def score_nine_in_ten(problem: Problem, text: str) -> Score:
    if problem.id.endswith("3"):
        raise RuntimeError(f"no verdict on {problem.id}")
    return score(problem, text)


def score_or_die(problem: Problem, text: str) -> Score:
    if problem.id == "own/3":
        os.kill(os.getpid(), signal.SIGKILL)
    return score(problem, text)


FAILING = Task(name="failing", load=load_many, prompt=prompt, score=score_nine_in_ten, length=6)
DEADLY = Task(name="deadly", load=load, prompt=prompt, score=score_or_die, length=6)

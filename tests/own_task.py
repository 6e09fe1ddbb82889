"""Tasks for tests: an answer is right where the numbers in it add up to something even."""

import re
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

"""Tasks for tests: an answer is right where the numbers in it add up to something even; and a
landscape whose best is known.
"""

import math
import os
import re
import signal
import time

import torch

from oddlm.models.toy import ToyTokenizer
from oddlm.sandbox import Limits, run_python
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


class Hills:
    """Two tokens, whatever the prompt: the first is right with logit 0 against one wrong with 2,
    the second with 4 against 30 wrong ones with 0. Too cold, and the first is wrong; too hot, and
    the second is.
    """

    mask_id, vocab_size, end_ids = 49, 50, (1,)
    RIGHT = "t10 t10"

    def __init__(self):
        self.tokenizer = ToyTokenizer(self.vocab_size)
        self._logits = torch.full((2, self.vocab_size), -torch.inf)
        self._logits[0, 10], self._logits[0, 11] = 0.0, 2.0
        self._logits[1, 10], self._logits[1, 11:41] = 4.0, 0.0

    def __call__(self, tokens, start, prompt_lengths):
        return self._logits.expand(len(tokens), -1, -1)

    @staticmethod
    def chance(temperature: float) -> float:
        """That a sample is right."""
        if temperature == 0:
            return 0.0
        return 1 / (1 + math.exp(2 / temperature)) / (1 + 30 * math.exp(-4 / temperature))


def load_sides(*, split: str = "test", limit: int | None = None) -> list[Problem]:
    return [
        Problem(f"hills/{split}/{i}", f"t{i + 5} t{sum(map(ord, split)) % 40}", None)
        for i in range(24)
    ][:limit]


def load_the_same(*, split: str = "test") -> list[Problem]:
    return [Problem(f"{split}/{i}", f"t{i + 5}", None) for i in range(3)]


def score_hills(problem: Problem, text: str) -> Score:
    return Score(text == Hills.RIGHT, text, "")


def score_hills_slowly(problem: Problem, text: str) -> Score:
    time.sleep(0.02)
    return score_hills(problem, text)


HILLS = Task(name="hills", load=load_sides, prompt=prompt, score=score_hills, length=2)
SLOW_HILLS = Task(
    name="slow_hills", load=load_sides, prompt=prompt, score=score_hills_slowly, length=2
)
LEAKY = Task(name="leaky", load=load_the_same, prompt=prompt, score=score, length=2)


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


def score_or_hang_once(problem: Problem, text: str) -> Score:
    """Whoever is the first to come to own/3 never comes back."""
    if problem.id == "own/3":
        try:
            os.close(os.open(os.environ["ODDLM_TEST_HUNG"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return score(problem, text)
        time.sleep(3600)
    return score(problem, text)


def score_looping(problem: Problem, text: str) -> Score:
    """A program that never ends, in a sandbox that has a second for it."""
    verdict = run_python("while True: pass", "f(1)", functions=["f"], limits=Limits(timeout_s=1.0))
    return Score(verdict.passed, None, verdict.detail)


FAILING = Task(name="failing", load=load_many, prompt=prompt, score=score_nine_in_ten, length=6)
HANGING = Task(name="hanging", load=load, prompt=prompt, score=score_or_hang_once, length=6)
LOOPING = Task(name="looping", load=load, prompt=prompt, score=score_looping, length=6)
DEADLY = Task(name="deadly", load=load, prompt=prompt, score=score_or_die, length=6)

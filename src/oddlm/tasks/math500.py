"""MATH-500: competition mathematics, scored by the answer in \\boxed{}.

The 500 problems of MATH (Hendrycks et al. 2021, arXiv:2103.03874; MIT licence) that Lightman et al.
2023 (arXiv:2305.20050) set aside as a test set.
"""

from pathlib import Path

from .base import Problem, Score, Task
from .hub import hub_rows
from .jsonl import first, in_half, read_rows, text_field
from .latex import LONGEST, boxed, require_math_verify, same, spelled
from .published import d1, dream, llada

HUB = "HuggingFaceH4/MATH-500"
FIELDS = ("problem", "answer")


def load(
    *, data: Path | None = None, limit: int | None = None, split: str | None = None
) -> list[Problem]:
    """Return the problems, from a local JSONL file or from the hub.

    data: a JSONL file with problem and answer, such as test.jsonl of prm800k's math_splits.
    split: one half of the problems, tune or test (see `in_half`).
    """
    require_math_verify()  # before anything is drawn
    source = Path(f"{HUB} on the hub") if data is None else data
    rows = hub_rows(HUB, config=None, split="test") if data is None else read_rows(data, FIELDS)
    problems = []
    for index, (number, row) in enumerate(rows):
        if missing := [name for name in FIELDS if name not in row]:
            raise ValueError(f"{source}, line {number}: missing: {', '.join(missing)}")
        question, answer = (text_field(source, number, row, name) for name in FIELDS)
        if in_half(question, split):
            problems.append(Problem(f"math500/{index}", question, answer))
    return first(problems, limit)


def prompt(problem: Problem) -> str:
    return (
        "Solve this problem step by step, and write the final answer in \\boxed{}.\n\n"
        f"{problem.prompt}\n"
    )


def score(problem: Problem, text: str) -> Score:
    answer = boxed(text)
    if answer is None:
        return Score(False, None, "no complete \\boxed{} in the text")
    correct, detail = same(problem.target, answer)
    return Score(correct, answer, detail)


def read(text: str) -> str | None:
    answer = boxed(text)
    return None if answer is None else spelled(answer[:LONGEST])


TASK = Task(
    "math500",
    load,
    prompt,
    score,
    length=256,
    read=read,
    outside=True,
    protocols={"d1": d1(256), "llada": llada(512, block=64), "dream": dream(512)},
)

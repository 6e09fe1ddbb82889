"""GSM8K: grade-school word problems, scored by the final number.

(Cobbe et al. 2021, arXiv:2110.14168.)
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

from .base import Problem, Score, Task
from .hub import hub_rows
from .jsonl import first, in_half, read_jsonl, text_field
from .published import d1, dream, llada
from .scoring import find_number, marked_number, read_number, score_number

HUB = "openai/gsm8k"
PAPER_PROBLEMS = 200

# Four questions of GSM8K's training split (MIT licence, OpenAI), the same as in OpenCompass's
# 4-shot prompt. LLaDA's own evaluation builds on that harness, which gives them as turns of a chat;
# here they are one text. The worked answers are ours; load(shots=FILE) takes other examples.
SHOTS = Path(__file__).parent / "gsm8k_shots.jsonl"


def load(
    *,
    data: Path | None = None,
    limit: int | None = None,
    shots: Path | None = None,
    split: str | None = None,
) -> list[Problem]:
    """Return the test split, from a local JSONL file (question, answer) or from the hub.

    shots: a JSONL file with the same fields; its examples precede each question.
    split: one half of the test split, tune or test (see `in_half`).
    """
    source = f"{HUB} on the hub" if data is None else str(data)
    rows = (
        hub_rows(HUB, config="main", split="test")
        if data is None
        else list(read_jsonl(data, ("question", "answer")))
    )
    examples = _examples(shots)
    problems: list[Problem] = []
    for index, (number, row) in enumerate(rows):
        question, answer = _pair(source, number, row)
        target = gold(answer)
        if target is None:
            raise ValueError(f"{source}, line {number}: the answer has no number after ####")
        if in_half(question, split):
            problems.append(Problem(f"gsm8k/{index}", examples + question, target))
    return first(problems, limit)


def _pair(source: Any, number: int, row: dict[str, Any]) -> tuple[str, str]:
    return text_field(source, number, row, "question"), text_field(source, number, row, "answer")


def gold(answer: str) -> float | None:
    """Return the value after ####, or None if there is none."""
    try:
        return float(answer.partition("####")[2].strip().replace(",", ""))
    except ValueError:
        return None


def _examples(path: Path | None) -> str:
    """Return the worked examples to put before a question, without the first "Question: ".

    `prompt` adds that one.
    """
    if path is None:
        return ""
    pairs = [_pair(path, number, row) for number, row in read_jsonl(path, ("question", "answer"))]
    return "".join(
        f"{question}\nLet's think step by step.\nAnswer: {answer}\n\nQuestion: "
        for question, answer in pairs
    )


def prompt(problem: Problem) -> str:
    return f"Question: {problem.prompt}\nLet's think step by step.\nAnswer:"


def score(problem: Problem, text: str) -> Score:
    return score_number(find_number(text), problem.target)


def paper_number(text: str) -> float | None:
    """Return the last number, by the authors' rule: only a decimal fraction may have a sign."""
    found = re.findall(r"[+-]?\d*\.\d+|\d+", text.replace(",", ""))
    return float(found[-1]) if found else None


def paper_score(problem: Problem, text: str) -> Score:
    return score_number(paper_number(text), problem.target)


def bare_prompt(problem: Problem) -> str:
    return problem.prompt


def marked_score(problem: Problem, text: str) -> Score:
    value = marked_number(text)
    if value is None:
        return Score(False, None, "no number after ####")
    return score_number(value, problem.target)


# For models that answer in bare equations: "48/2=24\n48+24=72\n#### 72".
EQUATIONS = {
    "prompt": bare_prompt,
    "score": marked_score,
    "read": partial(read_number, marked_number),
    "length": 64,
    "steps": 32,
}

TASK = Task(
    "gsm8k",
    load,
    prompt,
    score,
    length=256,
    read=partial(read_number, find_number),
    outside=True,
    protocols={
        "paper": {
            "load": partial(load, limit=PAPER_PROBLEMS),
            "score": paper_score,
            "read": partial(read_number, paper_number),
            "length": 64,
            "steps": 32,
        },
        "4-shot": {"load": partial(load, shots=SHOTS)},
        "llada": {"load": partial(load, shots=SHOTS), **llada(256, block=8)},
        "dream": dream(256),
        "d1": d1(256),
        "equations": EQUATIONS,
    },
)

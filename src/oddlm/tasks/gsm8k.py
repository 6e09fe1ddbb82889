"""GSM8K: grade-school word problems, scored by the final number (Cobbe et al. 2021,
arXiv:2110.14168).
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

from .base import Problem, Score, Task
from .hub import hub_rows
from .jsonl import first, in_half, read_jsonl, text_field
from .scoring import find_number, score_number

HUB = "openai/gsm8k"
PAPER_PROBLEMS = 200

# Four questions of GSM8K's training split (MIT licence, OpenAI): those of OpenCompass's 4-shot
# prompt, the harness LLaDA's own evaluation builds on, which gives them as turns of a chat where we
# give one text. The worked answers are ours; others go in by load(shots=FILE).
SHOTS = Path(__file__).parent / "gsm8k_shots.jsonl"


def load(
    *,
    data: Path | None = None,
    limit: int | None = None,
    shots: Path | None = None,
    split: str | None = None,
) -> list[Problem]:
    """The test split, from a local JSONL (question, answer) or from the hub; `shots`, a JSONL
    alike, goes before each.

    split: one half of it, tune or test (see `in_half`).
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
    """The value after ####."""
    try:
        return float(answer.partition("####")[2].strip().replace(",", ""))
    except ValueError:
        return None


def _examples(path: Path | None) -> str:
    """Worked examples, to stand before a question; the first "Question: " is the prompt's own."""
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
    """The authors' rule: the last number; a sign counts only before a decimal point's number."""
    found = re.findall(r"[+-]?\d*\.\d+|\d+", text.replace(",", ""))
    return float(found[-1]) if found else None


def paper_score(problem: Problem, text: str) -> Score:
    return score_number(paper_number(text), problem.target)


TASK = Task(
    "gsm8k",
    load,
    prompt,
    score,
    length=256,
    outside=True,
    protocols={
        "paper": {
            "load": partial(load, limit=PAPER_PROBLEMS),
            "score": paper_score,
            "length": 64,
            "steps": 32,
        },
        "4-shot": {"load": partial(load, shots=SHOTS)},
    },
)

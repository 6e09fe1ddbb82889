"""SVAMP: one-step word problems with a twist, scored by the final number.

(Patel et al. 2021, arXiv:2103.07191; MIT licence.)
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import gsm8k
from .base import Problem, Task
from .gsm8k import prompt, score
from .hub import hub_rows
from .jsonl import first, in_half, read_rows, text_field

HUB = "ChilleD/SVAMP"
PARTS = ("train", "test")  # 700 and 300 problems on the hub; the published file has no splits
FIELDS = ("ID", "Body", "Question", "Answer")


def load(
    *, data: Path | None = None, limit: int | None = None, split: str | None = None
) -> list[Problem]:
    """Return all 1,000 problems, from a local file or from the hub.

    data: SVAMP.json as published, or a JSONL file with the same fields.
    split: one half of the problems, tune or test (see `in_half`).

    The copy on the hub is expected to have the fields of the published file, in parquet or JSONL
    files per split. That layout is taken from its description and has not been tried.
    """
    source = f"{HUB} on the hub" if data is None else str(data)
    problems: dict[str, Problem] = {}
    for number, row in _hub_rows() if data is None else read_rows(data, FIELDS):
        name, question, target = _parts(source, number, row)
        if name in problems:
            raise ValueError(f"{source}, line {number}: ID {name!r} occurs twice")
        problems[name] = Problem(f"svamp/{name}", question, target)
    return first([one for one in problems.values() if in_half(one.prompt, split)], limit)


def _hub_rows() -> Iterator[tuple[int, dict[str, Any]]]:
    for part in PARTS:
        for number, row in hub_rows(HUB, config=None, split=part):
            if missing := [name for name in FIELDS if name not in row]:
                raise ValueError(
                    f"{HUB} on the hub, {part} {number}: missing: {', '.join(missing)}"
                )
            yield number, row


def _parts(source: Any, number: int, row: dict[str, Any]) -> tuple[str, str, float]:
    """Return the id, the whole question and the answer of a row."""
    name, body, question = (
        text_field(source, number, row, field).strip() for field in ("ID", "Body", "Question")
    )
    try:
        target = float(row["Answer"])
    except (TypeError, ValueError, OverflowError):
        target = math.nan
    if not math.isfinite(target):
        raise ValueError(f"{source}, line {number}: Answer {row['Answer']!r:.40} is not a number")
    stop = "" if not body or body.endswith((".", "!", "?", ",", ";", ":")) else "."
    return name, f"{body}{stop} {question}".strip(), target


TASK = Task(
    "svamp",
    load,
    prompt,
    score,
    length=256,
    read=gsm8k.TASK.read,
    outside=True,
    protocols={"equations": gsm8k.EQUATIONS},
)

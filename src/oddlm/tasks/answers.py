"""Answers in files: one JSON object per line, scored in parallel."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..sandbox import ScoringThreads
from .base import Problem, Score, Task
from .jsonl import read_jsonl, text_field


@dataclass(frozen=True, slots=True)
class Result:
    texts: int
    correct: int
    problems: int  # that have an answer
    solved: int


def score_file(
    task: Task, problems: Sequence[Problem], answers: Path, out: Path | None, workers: int
) -> Result:
    """Score lines {"id": problem, "text": answer}; `out` gets each with correct, answer and detail."""
    by_id = {problem.id: problem for problem in problems}
    rows = [
        (_problem(by_id, answers, number, row), row)
        for number, row in read_jsonl(answers, ("id", "text"))
    ]
    with ScoringThreads(workers) as pool:
        scores = list(
            _watched(pool.map(lambda pair: task.score(pair[0], pair[1]["text"]), rows), len(rows))
        )
    if out is not None:
        pairs = zip((row for _, row in rows), scores, strict=True)
        write_whole(
            out,
            "".join(json.dumps({**row, **asdict(score)}) + "\n" for row, score in pairs).encode(),
        )
    solved = {problem.id for (problem, _), s in zip(rows, scores, strict=True) if s.correct}
    return Result(
        len(rows),
        sum(s.correct for s in scores),
        len({problem.id for problem, _ in rows}),
        len(solved),
    )


def _problem(by_id: dict[str, Problem], path: Path, number: int, row: dict[str, Any]) -> Problem:
    name = text_field(path, number, row, "id")
    text_field(path, number, row, "text")
    if name not in by_id:
        some = ", ".join(list(by_id)[:3])
        raise ValueError(
            f"{path}, line {number}: there is no problem {name!r}; ids are like {some}"
        )
    return by_id[name]


def _watched(scores: Iterable[Score], total: int) -> Iterable[Score]:
    from rich.console import Console
    from rich.progress import track

    return track(
        scores,
        "scoring",
        total=total,
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )

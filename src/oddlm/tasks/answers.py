"""Score a file of answers, one JSON object per line, in parallel."""

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
    correct: int  # texts
    problems: int  # with at least one text
    solved: int  # problems with a correct text


def score_file(
    task: Task, problems: Sequence[Problem], answers: Path, out: Path | None, workers: int
) -> Result:
    """Score lines {"id": problem, "text": answer}.

    `out` gets every line with the fields correct, answer and detail added.
    """
    by_id = {problem.id: problem for problem in problems}
    entries = [
        (_problem(by_id, answers, number, record), record)
        for number, record in read_jsonl(answers, ("id", "text"))
    ]
    with ScoringThreads(workers) as pool:
        scored = pool.map(lambda entry: task.score(entry[0], entry[1]["text"]), entries)
        scores = list(_with_progress(scored, len(entries)))
    if out is not None:
        pairs = zip((record for _, record in entries), scores, strict=True)
        lines = [json.dumps({**record, **asdict(score)}) + "\n" for record, score in pairs]
        write_whole(out, "".join(lines).encode())
    solved = {problem.id for (problem, _), s in zip(entries, scores, strict=True) if s.correct}
    return Result(
        texts=len(entries),
        correct=sum(s.correct for s in scores),
        problems=len({problem.id for problem, _ in entries}),
        solved=len(solved),
    )


def _problem(by_id: dict[str, Problem], path: Path, number: int, record: dict[str, Any]) -> Problem:
    name = text_field(path, number, record, "id")
    text_field(path, number, record, "text")
    if name not in by_id:
        some = ", ".join(list(by_id)[:3])
        raise ValueError(
            f"{path}, line {number}: there is no problem {name!r}; ids are like {some}"
        )
    return by_id[name]


def _with_progress(scores: Iterable[Score], total: int) -> Iterable[Score]:
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

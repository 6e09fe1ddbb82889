"""What `draw.py` drew, scored and put into a store: each different answer to a problem is judged once, programs many to a
sandbox. Runs that the store holds already stay as they are.

    python recipes/mini/gather.py drawn/ --store runs
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from compare import check_verdicts, right_answers
from draw import problems_of

from oddlm.core.model import ModelInfo
from oddlm.core.step import Sample
from oddlm.ends import text_length
from oddlm.evaluate import Group, make_row, summary
from oddlm.generate import LM
from oddlm.params import RunSpec
from oddlm.store import Row, SampleRow, Store
from oddlm.tasks import Problem, Score, Task


@dataclass(frozen=True)
class Shard:
    """The runs of one file that share their problems."""

    meta: list[dict[str, Any]]
    texts: list[np.ndarray]  # by problem, [different sequences, length]
    which: np.ndarray  # [problems, runs, n]

    def key(self) -> str:
        spec = self.meta[0]["spec"]
        return json.dumps([spec[k] for k in ("task", "protocol", "split", "limit")])


def read_shards(folder: Path) -> Iterator[Shard]:
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            for number in range(sum(name.startswith("meta") for name in file)):
                ends = np.cumsum(file[f"counts{number}"])[:-1]
                meta = json.loads(file[f"meta{number}"].tobytes())
                yield Shard(meta, np.split(file[f"texts{number}"], ends), file[f"which{number}"])


@dataclass(frozen=True)
class Judged:
    """A judge who has seen everything."""

    task: Task
    known: dict[str, dict[str, Score]]

    def __call__(self, problem: Problem, texts: list[str]) -> list[Score]:
        return [self.known[problem.id][text] for text in texts]


class Outline:
    """As much of a model as texts need."""

    def __init__(self) -> None:
        from oddlm.models.mini import MiniTokenizer

        self.tokenizer = MiniTokenizer()
        self.end_ids = (self.tokenizer.eos_id, self.tokenizer.pad_id)
        self.info = ModelInfo(self.tokenizer.size, self.tokenizer.mask_id, self.end_ids)

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens[: text_length(tokens, self.end_ids)])


def verdicts(task: Task, problems: list[Problem], answers: list[list[str]], workers: int, check: int) -> list[dict[str, Score]]:
    """By problem, the score of each answer."""
    with ThreadPoolExecutor(workers) as pool:
        if not task.code:
            return [{text: task.score(problem, text) for text in own} for problem, own in zip(problems, answers, strict=True)]
        right = list(pool.map(partial(right_answers, task), problems, answers))
    check_verdicts(task, problems, answers, right, check)
    return [dict(zip(own, scores_of(problem, own, good), strict=True))
            for problem, own, good in zip(problems, answers, right, strict=True)]  # fmt: skip


def scores_of(problem: Problem, answers: list[str], right: set[str]) -> list[Score]:
    from oddlm.tasks.minicode.reading import read_answer

    read = [read_answer(text, problem.prompt) for text in answers]
    return [
        Score(text in right, found and found[0], "passes all checks" if text in right else "does not pass all checks")
        for text, found in zip(answers, read, strict=True)
    ]


def bare_row(spec: RunSpec, group: Group, judge: Judged) -> Row:
    """The verdicts alone: how much the samples differ takes ten times as long to say."""
    scores = judge(group.problem, [sample.text for sample in group.samples])
    rows = [
        SampleRow(index=s.index, text=s.text, length=len(s.tokens), finish_reason=s.finish_reason, correct=score.correct)
        for s, score in zip(group.samples, scores, strict=True)
    ]
    seed, nfe = spec.problem_seed(group.problem.id), group.samples[0].nfe
    return Row(
        problem=group.problem.id,
        prompt=group.prompt,
        seed=seed,
        nfe=nfe,
        seconds=group.seconds,
        score_seconds=0.0,
        diversity={},
        samples=tuple(rows),
    )


HAND: list[tuple[Any, ...]] = []  # what forked workers find instead of being sent it: verdicts take long to pickle


def store_runs(number: int, part: int, parts: int, folder: Path, bare: bool) -> int:
    """Write some runs of a shard whose answers are judged."""
    shard, texts, task, problems, judge = HAND[number]
    outline, store = Outline(), Store(folder)
    lm = LM(outline, outline.tokenizer)  # type: ignore[arg-type]
    runs = range(part, len(shard.meta), parts)
    for run in runs:
        about = shard.meta[run]
        spec = RunSpec.model_validate(about["spec"])
        if store.complete(spec):
            continue
        rows = []
        for p, problem in enumerate(problems):
            chosen = shard.which[p, run]
            samples = [
                Sample(0, i, texts[p][c], tuple(tokens), (), (), (), spec.problem_seed(problem.id),
                       "stop" if set(tokens) & set(outline.end_ids) else "length", about["nfe"])
                for i, (c, tokens) in enumerate(zip(chosen, shard.texts[p][chosen].tolist(), strict=True))
            ]  # fmt: skip
            group = Group(problem, task.prompt(problem), samples, about["seconds"] / len(problems))
            rows.append(bare_row(spec, group, judge) if bare else make_row(lm, spec, group, judge))
        with store.open(spec, len(problems)) as writer:
            writer.start(about["environment"])
            writer.append(*[row for row in rows if row.problem not in writer.rows])
            writer.finish(summary(spec, rows, scored=True))
    return len(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drawn", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bare", action="store_true", help="verdicts alone, no measures of diversity")
    parser.add_argument("--task", help="only the runs of this task")
    parser.add_argument("--check", type=int, default=100, help="answers that the task scores again, one by one")
    args = parser.parse_args()
    shards: dict[str, list[Shard]] = {}
    for shard in read_shards(args.drawn):
        if args.task in (None, shard.meta[0]["spec"]["task"]):
            shards.setdefault(shard.key(), []).append(shard)
    outline, began = Outline(), time.monotonic()
    for key, some in shards.items():
        task, problems = problems_of(RunSpec.model_validate(some[0].meta[0]["spec"]), run=True)
        texts = [[[outline.text(row) for row in own.tolist()] for own in shard.texts] for shard in some]
        answers = [sorted({text for own in texts for text in own[p]}) for p in range(len(problems))]
        print(f"{key}: {sum(map(len, answers))} different answers, {time.monotonic() - began:.0f} s", flush=True)
        known = verdicts(task, problems, answers, args.workers, args.check)
        print(f"{key}: judged, {time.monotonic() - began:.0f} s", flush=True)
        judge = Judged(task, {problem.id: own for problem, own in zip(problems, known, strict=True)})
        HAND[:] = [(shard, own, task, problems, judge) for shard, own in zip(some, texts, strict=True)]
        with ProcessPoolExecutor(args.workers, multiprocessing.get_context("fork")) as pool:
            jobs = [
                pool.submit(store_runs, number, part, args.workers, args.store, args.bare)
                for number in range(len(some))
                for part in range(args.workers)
            ]
            print(f"{key}: {sum(job.result() for job in jobs)} runs stored, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

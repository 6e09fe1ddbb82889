"""The two stages of a run: drawing, which needs the model, and scoring, which needs the task.

Neither stage writes anything. The same spec gives the same records, whichever command makes them.
Measures that need another run or an embedding model, such as novelty beside plain sampling, are
computed when they are shown (`report.compare`).
"""

import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import platform, python_version
from typing import Any, cast

from .. import __version__, metrics
from ..core.step import Sample, StepEvent
from ..lm import LM
from ..params import SampleParams
from ..spec import RunSpec
from ..store import Drawn, DrawnSample, Scored, Summary
from ..tasks import Problem, Score, Task, find_task, problem_digest
from ..text import text_length

MOST_VERDICTS = 1 << 18


def task_of(spec: RunSpec) -> Task | None:
    return (
        None if spec.task is None else find_task(spec.task, scorer=spec.scorer).under(spec.protocol)
    )


def prompt_of(task: Task | None, problem: Problem) -> str:
    """Return the prompt as the model gets it."""
    return problem.prompt if task is None else task.prompt(problem)


def draw(
    lm: LM,
    spec: RunSpec,
    task: Task | None,
    problems: Sequence[Problem],
    *,
    keep_tokens: bool = False,
    observe: Sequence[Callable[[StepEvent], None]] = (),
) -> list[Drawn]:
    """Draw the n samples of each problem. The problems share the batches of the network."""
    began = time.perf_counter()
    prompts = [prompt_of(task, problem) for problem in problems]
    seeds = [spec.problem_seed(problem.id) for problem in problems]
    # Several problems at once are meant to fit into one batch.
    together = spec.drawn * len(problems) if len(problems) > 1 else None
    templates = None
    if task is not None and task.template is not None:
        templates = [task.template(problem) for problem in problems]
    try:
        groups = lm.generate(
            prompts,
            spec.n,
            params=spec.params,
            seeds=seeds,
            progress=False,
            max_batch=lm.max_batch or together,
            templates=templates,
            observe=observe,
        )
    except ValueError as error:
        raise ValueError(f"problem {', '.join(p.id for p in problems)}: {error}") from error
    seconds = (time.perf_counter() - began) / len(problems)
    return [
        Drawn(
            problem=problem.id,
            digest=problem_digest(task, problem),
            prompt=prompt,
            seed=seed,
            nfe=-(-sum(sample.nfe for sample in samples) * spec.drawn // spec.n**2),
            seconds=seconds,
            samples=tuple(_drawn(sample, lm.info.end_ids, keep_tokens) for sample in samples),
        )
        for problem, prompt, seed, samples in zip(problems, prompts, seeds, groups, strict=True)
    ]


def _drawn(sample: Sample, end_ids: Iterable[int], keep_tokens: bool) -> DrawnSample:
    ends = frozenset(end_ids)
    length = text_length(sample.tokens, ends)
    return DrawnSample(
        index=sample.index,
        text=sample.text,
        length=length,
        size=len(sample.tokens),
        ends=sum(token in ends for token in sample.tokens),
        finish_reason=sample.finish_reason,
        nfe=sample.nfe,
        # more digits would differ between machines
        logprob=round(sum(sample.base_logprobs[:length]), 2),
        tokens=sample.tokens if keep_tokens else None,
        logprobs=sample.base_logprobs if keep_tokens else None,
    )


@dataclass(frozen=True)
class Judge:
    """Score the texts of a problem, several at a time, and equal texts only once."""

    task: Task
    pool: ThreadPoolExecutor
    known: dict[tuple[str, str], Score] = field(default_factory=dict)  # by problem and text

    def __call__(self, problem: Problem, texts: Sequence[str]) -> list[Score]:
        found = {text: self.known.get((problem.id, text)) for text in texts}
        fresh = [text for text, score in found.items() if score is None]
        scores = dict(
            zip(fresh, self.pool.map(partial(self.task.score, problem), fresh), strict=True)
        )
        if len(self.known) > MOST_VERDICTS:
            self.known.clear()
        self.known.update({(problem.id, text): score for text, score in scores.items()})
        return [scores[text] if text in scores else cast("Score", found[text]) for text in texts]


def score(judge: Judge | None, problem: Problem, drawn: Drawn) -> Scored:
    """Score the samples of a problem. Without a judge there are measures but no verdicts."""
    began = time.perf_counter()
    texts = [sample.text for sample in drawn.samples]
    scores = [None] * len(texts) if judge is None else judge(problem, texts)
    correct = [score is not None and score.correct for score in scores]
    answers = [None if score is None else score.answer for score in scores]
    code, parsed = judge is not None and judge.task.code, None if judge is None else answers
    read = None if judge is None else judge.task.read
    readings = parsed if read is None else [read(text) for text in texts]
    lengths = [metrics.Lengths(sample.length, sample.size, sample.ends) for sample in drawn.samples]
    diversity = metrics.batch_diversity(
        texts, lengths, correct, code=code, answers=parsed, readings=readings
    )
    return Scored(
        problem=drawn.problem,
        correct=tuple(None if score is None else score.correct for score in scores),
        solutions=tuple(metrics.right_classes(texts, correct, code=code, answers=parsed)),
        diversity=diversity,
        nfe=drawn.nfe,
        draw_seconds=drawn.seconds,
        seconds=time.perf_counter() - began,
        answers=tuple(answers),
        details=tuple(None if score is None else score.detail for score in scores),
    )


def summarise(spec: RunSpec, records: Sequence[Scored]) -> Summary:
    """Aggregate the scores of a run: Pass@k, mean diversity, and distinct solutions."""
    values = {
        name: [record.diversity.get(name) for record in records] for name in records[0].diversity
    }
    known = {name: [x for x in column if x is not None] for name, column in values.items()}
    means = {name: sum(column) / len(column) if column else None for name, column in known.items()}
    passed, ks = None, powers_of_two(spec.n)
    if spec.task is not None:
        verdicts = [[bool(verdict) for verdict in record.correct] for record in records]
        passed = metrics.summarise(verdicts, ks)
        classes = [record.solutions for record in records]
        means |= {f"solutions@{k}": float(metrics.solutions_at_k(classes, k).mean()) for k in ks}
    return Summary(
        id=spec.id,
        problems=len(records),
        samples=sum(len(record.correct) for record in records),
        seconds=sum(record.draw_seconds + record.seconds for record in records),
        passed=passed,
        diversity=means,
    )


def powers_of_two(n: int) -> list[int]:
    """Return 1, 2, 4, ... up to n, and n itself."""
    return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})


def environment() -> dict[str, Any]:
    """Describe the software and machine, as needed to reproduce a result."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform(),
        "python": python_version(),
        "versions": {
            "oddlm": __version__,
            **{name: _version(name) for name in ("torch", "numpy")},
        },
        "git": {
            "oddlm": _git(Path(__file__).parent, Path(__file__).name),
            "here": _git(Path.cwd()),
        },
    }


def drawing_environment(
    lm: LM, digest: str | None = None, params: SampleParams | None = None
) -> dict[str, Any]:
    """Describe the environment of a worker that draws.

    digest: of the model, if the model itself does not know it. params: of the run; they decide
    which backend computes it.
    """
    import torch

    device = lm.info.device
    weights = getattr(lm.model, "weights", None)
    return {
        **environment(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "backend": None if params is None else lm.backend(params).name,
        "model": lm.info.name,
        "model_digest": digest if weights is None else weights.digest,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path, tracked: str | None = None) -> dict[str, Any] | None:
    """Return commit and dirty flag of the repository that contains a folder.

    None if there is no repository, or if it does not track the file.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout.strip()

    try:
        if tracked:
            git("ls-files", "--error-unmatch", tracked)
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None

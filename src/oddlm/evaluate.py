"""One run: the problems of a task, n samples each, scored and stored as they come."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import platform, python_version
from typing import Any, TypeVar, cast

from . import metrics
from .core.step import Sample
from .ends import text_length
from .generate import LM, check_params
from .models import model_digest
from .params import RunSpec, SampleParams
from .sandbox import ScoringThreads
from .store import DamagedRunError, Row, SampleRow, Store, Summary, Writer
from .tasks import Problem, Score, Task

Watch = Callable[[Row, bool], None]
MOST_VERDICTS = 1 << 18
T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """What was drawn for one problem."""

    problem: Problem
    prompt: str  # as the model was shown it
    samples: Sequence[Sample]
    seconds: float


@dataclass(frozen=True)
class Judge:
    """The verdicts on a problem's texts, several at a time; the same text is scored once."""

    task: Task
    pool: ThreadPoolExecutor
    known: dict[tuple[str, str], Score] = field(default_factory=dict)  # by problem and text

    def __call__(self, problem: Problem, texts: Sequence[str]) -> list[Score]:
        found = {text: self.known.get((problem.id, text)) for text in texts}
        fresh = [text for text, score in found.items() if score is None]
        scores = dict(zip(fresh, self.pool.map(partial(self.task.score, problem), fresh), strict=True))
        if len(self.known) > MOST_VERDICTS:
            self.known.clear()
        self.known.update({(problem.id, text): score for text, score in scores.items()})
        return [scores[text] if text in scores else cast("Score", found[text]) for text in texts]


def draw(lm: LM, spec: RunSpec, task: Task | None, problems: Sequence[Problem]) -> list[Group]:
    """The n samples of each problem; several problems share the batches of the network."""
    began = time.perf_counter()
    prompts = [_shown(task, problem) for problem in problems]
    seeds = [spec.problem_seed(problem.id) for problem in problems]
    room = spec.drawn * len(problems) if len(problems) > 1 else None  # who asks for many problems has room for them
    rows = lm.max_batch or room
    try:
        forms = None if task is None or task.template is None else [task.template(problem) for problem in problems]
        samples = lm.generate(prompts, spec.n, params=spec.params, seeds=seeds, progress=False, max_batch=rows, templates=forms)
    except ValueError as error:
        raise ValueError(f"problem {', '.join(p.id for p in problems)}: {error}") from error
    seconds = (time.perf_counter() - began) / len(problems)
    return [Group(*each, seconds) for each in zip(problems, prompts, samples, strict=True)]


def make_row(lm: LM, spec: RunSpec, group: Group, judge: Judge | None, *, keep_tokens: bool = False) -> Row:
    """What is stored of one problem: its samples with their scores and how much they differ. judge None: no scores.

    Nothing else goes in: the same spec gives the same record, whichever command makes it. What takes another run or an
    embedding model to say is computed where it is shown (`compare`).
    """
    began = time.perf_counter()
    texts = [sample.text for sample in group.samples]
    scores = [None] * len(texts) if judge is None else judge(group.problem, texts)
    code = judge is not None and judge.task.code
    diversity = metrics.batch_diversity(
        texts,
        [sample.tokens for sample in group.samples],
        [score is not None and score.correct for score in scores],
        code=code,
        programs=[None if score is None else score.answer for score in scores] if code else None,
        end_ids=lm.info.end_ids,
    )
    return Row(
        problem=group.problem.id,
        prompt=group.prompt,
        seed=spec.problem_seed(group.problem.id),
        nfe=-(-group.samples[0].nfe * spec.drawn // spec.n),
        seconds=group.seconds,
        score_seconds=time.perf_counter() - began,
        diversity=diversity,
        samples=tuple(_sample_row(lm, *each, keep_tokens) for each in zip(group.samples, scores, strict=True)),
    )


def _sample_row(lm: LM, sample: Sample, score: Score | None, keep_tokens: bool) -> SampleRow:
    return SampleRow(
        index=sample.index,
        text=sample.text,
        length=text_length(sample.tokens, lm.info.end_ids),
        finish_reason=sample.finish_reason,
        tokens=sample.tokens if keep_tokens else None,
        correct=None if score is None else score.correct,
        answer=None if score is None else score.answer,
        detail=None if score is None else score.detail,
    )


@dataclass(frozen=True)
class Runner:
    """Runs in this process, one after the other. It changes no sample, save by rounding that depends on the size of a batch."""

    store: Store
    lm: Callable[[], LM]  # called when there is something left to draw
    workers: int = 2  # answers scored at a time
    together: int = 1  # problems denoised at a time
    keep_tokens: bool = False

    def run(
        self,
        spec: RunSpec,
        task: Task | None,
        problems: Sequence[Problem],
        watch: Watch = lambda *_: None,
    ) -> list[Row]:
        """All rows of the run, in the order of the problems; those that are stored are not made again.

        task None: the samples are not scored. watch: called with every row and whether it is new, stored ones first.
        """
        check_identified(spec)
        check_problems(task, problems)
        if not self.store.complete(spec):
            self.lm()  # a model that does not load leaves no run behind
        with self.store.open(spec, len(problems)) as run:
            check_stored(run, task, problems)
            for row in run.rows.values():
                watch(row, False)
            todo = [problem for problem in problems if problem.id not in run.rows]
            if todo:
                lm = self.lm()
                check_weights(lm, spec)
                run.start(environment(lm, spec.model_digest, spec.params))
                with ScoringThreads(self.workers) as pool:
                    judge = None if task is None else Judge(task, pool)
                    for some in in_parts(todo, self.together):
                        for group in draw(lm, spec, task, some):
                            row = make_row(lm, spec, group, judge, keep_tokens=self.keep_tokens)
                            run.append(row)
                            watch(row, True)
            rows = [run.rows[problem.id] for problem in problems]
            run.finish(summary(spec, rows, scored=task is not None))
            return rows


def in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def identified(spec: RunSpec) -> RunSpec:
    """The spec with the digest of its model as it is here and now; ValueError where there is no such model."""
    return spec.model_copy(update={"model_digest": model_digest(spec.model, revision=spec.loading.revision)})


def check_identified(spec: RunSpec) -> None:
    """A run is known by its weights: a spec that does not say which would find the rows of others."""
    if spec.model_digest is None:
        raise ValueError(
            f"the spec of model {spec.model!r} has no model_digest, so other weights would be the same run: "
            "use oddlm.evaluate.identified(spec)"
        )


def check_weights(lm: LM, spec: RunSpec) -> None:
    """Is this the model that the spec is about?"""
    weights = getattr(lm.model, "weights", None)
    if weights is not None and weights.digest != spec.model_digest:
        raise other_weights(spec, weights.digest)


def other_weights(spec: RunSpec, found: str) -> ValueError:
    return ValueError(
        f"model {spec.model!r} is {found} here, and the run {spec.id} is about {spec.model_digest}: "
        "put the same weights here, or begin another run with these"
    )


def check_spec(spec: RunSpec) -> None:
    """ValueError for names and values that sampling would refuse, before anything is loaded or run."""
    check_params(spec.params)
    spec.params.drawn(spec.n)  # refuses a pool that is too small


def check_problems(task: Task | None, problems: Sequence[Problem]) -> None:
    """Every id once, and nothing that a file cannot hold."""
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise ValueError(f"two problems have the id {problem.id!r}: every problem needs its own")
        try:
            (problem.id + _shown(task, problem)).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"problem {problem.id!r}: its id or prompt is not valid Unicode ({error.reason})") from None
        seen.add(problem.id)
    if not seen:
        raise ValueError("there are no problems to run")


def check_stored(run: Writer, task: Task | None, problems: Sequence[Problem]) -> None:
    """Do the rows of a run belong to these problems?"""
    prompts = {problem.id: _shown(task, problem) for problem in problems if problem.id in run.rows}
    for row in run.rows.values():
        if prompts.get(row.problem) != row.prompt:
            raise DamagedRunError(f"run {run.folder.name}: problem {row.problem!r} is not what it was; give another --store")


def _shown(task: Task | None, problem: Problem) -> str:
    return task.prompt(problem) if task else problem.prompt


def summary(spec: RunSpec, rows: Sequence[Row], *, scored: bool) -> Summary:
    values = {name: [row.diversity.get(name) for row in rows] for name in rows[0].diversity}
    known = {name: [x for x in column if x is not None] for name, column in values.items()}
    return Summary(
        id=spec.id,
        problems=len(rows),
        samples=sum(len(row.samples) for row in rows),
        seconds=sum(row.seconds + row.score_seconds for row in rows),
        passed=metrics.summarise([row.correct for row in rows], powers_of_two(spec.n)) if scored else None,
        diversity={name: sum(column) / len(column) if column else None for name, column in known.items()},
    )


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... and n itself."""
    return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})


def environment(lm: LM, digest: str | None = None, params: SampleParams | None = None) -> dict[str, Any]:
    """What someone needs to know to make the same numbers again. digest: of the model, where it does not know itself.
    params: of the run, for who computes it.
    """
    import torch

    device = lm.info.device
    weights = getattr(lm.model, "weights", None)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform(),
        "python": python_version(),
        "versions": {name: _version(name) for name in ("oddlm", "torch", "numpy")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "backend": None if params is None else lm.backend(params).name,
        "model": lm.info.name,
        "model_digest": digest if weights is None else weights.digest,
        "git": {"oddlm": _git(Path(__file__).parent, Path(__file__).name), "here": _git(Path.cwd())},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path, tracked: str | None = None) -> dict[str, Any] | None:
    """Commit and dirty flag of the repository around a folder; None without one, or where it does not track the file."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    try:
        if tracked:
            git("ls-files", "--error-unmatch", tracked)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None

"""One run: the problems of a task, n samples each, scored and stored as they come."""

import hashlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import platform, python_version
from typing import Any

from . import metrics
from .generate import LM, repulsion
from .params import RunSpec
from .policies import POLICIES
from .store import Row, SampleRow, Store, StoreError, Summary
from .tasks import Problem, Score, Task
from .types import Sample, identity

Watch = Callable[[Row, bool], None]
Embed = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Runner:
    """Where runs go and what they run with. It changes no sample, save by rounding that depends on the size of a batch."""

    store: Store
    lm: Callable[[], LM]  # called when there is something left to draw
    workers: int = 2  # answers scored at a time
    together: int = 1  # problems denoised at a time
    keep_tokens: bool = False
    embed: Embed | None = None

    def run(
        self,
        spec: RunSpec,
        task: Task | None,
        problems: Sequence[Problem],
        watch: Watch = lambda *_: None,
        plain: Mapping[str, Sequence[str]] | None = None,
    ) -> list[Row]:
        """All rows of the run, in the order of the problems; those that are stored are not made again.

        task None: the samples are not scored. watch: called with every row and whether it is new, stored ones first.
        plain: by problem, what plain sampling wrote, for what is new beside it.
        """
        pairs = [(problem.id, task.prompt(problem) if task else problem.prompt) for problem in problems]
        check_problems(pairs)
        prompts = dict(pairs)
        if not self.store.complete(spec):
            self.lm()  # a model that does not load leaves no run behind
        with self.store.open(spec, len(problems)) as run:
            for row in run.rows.values():
                if prompts.get(row.problem) != row.prompt:
                    raise StoreError(f"run {spec.id}: problem {row.problem!r} is not what it was; give another --store")
                watch(row, False)
            todo = [problem for problem in problems if problem.id not in run.rows]
            if todo:
                lm = self.lm()
                run.start(environment(lm))
                with ThreadPoolExecutor(self.workers) as pool:
                    for first in range(0, len(todo), self.together):
                        some = todo[first : first + self.together]
                        for row in self._rows(lm, spec, task, some, prompts, plain or {}, pool):
                            run.append(row)
                            watch(row, True)
            rows = [run.rows[problem.id] for problem in problems]
            run.finish(summary(spec, rows, scored=task is not None))
            return rows

    def _rows(
        self,
        lm: LM,
        spec: RunSpec,
        task: Task | None,
        problems: Sequence[Problem],
        prompts: dict[str, str],
        plain: Mapping[str, Sequence[str]],
        pool: ThreadPoolExecutor,
    ) -> Iterator[Row]:
        began = time.perf_counter()
        texts, seeds = [prompts[p.id] for p in problems], [spec.problem_seed(p.id) for p in problems]
        try:
            groups = lm.generate(texts, spec.n, params=spec.params, seeds=seeds, progress=False)
        except ValueError as error:
            raise ValueError(f"problem {', '.join(p.id for p in problems)}: {error}") from error
        seconds = (time.perf_counter() - began) / len(problems)
        for problem, samples in zip(problems, groups, strict=True):
            score = None if task is None else partial(task.score, problem)
            code, before = task is not None and task.code, plain.get(problem.id)
            name, prompt = problem.id, prompts[problem.id]
            yield self.row(lm, spec, name, prompt, samples, seconds, score, pool, code=code, plain=before)

    def row(
        self,
        lm: LM,
        spec: RunSpec,
        problem: str,
        prompt: str,
        samples: Sequence[Sample],
        seconds: float,
        score: Callable[[str], Score] | None,
        pool: ThreadPoolExecutor,
        *,
        code: bool = False,
        plain: Sequence[str] | None = None,
    ) -> Row:
        """What is stored of one problem: its samples with their scores and how much they differ."""
        began = time.perf_counter()
        texts = [sample.text for sample in samples]
        scores = [None] * len(texts) if score is None else list(pool.map(score, texts))
        lengths = [_length(lm, sample) for sample in samples]
        return Row(
            problem=problem,
            prompt=prompt,
            seed=spec.problem_seed(problem),
            nfe=samples[0].nfe,
            seconds=seconds,
            score_seconds=time.perf_counter() - began,
            diversity=metrics.batch_diversity(
                texts,
                [sample.tokens for sample in samples],
                [score is not None and score.correct for score in scores],
                code=code,
                programs=[None if score is None else score.answer for score in scores] if code else None,
                end_ids=lm.model.protected_ids,
                plain=plain,
                embed=self.embed,
            ),
            samples=tuple(map(self._sample, samples, lengths, scores)),
        )

    def _sample(self, sample: Sample, length: int, score: Score | None) -> SampleRow:
        return SampleRow(
            index=sample.index,
            text=sample.text,
            length=length,
            finish_reason=sample.finish_reason,
            tokens=sample.tokens if self.keep_tokens else None,
            correct=None if score is None else score.correct,
            answer=None if score is None else score.answer,
            detail=None if score is None else score.detail,
        )


def check_spec(spec: RunSpec) -> None:
    """ValueError for names and values that sampling would refuse, before anything is loaded or run."""
    repulsion(spec.params)
    POLICIES.build(spec.params.policy)


def check_problems(prompts: Sequence[tuple[str, str]]) -> None:
    """(id, prompt) pairs: every id once, and nothing that a file cannot hold."""
    seen: set[str] = set()
    for name, prompt in prompts:
        if name in seen:
            raise ValueError(f"two problems have the id {name!r}: every problem needs its own")
        try:
            (name + prompt).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"problem {name!r}: its id or prompt is not valid Unicode ({error.reason})") from None
        seen.add(name)
    if not seen:
        raise ValueError("there are no problems to run")


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


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def environment(lm: LM) -> dict[str, Any]:
    """What someone needs to know to make the same numbers again."""
    import torch

    device = torch.device(getattr(lm.model, "device", "cpu"))
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform(),
        "python": python_version(),
        "versions": {name: _version(name) for name in ("oddlm", "torch", "numpy")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "model": identity(lm.model),
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


def _length(lm: LM, sample: Sample) -> int:
    """Tokens before the end token."""
    return next((i for i, token in enumerate(sample.tokens) if token in lm.model.protected_ids), len(sample.tokens))

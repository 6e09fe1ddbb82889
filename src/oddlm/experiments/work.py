"""The work of a worker: it takes batches of units and returns outcomes.

A unit is the n samples of one (problem, setting, seed).
"""

import inspect
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, Protocol
from uuid import uuid4

from ..core.step import StepEvent
from ..lm import LM, load
from ..models import find_model, model_digest
from ..models.loading.weights import COMMIT
from ..sandbox import ScoringThreads
from ..spec import RunSpec
from ..store import Drawn, Failure, Scored, Stage
from ..tasks import Problem, Task
from .stages import Judge, draw, drawing_environment, environment, score, task_of

# Batches that a worker holds, so that it can score while it draws and never waits for the driver.
AHEAD: dict[Stage, int] = {"score": 1, "draw": 2}
MOST_DEATHS = 3


@dataclass(frozen=True)
class Batch:
    """Units of one run to be drawn or scored together."""

    spec: RunSpec
    problems: tuple[Problem, ...]
    drawn: tuple[Drawn, ...] | None = None  # the samples to score; None: they are to be drawn

    @property
    def stage(self) -> Stage:
        return "draw" if self.drawn is None else "score"

    def alone(self) -> "list[Batch]":
        """Return one batch per problem."""
        if self.drawn is None:
            return [replace(self, problems=(problem,)) for problem in self.problems]
        return [
            replace(self, problems=(problem,), drawn=(drawn,))
            for problem, drawn in zip(self.problems, self.drawn, strict=True)
        ]


@dataclass(frozen=True)
class Outcome:
    """The result of a batch: a record or a failure for each of its problems."""

    spec: RunSpec
    records: tuple[Drawn, ...] | tuple[Scored, ...] = ()
    failures: tuple[Failure, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    worker: str = ""  # id of the bench
    drew_s: float = 0.0  # seconds of drawing, without loading the model


Take = Callable[[Stage], Batch | None]  # returns the next batch of a stage, None if none is ready


class Executor(Protocol):
    """Runs batches.

    An executor keeps its models and processes for the next plan, until it is closed.
    """

    def outcomes(self, take: Take) -> Generator[Outcome]:
        """Yield an outcome for every batch or part of a batch as it is done.

        A batch is taken when a worker is free for it. The generator ends when no batch is running
        and `take` returns None for both stages; an outcome may lead to new batches.

        Raises ValueError if nothing can be run because a model or task does not load, or because
        no worker stays alive.
        """

    def close(self) -> None: ...


@dataclass(frozen=True)
class Options:
    """How workers run. These options change no sample, except by rounding."""

    device: str | None = None  # for models that take one; None: the model's default
    max_batch: int | None = None  # samples per network call; None: see `stages.draw`
    compiled: str | None = None  # for models that take it; see `oddlm.load`
    scorers: int = 2  # answers scored at a time
    keep_tokens: bool = False
    # called after every step; only if the worker is this process
    observe: tuple[Callable[[StepEvent], None], ...] = ()


@dataclass
class Bench:
    """The state of one worker: its loaded model, its tasks and the verdicts so far.

    Threads may share it: one draws while the others score.
    """

    options: Options
    id: str = field(default_factory=lambda: uuid4().hex)
    _drawing: Lock = field(default_factory=Lock)
    _loaded: tuple[Any, LM, dict[str, Any]] | None = None
    _judges: dict[Any, Judge | None] = field(default_factory=dict)

    @cached_property
    def _pool(self) -> ScoringThreads:
        return ScoringThreads(self.options.scorers)

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return environment()

    def close(self) -> None:
        """Stop scoring and kill the running sandboxes. Using the bench again starts new ones."""
        self._pool.stop()
        del self._pool
        self._judges.clear()

    def run(self, batch: Batch) -> Outcome:
        """Draw or score a batch. Every executor calls this function.

        Raises ValueError if the model or the task is not available here.
        """
        return self._draw(batch) if batch.drawn is None else self._score(batch, batch.drawn)

    def lm(self, spec: RunSpec) -> LM:
        """Return the model of a spec, loading it if necessary."""
        with self._drawing:
            return self._lm(spec)[0]

    def _draw(self, batch: Batch) -> Outcome:
        with self._drawing:
            task = task_of(batch.spec)
            lm, about = self._lm(batch.spec)
            began = time.perf_counter()
            records, failures = self._drawn(lm, batch.spec, task, batch.problems)
            took = time.perf_counter() - began
        return Outcome(batch.spec, tuple(records), tuple(failures), about, self.id, took)

    def _drawn(
        self, lm: LM, spec: RunSpec, task: Task | None, problems: Sequence[Problem]
    ) -> tuple[list[Drawn], list[Failure]]:
        """Draw all problems together. If that fails, draw each alone, so that only one fails."""
        keep, observe = self.options.keep_tokens, self.options.observe
        try:
            return draw(lm, spec, task, problems, keep_tokens=keep, observe=observe), []
        except Exception as error:
            if len(problems) == 1:
                return [], [failure("draw", problems[0], error)]
        alone = [self._drawn(lm, spec, task, [problem]) for problem in problems]
        all_records = [record for records, _ in alone for record in records]
        return all_records, [failed for _, failures in alone for failed in failures]

    def _score(self, batch: Batch, drawn: Sequence[Drawn]) -> Outcome:
        judge = self._judge(batch.spec)
        records: list[Scored] = []
        failures: list[Failure] = []
        for problem, own in zip(batch.problems, drawn, strict=True):
            try:
                records.append(score(judge, problem, own))
            except Exception as error:
                failures.append(failure("score", problem, error))
        return Outcome(batch.spec, tuple(records), tuple(failures), self._environment)

    def _lm(self, spec: RunSpec) -> tuple[LM, dict[str, Any]]:
        """Return the model and its environment. Only one model is kept in memory."""
        key = (spec.model, spec.loading, spec.model_digest)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # frees its memory before the next model is loaded
            try:
                options = {"max_batch": self.options.max_batch, **self._placement(spec.model)}
                loading = as_identified(spec)
                found = model_digest(spec.model, revision=loading.get("revision"))
                if found != spec.model_digest:
                    raise other_weights(spec, found)
                lm = load(spec.model, **{**options, **loading})
                weights = getattr(lm.model, "weights", None)
                # They may have changed while they were being read.
                if weights is not None and weights.digest != spec.model_digest:
                    raise other_weights(spec, weights.digest)
            except Exception as error:
                known = isinstance(error, ValueError)
                about = "" if known else f"model {spec.model!r} does not load: "
                raise ValueError(f"{about}{error}") from error
            self._loaded = (key, lm, drawing_environment(lm, spec.model_digest))
        _, lm, described = self._loaded
        return lm, {**described, "backend": lm.backend(spec.params).name}

    def _placement(self, model: str) -> dict[str, str]:
        """Return the options that change no sample, as far as the model takes them."""
        known = inspect.signature(find_model(model)).parameters
        given = {"device": self.options.device, "compiled": self.options.compiled}
        return {name: value for name, value in given.items() if value is not None and name in known}

    def _judge(self, spec: RunSpec) -> Judge | None:
        key = source(spec)
        if key not in self._judges:
            task = task_of(spec)
            self._judges[key] = None if task is None else Judge(task, self._pool)
        return self._judges[key]


def as_identified(spec: RunSpec) -> dict[str, Any]:
    """Return the options of `load`, with the spec's commit in place of a branch, which may move."""
    digest = spec.model_digest or ""
    commit = {"revision": digest.removeprefix(COMMIT)} if digest.startswith(COMMIT) else {}
    return {**spec.loading.options(), **commit}


def other_weights(spec: RunSpec, found: str) -> ValueError:
    return ValueError(
        f"model {spec.model!r} has digest {found} here, but run {spec.id} uses "
        f"{spec.model_digest}: provide the same weights, or start a new run with these"
    )


def source(spec: RunSpec) -> str:
    """Return a key of what determines the problems: runs with the same source share them."""
    return spec.model_dump_json(
        exclude={"model", "model_digest", "loading", "n", "params", "seed", "sampler_version"}
    )


def failure(stage: Stage, problem: Problem, error: BaseException) -> Failure:
    line = (str(error).strip().splitlines() or [""])[0]
    story = "".join(traceback.format_exception(error))
    return Failure(
        problem=problem.id, stage=stage, error=f"{type(error).__name__}: {line}", traceback=story
    )


@dataclass(frozen=True)
class Job:
    batch: Batch
    deaths: int = 0  # number of workers that died while holding it


@dataclass(kw_only=True)
class Holder:
    """A worker as the driver sees it: its jobs, oldest first, and when the oldest began."""

    jobs: dict[Any, Job] = field(default_factory=dict)  # by the key of their answer
    _since: float = 0.0  # when the oldest job became the oldest

    def hold(self, key: Any, job: Job) -> None:
        if not self.jobs:
            self._since = time.monotonic()
        self.jobs[key] = job

    def answered(self, key: Any) -> None:
        if key == next(iter(self.jobs)):
            self._since = time.monotonic()
        del self.jobs[key]

    def left(self, timeout_s: float) -> float:
        """Return the seconds until its oldest job is overdue; later jobs wait for that one."""
        return max(0.0, self._since + timeout_s - time.monotonic())

    def overdue(self, timeout_s: float | None) -> str | None:
        """Return a message if its oldest job is overdue."""
        late = timeout_s is not None and self.jobs and not self.left(timeout_s)
        return f"no answer within {timeout_s:g} s" if late else None


def soonest(busy: Iterable[Holder], timeout_s: float | None) -> float | None:
    """Return the seconds until the first of these is overdue; None: never."""
    return None if timeout_s is None else min(holder.left(timeout_s) for holder in busy)


class Jobs:
    """The batches to do.

    If a worker dies, the problems of its batches are retried one by one, each alone on a worker. A
    problem is given up after MOST_DEATHS deaths.
    """

    def __init__(self, take: Take) -> None:
        self._fresh = take
        self._again: deque[Job] = deque()
        self._deaths_in_a_row = 0

    def take(self, held: Iterable[Job]) -> Job | None:
        """Return a job for a worker that holds these jobs; None: nothing for now."""
        held = list(held)
        if self._again:
            return None if held else self._again.popleft()
        if any(job.deaths for job in held):
            return None
        for stage, most in AHEAD.items():
            holds = sum(job.batch.stage == stage for job in held)
            if holds < most and (batch := self._fresh(stage)) is not None:
                return Job(batch)
        return None

    def done(self) -> None:
        self._deaths_in_a_row = 0

    def died(self, held: Iterable[Job], why: str, workers: int) -> Iterator[Outcome]:
        """Retry the jobs of a dead worker, or give them up.

        Raises ValueError if workers keep dying without any result in between.
        """
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS * (workers + 1):
            raise ValueError(
                f"the workers die before they have done anything ({why}); "
                "finished problems are kept"
            )
        for job in held:
            if job.deaths + 1 < MOST_DEATHS:
                self._again.extend(Job(batch, job.deaths + 1) for batch in job.batch.alone())
                continue
            reason = RuntimeError(f"its worker died {MOST_DEATHS} times: {why}")
            given_up = [failure(job.batch.stage, problem, reason) for problem in job.batch.problems]
            yield Outcome(job.batch.spec, failures=tuple(given_up))

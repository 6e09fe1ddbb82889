"""What a worker does: batches of units in, outcomes out.

A unit is one (problem, setting, seed) group of n samples.
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

from ..core.step import StepEvent
from ..lm import LM, load
from ..models import find_model, model_digest
from ..models.loading.weights import COMMIT
from ..sandbox import ScoringThreads
from ..spec import RunSpec
from ..store import Drawn, Failure, Scored, Stage
from ..tasks import Problem, Task
from .stages import Judge, draw, drawing_environment, environment, score, task_of

AHEAD: dict[Stage, int] = {
    "score": 1,
    "draw": 2,
}  # batches that a worker holds: it scores while it draws, and waits for neither
MOST_DEATHS = 3


@dataclass(frozen=True)
class Batch:
    """Units of one run that are drawn together, or that were."""

    spec: RunSpec
    problems: tuple[Problem, ...]
    drawn: tuple[Drawn, ...] | None = None  # to be scored; None: to be drawn

    @property
    def stage(self) -> Stage:
        return "draw" if self.drawn is None else "score"

    def alone(self) -> "list[Batch]":
        """A batch for every problem."""
        drawn = (
            [None] * len(self.problems) if self.drawn is None else [(one,) for one in self.drawn]
        )
        return [
            replace(self, problems=(problem,), drawn=own)
            for problem, own in zip(self.problems, drawn, strict=True)
        ]


@dataclass(frozen=True)
class Outcome:
    """What became of a batch: a record or a failure for each of its problems."""

    spec: RunSpec
    records: tuple[Drawn, ...] | tuple[Scored, ...] = ()
    failures: tuple[Failure, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)


Take = Callable[[Stage], Batch | None]  # the next batch of a stage; None: none for now


class Executor(Protocol):
    """Where batches are run.

    What it holds (models, processes) stays until it is closed, for the next plan.
    """

    def outcomes(self, take: Take) -> Generator[Outcome]:
        """One for every batch or part of it, as they are done; batches are taken when there is a
        worker for them. It ends when nothing is in work and `take` has nothing of either stage: an
        outcome may bring new batches.

        ValueError: nothing can be run, because a model or task does not load or no worker stays
        alive.
        """

    def close(self) -> None: ...


@dataclass(frozen=True)
class Options:
    """How workers work; changes no sample, save by rounding."""

    device: str | None = None  # for models that have a choice; None leaves it to them
    max_batch: int | None = None  # samples that the network sees at a time; None: see `stages.draw`
    compiled: str | None = None  # for models that can be; see `oddlm.load`
    scorers: int = 2  # answers scored at a time
    keep_tokens: bool = False
    observe: tuple[
        Callable[[StepEvent], None], ...
    ] = ()  # of every step, where the worker is this process


@dataclass
class Bench:
    """The models, tasks and verdicts of one worker, resident.

    Threads may share it: one draws while the others score.
    """

    options: Options
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
        """No more verdicts: the sandboxes in work are killed.

        Whoever asks for another one begins anew.
        """
        self._pool.stop()
        del self._pool
        self._judges.clear()

    def run(self, batch: Batch) -> Outcome:
        """The one function behind every executor.

        ValueError: the model or the task cannot be had here.
        """
        return self._draw(batch) if batch.drawn is None else self._score(batch, batch.drawn)

    def lm(self, spec: RunSpec) -> LM:
        with self._drawing:
            return self._lm(spec)[0]

    def _draw(self, batch: Batch) -> Outcome:
        with self._drawing:
            task = task_of(batch.spec)
            lm, about = self._lm(batch.spec)
            records, failures = self._drawn(lm, batch.spec, task, batch.problems)
        return Outcome(batch.spec, tuple(records), tuple(failures), about)

    def _drawn(
        self, lm: LM, spec: RunSpec, task: Task | None, problems: Sequence[Problem]
    ) -> tuple[list[Drawn], list[Failure]]:
        """All at once; where that fails, each alone, so that one problem does not take the others
        with it.
        """
        options = self.options
        try:
            return draw(
                lm, spec, task, problems, keep_tokens=options.keep_tokens, observe=options.observe
            ), []
        except Exception as error:
            if len(problems) == 1:
                return [], [failure("draw", problems[0], error)]
        alone = [self._drawn(lm, spec, task, [problem]) for problem in problems]
        return [record for records, _ in alone for record in records], [
            one for _, failures in alone for one in failures
        ]

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
        """The model and what is known of its surroundings; one model at a time is kept."""
        key = (spec.model, spec.loading, spec.model_digest)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # its memory first
            try:
                place = {"max_batch": self.options.max_batch, **self._place(spec.model)}
                loading = as_identified(spec)
                if (
                    found := model_digest(spec.model, revision=loading.get("revision"))
                ) != spec.model_digest:
                    raise other_weights(spec, found)
                lm = load(spec.model, **{**place, **loading})
                weights = getattr(lm.model, "weights", None)
                if (
                    weights is not None and weights.digest != spec.model_digest
                ):  # they changed while they were read
                    raise other_weights(spec, weights.digest)
            except Exception as error:
                message = (
                    str(error)
                    if isinstance(error, ValueError)
                    else f"model {spec.model!r} does not load: {error}"
                )
                raise ValueError(message) from error
            self._loaded = (key, lm, drawing_environment(lm, spec.model_digest))
        _, lm, around = self._loaded
        return lm, {**around, "backend": lm.backend(spec.params).name}

    def _place(self, model: str) -> dict[str, str]:
        """Options of the model that change no sample; nothing for one that has no choice, such as
        the toy.
        """
        known = inspect.signature(find_model(model)).parameters
        asked = {"device": self.options.device, "compiled": self.options.compiled}
        return {name: value for name, value in asked.items() if value is not None and name in known}

    def _judge(self, spec: RunSpec) -> Judge | None:
        key = source(spec)
        if key not in self._judges:
            task = task_of(spec)
            self._judges[key] = None if task is None else Judge(task, self._pool)
        return self._judges[key]


def as_identified(spec: RunSpec) -> dict[str, Any]:
    """Options of `load`; a branch of the hub may have moved on, so it is the commit that the spec
    is about.
    """
    digest = spec.model_digest or ""
    commit = {"revision": digest.removeprefix(COMMIT)} if digest.startswith(COMMIT) else {}
    return {**spec.loading.options(), **commit}


def other_weights(spec: RunSpec, found: str) -> ValueError:
    return ValueError(
        f"model {spec.model!r} is {found} here, and the run {spec.id} is about {spec.model_digest}: "
        "put the same weights here, or begin another run with these"
    )


def source(spec: RunSpec) -> str:
    """What problems depend on: runs with the same source have the same ones."""
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
    deaths: int = 0  # of workers that held it


@dataclass(kw_only=True)
class Holder:
    """A worker as the driver sees it: the jobs that it holds, the oldest first, and how long it has
    been at that one.
    """

    jobs: dict[Any, Job] = field(default_factory=dict)  # by what tells their answers apart
    _since: float = 0.0  # when the oldest became that

    def hold(self, key: Any, job: Job) -> None:
        if not self.jobs:
            self._since = time.monotonic()
        self.jobs[key] = job

    def answered(self, key: Any) -> None:
        if key == next(iter(self.jobs)):
            self._since = time.monotonic()
        del self.jobs[key]

    def left(self, timeout_s: float) -> float:
        """Seconds until its oldest job is overdue; those behind it have to wait for it."""
        return max(0.0, self._since + timeout_s - time.monotonic())

    def overdue(self, timeout_s: float | None) -> str | None:
        """How it hangs, if it does."""
        late = timeout_s is not None and self.jobs and not self.left(timeout_s)
        return f"no answer within {timeout_s:g} s" if late else None


def soonest(busy: Iterable[Holder], timeout_s: float | None) -> float | None:
    """Seconds until one of these is overdue; None: never."""
    return None if timeout_s is None else min(holder.left(timeout_s) for holder in busy)


class Jobs:
    """Batches to do. One whose worker died is tried again by problem, alone with its worker, and
    given up after some deaths.
    """

    def __init__(self, take: Take) -> None:
        self._fresh = take
        self._again: deque[Job] = deque()
        self._deaths_in_a_row = 0

    def take(self, held: Iterable[Job]) -> Job | None:
        """Something for a worker that holds these jobs; None: nothing more for now."""
        held = list(held)
        if self._again:
            return None if held else self._again.popleft()
        if any(job.deaths for job in held):
            return None
        for stage, most in AHEAD.items():
            if (
                sum(job.batch.stage == stage for job in held) < most
                and (batch := self._fresh(stage)) is not None
            ):
                return Job(batch)
        return None

    def done(self) -> None:
        self._deaths_in_a_row = 0

    def died(self, held: Iterable[Job], why: str, workers: int) -> Iterator[Outcome]:
        """A worker is dead: what it held is tried again, or given up.

        ValueError where workers do nothing but die.
        """
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS * (workers + 1):
            raise ValueError(
                f"the workers die before they have done anything ({why}); what was finished is kept"
            )
        for job in held:
            if job.deaths + 1 < MOST_DEATHS:
                self._again.extend(Job(batch, job.deaths + 1) for batch in job.batch.alone())
                continue
            reason = RuntimeError(f"its worker died {MOST_DEATHS} times: {why}")
            given_up = [failure(job.batch.stage, problem, reason) for problem in job.batch.problems]
            yield Outcome(job.batch.spec, failures=tuple(given_up))

"""What a worker does: batches of units in, outcomes out. A unit is one (problem, setting, seed) group of n samples."""

import inspect
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, Protocol

from ..evaluate import Group, Judge, draw, environment, make_row, other_weights
from ..generate import LM, load
from ..models import find_model, model_digest
from ..models.weights import COMMIT
from ..params import RunSpec
from ..sandbox import ScoringThreads
from ..store import Failure, Row
from ..tasks import Problem, Task, find_task

AHEAD = 2  # batches that a worker holds: one is scored while the next is drawn
MOST_DEATHS = 3


@dataclass(frozen=True)
class Batch:
    """Units of one run that share the batches of the network."""

    spec: RunSpec
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a batch: a row or a failure for each of its problems."""

    spec: RunSpec
    rows: tuple[Row, ...] = ()
    failures: tuple[Failure, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """Where batches are run."""

    def outcomes(self, batches: Iterator[Batch]) -> Generator[Outcome]:
        """One for every batch or part of it, as they are done; batches are taken when there is a worker for them.

        ValueError: nothing can be run, because a model or task does not load or no worker stays alive.
        """


@dataclass(frozen=True)
class Options:
    """How workers work; changes no sample."""

    device: str | None = None  # for models that have a choice; None leaves it to them
    max_batch: int | None = None  # samples that the network sees at a time; None: see `evaluate.draw`
    scorers: int = 2  # answers scored at a time
    keep_tokens: bool = False


@dataclass
class Bench:
    """The models, tasks and verdicts of one worker, resident. Threads may share it: one draws while the others score."""

    options: Options
    _drawing: Lock = field(default_factory=Lock)
    _loaded: tuple[Any, LM, dict[str, Any]] | None = None
    _judges: dict[Any, Judge] = field(default_factory=dict)

    @cached_property
    def _pool(self) -> ScoringThreads:
        return ScoringThreads(self.options.scorers)

    def close(self) -> None:
        """No more verdicts: the sandboxes in work are killed."""
        self._pool.stop()

    def run(self, batch: Batch) -> Outcome:
        """The one function behind every executor. ValueError: the model or the task cannot be had here."""
        with self._drawing:
            judge = self._judge(batch.spec)
            lm, about = self._lm(batch.spec)
            groups, failures = _drawn(lm, batch.spec, judge.task, batch.problems)
        rows: list[Row] = []
        for group in groups:
            try:
                rows.append(make_row(lm, batch.spec, group, judge, keep_tokens=self.options.keep_tokens))
            except Exception as error:
                failures.append(failure(group.problem, error))
        return Outcome(batch.spec, tuple(rows), tuple(failures), about)

    def _lm(self, spec: RunSpec) -> tuple[LM, dict[str, Any]]:
        """The model and what is known of its surroundings; one model at a time is kept."""
        key = (spec.model, spec.loading, spec.model_digest)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # its memory first
            try:
                place = {"max_batch": self.options.max_batch, **_place(spec.model, self.options.device)}
                loading = as_identified(spec)
                if (found := model_digest(spec.model, revision=loading.get("revision"))) != spec.model_digest:
                    raise other_weights(spec, found)
                lm = load(spec.model, **{**place, **loading})
            except Exception as error:
                message = str(error) if isinstance(error, ValueError) else f"model {spec.model!r} does not load: {error}"
                raise ValueError(message) from error
            self._loaded = (key, lm, environment(lm, spec.model_digest))
        _, lm, around = self._loaded
        return lm, {**around, "backend": lm.backend(spec.params).name}

    def _judge(self, spec: RunSpec) -> Judge:
        key = source(spec)
        if key not in self._judges:
            self._judges[key] = Judge(task_of(spec), self._pool)
        return self._judges[key]


def as_identified(spec: RunSpec) -> dict[str, Any]:
    """Options of `load`; a branch of the hub may have moved on, so it is the commit that the spec is about."""
    digest = spec.model_digest or ""
    commit = {"revision": digest.removeprefix(COMMIT)} if digest.startswith(COMMIT) else {}
    return {**spec.loading.options(), **commit}


def _place(model: str, device: str | None) -> dict[str, str]:
    """The device as an option of the model; nothing for one that has no choice, such as the toy."""
    parameters = inspect.signature(find_model(model)).parameters
    return {"device": device} if device is not None and "device" in parameters else {}


def task_of(spec: RunSpec) -> Task:
    if spec.task is None:
        raise ValueError("a run of a sweep needs a task")
    return find_task(spec.task, scorer=spec.scorer).under(spec.protocol)


def source(spec: RunSpec) -> str:
    """What problems depend on: runs with the same source have the same ones."""
    return spec.model_dump_json(exclude={"model", "model_digest", "loading", "n", "params", "seed"})


def failure(problem: Problem, error: BaseException) -> Failure:
    line = (str(error).strip().splitlines() or [""])[0]
    story = "".join(traceback.format_exception(error))
    return Failure(problem=problem.id, error=f"{type(error).__name__}: {line}", traceback=story)


def _drawn(lm: LM, spec: RunSpec, task: Task, problems: Sequence[Problem]) -> tuple[list[Group], list[Failure]]:
    """All at once; where that fails, each alone, so that one problem does not take the others with it."""
    try:
        return draw(lm, spec, task, problems), []
    except Exception as error:
        if len(problems) == 1:
            return [], [failure(problems[0], error)]
    alone = [_drawn(lm, spec, task, [problem]) for problem in problems]
    return [group for groups, _ in alone for group in groups], [one for _, failures in alone for one in failures]


@dataclass(frozen=True)
class Job:
    batch: Batch
    deaths: int = 0  # of workers that held it


@dataclass(kw_only=True)
class Holder:
    """A worker as the driver sees it: the jobs that it holds, the oldest first, and how long it has been at that one."""

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
    """Batches to do. One whose worker died is tried again by problem, alone with its worker, and given up after some deaths."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._fresh = batches
        self._again: deque[Job] = deque()
        self._deaths_in_a_row = 0

    def take(self, held: Iterable[Job]) -> Job | None:
        """Something for a worker that holds these jobs; None: nothing more for now."""
        held = list(held)
        if self._again:
            return None if held else self._again.popleft()
        if len(held) >= AHEAD or any(job.deaths for job in held):
            return None
        batch = next(self._fresh, None)
        return None if batch is None else Job(batch)

    def done(self) -> None:
        self._deaths_in_a_row = 0

    def died(self, held: Iterable[Job], why: str, workers: int) -> Iterator[Outcome]:
        """A worker is dead: what it held is tried again, or given up. ValueError where workers do nothing but die."""
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS * (workers + 1):
            raise ValueError(f"the workers die before they have done anything ({why}); what was finished is kept")
        for job in held:
            alone = [replace(job, batch=replace(job.batch, problems=(p,)), deaths=job.deaths + 1) for p in job.batch.problems]
            if job.deaths + 1 < MOST_DEATHS:
                self._again.extend(alone)
                continue
            given_up = [failure(p, RuntimeError(f"its worker died {MOST_DEATHS} times: {why}")) for p in job.batch.problems]
            yield Outcome(job.batch.spec, failures=tuple(given_up))

"""Running a plan: the driver hands batches to an executor, and stores and counts the outcomes."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..spec import RunSpec
from ..store import (
    FAILURES,
    DamagedRunError,
    Drawn,
    Failure,
    Network,
    Scored,
    Stage,
    Store,
    StoreError,
)
from ..tasks import Problem, problem_digest
from .busy import Window
from .identity import check_identified
from .open_run import OpenRun, open_run
from .plan import BOTH, Asked, Plan, check_problems
from .stages import task_of
from .trackers import Tracker, tracking
from .work import Batch, Executor, Outcome

MOST_WAITING = 1024  # drawn problems that may wait for scoring before drawing pauses
DONE: dict[Stage, str] = {"draw": "drawn", "score": "scored"}
T = TypeVar("T")


class Progress(NamedTuple):
    """Some problems of a run are done, or have failed."""

    spec: RunSpec
    problems: int
    fresh: bool  # made just now, as opposed to found in the store
    scores: Sequence[Scored] = ()
    failures: Sequence[Failure] = ()


Watch = Callable[[Progress], None]


class ProblemError(ValueError):
    """A problem could not be drawn or scored, and the plan was to stop there."""

    def __init__(self, folder: Path, failure: Failure) -> None:
        self.problem, self.stage = failure.problem, failure.stage
        super().__init__(
            f"problem {failure.problem} could not be {DONE[failure.stage]}: {failure.error}; "
            f"{folder / FAILURES} has the traceback, and finished problems are kept"
        )


@dataclass
class Result:
    """The result of running a plan."""

    done: list[str] = field(default_factory=list)  # ids of the complete runs
    undrawn: int = 0  # problems that could not be scored because they have not been drawn
    failures: list[tuple[RunSpec, Failure]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # why some runs could not be opened
    network: Network | None = None  # how busy it was; None: nothing was drawn

    @property
    def complete(self) -> int:
        return len(self.done)


def run_plan(
    plan: Plan,
    store: Store,
    executor: Executor,
    *,
    stages: Sequence[Stage] = BOTH,
    together: int = 1,
    fail_fast: bool = False,
    tracker: Tracker | None = None,
    watch: Watch = lambda _: None,
) -> Result:
    """Make the records that the store does not have yet.

    Workers make records. The driver alone writes them to the store, as they arrive, and passes
    them to the tracker. One batch is scored while the next is drawn. A plan may also be drawn only,
    and scored later or elsewhere (`stages`). A problem that fails is stored as a failure and
    retried by the next call.

    together: number of problems of a run that share the batches of the network; if the process is
    killed, they are lost together.
    fail_fast: raise ProblemError for the first problem that fails, after storing what is done.
    """
    checked: set[int] = set()
    for run in plan.runs:
        check_identified(run.spec)
        if id(run.problems) not in checked:
            check_problems(run)
            checked.add(id(run.problems))
    with ExitStack() as stack:
        if tracker is None:
            tracker = stack.enter_context(tracking((), store.folder))
        driver = _Driver(plan, store, tuple(stages), together, fail_fast, tracker, watch)
        stack.callback(driver.release)
        outcomes = stack.enter_context(closing(executor.outcomes(driver.take)))
        for outcome in outcomes:
            driver.add(outcome)
        if left := driver.left:
            raise ValueError(
                f"the executor ended with {left} of {plan.units} problems left; "
                "finished problems are kept"
            )
    driver.result.network = driver.window.network()
    return driver.result


@dataclass
class _Driver:
    plan: Plan
    store: Store
    stages: tuple[Stage, ...]
    together: int
    fail_fast: bool
    tracker: Tracker
    watch: Watch
    result: Result = field(default_factory=Result)
    window: Window = field(default_factory=Window)
    open: dict[str, OpenRun] = field(default_factory=dict)  # by id
    to_draw: deque[tuple[OpenRun, tuple[Problem, ...]]] = field(default_factory=deque)
    to_score: deque[tuple[OpenRun, tuple[Problem, ...]]] = field(default_factory=deque)
    _next: int = 0  # index of the run to open next
    _digests: dict[int, dict[str, str]] = field(default_factory=dict)  # by id() of the problems

    @property
    def left(self) -> int:
        """The number of problems that are neither done nor failed."""
        waiting = (run.problems for run in self.plan.runs[self._next :])
        return sum(len(run.left) for run in self.open.values()) + sum(map(len, waiting))

    def take(self, stage: Stage) -> Batch | None:
        """Return the next batch of a stage. Open the next run when nothing is left to draw."""
        queue = self.to_draw if stage == "draw" else self.to_score
        while not queue and not self.to_draw and self._next < len(self.plan.runs):
            self._next += 1
            self._begin(self.plan.runs[self._next - 1])
        waiting = sum(len(problems) for _, problems in self.to_score)
        if not queue or (stage == "draw" and waiting > MOST_WAITING):
            return None
        run, problems = queue.popleft()
        if stage == "draw":
            return Batch(run.asked.spec, problems)
        drawn = run.writer.drawn(problem.id for problem in problems)
        return Batch(run.asked.spec, problems, tuple(drawn))

    def add(self, outcome: Outcome) -> None:
        """Store an outcome, and queue what it has drawn for scoring."""
        run = self.open[outcome.spec.id]
        drawn = [record for record in outcome.records if isinstance(record, Drawn)]
        scores = [record for record in outcome.records if isinstance(record, Scored)]
        drew = drawn or any(failure.stage == "draw" for failure in outcome.failures)
        run.note_environment(outcome.environment, "draw" if drew else "score")
        if drew:
            self._drew(run, outcome)
        if drawn:
            run.writer.draw(*drawn)
            if "score" in self.stages:
                self.to_score.append((run, tuple(run.by_id[record.problem] for record in drawn)))
        if scores:
            run.writer.score(*scores)
        for failure in outcome.failures:
            run.writer.fail(failure)
            run.failed = True
            self.result.failures.append((run.asked.spec, failure))
        for record in scores:
            self.tracker.record(run.asked.spec, record)
        last = scores if "score" in self.stages else drawn
        failed = {failure.problem for failure in outcome.failures}
        ended = {record.problem for record in last} | failed
        run.left -= ended
        if ended:
            self.watch(Progress(run.asked.spec, len(ended), True, scores, outcome.failures))
        if not run.left:
            self._end(run)
        if self.fail_fast:
            for failure in outcome.failures:
                raise ProblemError(self.store.folder / run.asked.spec.id, failure)

    def release(self) -> None:
        for run in self.open.values():
            with suppress(StoreError):  # what ended the plan matters more
                run.note_network()
            run.closing.close()

    def _drew(self, run: OpenRun, outcome: Outcome) -> None:
        """Count a drawing in the windows of the plan and of all runs that are being drawn."""
        others = (one.window for one in self.open.values() if one is not run and one.window.open)
        for window in (self.window, run.window, *others):
            window.drew(outcome.worker, outcome.drew_s)

    def _begin(self, asked: Asked) -> None:
        spec = asked.spec
        try:
            run = open_run(self.store, asked, self._digests_of(asked), self.stages)
        except DamagedRunError as error:  # the other runs are not affected
            self.result.damaged.append(str(error))
            self.watch(Progress(spec, len(asked.problems), False))
            return
        writer, left = run.writer, run.left
        if "draw" not in self.stages:
            self.result.undrawn += len(run.by_id.keys() - writer.digests.keys())
        self.open[spec.id] = run
        if "score" in self.stages:
            self.tracker.start(spec, len(asked.problems))
        stored = [record for record in writer.scores() if record.problem in run.by_id]
        for record in stored:
            if "score" in self.stages:
                self.tracker.record(spec, record)
        if len(asked.problems) > len(left):
            self.watch(Progress(spec, len(asked.problems) - len(left), False, stored))
        remaining = [problem for problem in asked.problems if problem.id in left]
        undrawn = [problem for problem in remaining if problem.id not in writer.digests]
        if self.together > 1:  # prompts of a batch are padded to the longest
            undrawn.sort(key=lambda problem: len(problem.prompt))
        drawn = [problem for problem in remaining if problem.id in writer.digests]
        self.to_draw.extend((run, part) for part in _in_parts(undrawn, self.together))
        self.to_score.extend((run, part) for part in _in_parts(drawn, self.together))
        if not left:
            self._end(run)

    def _end(self, run: OpenRun) -> None:
        spec, summary = run.asked.spec, run.finish()
        if summary is not None and "score" in self.stages and not run.failed:
            self.tracker.finish(spec, summary)
        run.note_network()
        if run.complete:
            self.result.done.append(spec.id)
        del self.open[spec.id]
        run.closing.close()

    def _digests_of(self, asked: Asked) -> dict[str, str]:
        if (key := id(asked.problems)) not in self._digests:
            task = task_of(asked.spec)
            self._digests[key] = {
                problem.id: problem_digest(task, problem) for problem in asked.problems
            }
        return self._digests[key]


def _in_parts(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    return (tuple(items[first : first + size]) for first in range(0, len(items), size))

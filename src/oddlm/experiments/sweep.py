"""The driver of a sweep: it alone writes. Workers make rows, it puts them into the store and tells the tracker."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..evaluate import check_identified, check_problems, check_spec, check_stored, in_parts, summary
from ..models import check_model, model_digest
from ..params import RunSpec
from ..store import DamagedRunError, Failure, Store, Writer
from ..tasks import Problem
from ..trackers import Tracker, tracking
from .work import Batch, Executor, Outcome, source, task_of

Watch = Callable[[RunSpec, int, bool], None]  # the run, how many of its problems are behind us now, and whether just now


@dataclass(frozen=True)
class Plan:
    """Runs and their problems, all of it checked."""

    specs: tuple[RunSpec, ...]
    problems: Mapping[str, Sequence[Problem]]  # by source
    unknown: tuple[str, ...] = ()  # why models could not be looked at; their runs cannot be told from those of other weights

    def problems_of(self, spec: RunSpec) -> Sequence[Problem]:
        return self.problems[source(spec)]

    @property
    def units(self) -> int:
        return sum(len(self.problems_of(spec)) for spec in self.specs)

    @property
    def samples(self) -> int:
        return sum(spec.n * len(self.problems_of(spec)) for spec in self.specs)

    def survey(self, store: Store) -> "Survey":
        """What a store has of these runs already."""
        found = Survey()
        for spec in self.specs:
            try:
                found.done[spec.id], complete = store.done(spec), store.complete(spec)
                found.complete += complete
            except DamagedRunError as error:
                found.damaged.append(str(error))
        return found


@dataclass
class Survey:
    """How far runs are."""

    done: dict[str, int] = field(default_factory=dict)  # units, by run; those that cannot be read are not there
    complete: int = 0  # runs
    damaged: list[str] = field(default_factory=list)  # what is wrong with those

    @property
    def units(self) -> int:
        return sum(self.done.values())


@dataclass
class Result:
    """How a sweep ended."""

    complete: int = 0  # runs
    failures: list[tuple[RunSpec, Failure]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # what is wrong with the runs that could not be opened


@dataclass
class _Open:
    """A run that is being written."""

    spec: RunSpec
    writer: Writer
    closing: ExitStack
    left: int  # problems without an outcome
    failed: bool = False
    surroundings: list[dict[str, Any]] = field(default_factory=list)


def make_plan(specs: Sequence[RunSpec], *, unsafe: bool = False, only_look: bool = False) -> Plan:
    """Load every task once, say of every run which weights it is about, and refuse what could not be run.

    only_look: nothing will be run, so that models need not be within reach.
    """
    digests: dict[tuple[str, str | None], str | None] = {}
    unknown: list[str] = []
    for model, loading in dict.fromkeys((spec.model, spec.loading) for spec in specs):
        check_model(model, **{name: value for name, value in loading.options().items() if name != "raw"})  # the LM's own
        if (model, loading.revision) not in digests:
            digests[model, loading.revision] = None
            try:
                digests[model, loading.revision] = model_digest(model, revision=loading.revision)
            except ValueError as error:
                if not only_look:
                    raise
                unknown.append(str(error))
    known = (spec.model_copy(update={"model_digest": digests[spec.model, spec.loading.revision]}) for spec in specs)
    specs = tuple({spec.id: spec for spec in known}.values())  # two names of one model are one run
    problems: dict[str, Sequence[Problem]] = {}
    for spec in specs:
        check_spec(spec)
        if source(spec) in problems:
            continue
        task = task_of(spec)
        data = None if spec.data is None else Path(spec.data)
        found = task.problems(data=data, limit=spec.limit, exclude_train=spec.exclude_train, split=spec.split, unsafe=unsafe)
        check_problems(task, found)
        problems[source(spec)] = found
    return Plan(specs, problems, tuple(unknown))


def run_sweep(
    plan: Plan,
    store: Store,
    executor: Executor,
    *,
    together: int = 1,
    tracker: Tracker | None = None,
    watch: Watch = lambda *_: None,
) -> Result:
    """Run what the store does not have yet. What fails is stored as a failure, and tried again by the next sweep.

    together: problems of a run that share the batches of the network.
    """
    for spec in plan.specs:
        check_identified(spec)
    with ExitStack() as stack:
        told = stack.enter_context(tracking((), store.folder)) if tracker is None else tracker
        driver = _Driver(plan, store, together, told, watch)
        stack.callback(driver.release)
        outcomes = stack.enter_context(closing(executor.outcomes(driver.batches())))
        for outcome in outcomes:
            driver.take(outcome)
    return driver.result


@dataclass
class _Driver:
    plan: Plan
    store: Store
    together: int
    tracker: Tracker
    watch: Watch
    result: Result = field(default_factory=Result)
    open: dict[str, _Open] = field(default_factory=dict)  # by id

    def batches(self) -> Iterator[Batch]:
        """Of all runs, one after the other; a run is opened when the first of its batches is asked for."""
        for spec in self.plan.specs:
            problems = self.plan.problems_of(spec)
            try:
                run = None if self.store.complete(spec) else self._begin(spec, problems)
            except DamagedRunError as error:  # the others can be run
                self.result.damaged.append(str(error))
                self.watch(spec, len(problems), False)
                continue
            if run is None:
                self.result.complete += 1
                self.watch(spec, len(problems), False)
                continue
            todo = [problem for problem in problems if problem.id not in run.writer.rows]
            if not todo:
                self._end(run)
            for some in in_parts(todo, self.together):
                yield Batch(spec, tuple(some))

    def take(self, outcome: Outcome) -> None:
        run = self.open[outcome.spec.id]
        self._note(run, outcome.environment)
        if outcome.rows:
            run.writer.append(*outcome.rows)
        for failure in outcome.failures:
            run.writer.fail(failure)
            run.failed = True
            self.result.failures.append((run.spec, failure))
        for row in outcome.rows:
            self.tracker.row(run.spec, row)
        behind = len(outcome.rows) + len(outcome.failures)
        run.left -= behind
        self.watch(run.spec, behind, True)
        if not run.left:
            self._end(run)

    def release(self) -> None:
        for run in self.open.values():
            run.closing.close()

    def _begin(self, spec: RunSpec, problems: Sequence[Problem]) -> _Open:
        with ExitStack() as stack:
            writer = stack.enter_context(self.store.open(spec, len(problems)))
            check_stored(writer, task_of(spec), problems)
            writer.forgive()
            run = _Open(spec, writer, stack.pop_all(), len(problems) - len(writer.rows))
        self.open[spec.id] = run
        if writer.rows:
            self.watch(spec, len(writer.rows), False)
        self.tracker.start(spec, len(problems))
        for row in writer.rows.values():
            self.tracker.row(spec, row)
        return run

    def _end(self, run: _Open) -> None:
        if not run.failed:
            rows = [run.writer.rows[problem.id] for problem in self.plan.problems_of(run.spec)]
            told = summary(run.spec, rows, scored=True)
            run.writer.finish(told)
            self.result.complete += 1
            self.tracker.finish(run.spec, told)
        del self.open[run.spec.id]
        run.closing.close()

    def _note(self, run: _Open, environment: dict[str, Any]) -> None:
        """Once for every kind of worker that adds to the run."""
        surroundings = {key: value for key, value in environment.items() if key != "time"}
        if surroundings and surroundings not in run.surroundings:
            run.surroundings.append(surroundings)
            run.writer.start({"time": datetime.now(UTC).isoformat(timespec="seconds"), **surroundings})

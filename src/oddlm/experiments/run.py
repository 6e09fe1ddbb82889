"""Run a plan of (problem, setting, seed) units on an executor, and store the records.

    plan = make_plan([Wanted(spec, limit=50)])
    with closing(find_executor("local:workers=4", Options())) as executor:
        result = run_plan(plan, Store(Path("runs")), executor)

Workers make records. The driver alone writes them to the store, as they arrive, and passes them to
the tracker. One batch is scored while the next is drawn. A plan may also be drawn only, and scored
later or elsewhere (`stages`). Records that are already in the store are not made again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..drawing import check_params
from ..models import check_model, model_digest
from ..spec import RunSpec
from ..store import (
    DRAWN,
    FAILURES,
    SPEC,
    DamagedRunError,
    Drawn,
    Failure,
    Head,
    Network,
    Record,
    Scored,
    Stage,
    Store,
    StoreError,
    Writer,
)
from ..tasks import Problem, check_scoring, problem_digest, task_identity
from ..versions import SCORING
from .busy import Window
from .grid import Wanted
from .stages import prompt_of, summarise, task_of
from .trackers import Tracker, tracking
from .work import Batch, Executor, Outcome, source

BOTH: tuple[Stage, ...] = ("draw", "score")
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


@dataclass(frozen=True)
class Asked:
    """A run and the problems requested of it."""

    spec: RunSpec
    problems: tuple[Problem, ...]

    def records(self, store: Store) -> list[Record]:
        """Return the records of these problems that the store has, in the order of the problems."""
        found = {record.problem: record for record in store.records(self.spec.id)}
        return [found[problem.id] for problem in self.problems if problem.id in found]


@dataclass(frozen=True)
class Plan:
    """The runs to make."""

    runs: tuple[Asked, ...]
    # why some models have no digest; their runs are not told apart from those of other weights
    unknown: tuple[str, ...] = ()

    @property
    def units(self) -> int:
        return sum(len(run.problems) for run in self.runs)

    @property
    def samples(self) -> int:
        return sum(run.spec.n * len(run.problems) for run in self.runs)

    def survey(self, store: Store, stages: Sequence[Stage] = BOTH) -> "Survey":
        """Count the units that a store already has, scored if `stages` includes scoring."""
        found = Survey()
        for run in self.runs:
            try:
                if (store.folder / run.spec.id).exists():
                    head = store.exact_head(run.spec.id)
                    done = head.scored if "score" in stages else head.drawn
                    found.done[run.spec.id] = min(done, len(run.problems))
                    found.complete += done >= len(run.problems)
            except DamagedRunError as error:
                found.damaged.append(str(error))
        return found


@dataclass
class Survey:
    """The progress of some runs."""

    done: dict[str, int] = field(default_factory=dict)  # units by run, without damaged runs
    complete: int = 0  # runs
    damaged: list[str] = field(default_factory=list)  # messages

    @property
    def units(self) -> int:
        return sum(self.done.values())


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


def make_plan(
    wanted: Sequence[Wanted],
    *,
    unsafe: bool = False,
    only_look: bool = False,
    stages: Sequence[Stage] = BOTH,
) -> Plan:
    """Load the problems of the runs, and identify their models and data by their digests.

    only_look: a model that is not available is noted in `Plan.unknown` and not an error.
    """
    specs, unknown = _with_models([one.spec for one in wanted], only_look=only_look)
    sources: dict[str, tuple[dict[str, Any], list[Problem], int | None]] = {}
    parts: dict[tuple[str, int | None], tuple[Problem, ...]] = {}  # shared by runs
    runs: list[Asked] = []
    for spec, limit in zip(specs, (one.limit for one in wanted), strict=True):
        check_spec(spec)
        key = source(spec)
        if key not in sources or not _covers(sources[key][2], limit):
            sources[key] = (*_problems(spec, limit, unsafe=unsafe, scored="score" in stages), limit)
        identity, problems, _ = sources[key]
        runs.append(
            Asked(
                spec.model_copy(update=identity),
                parts.setdefault((key, limit), tuple(problems[:limit])),
            )
        )
    return Plan(merged(runs), unknown)


def merged(runs: Iterable[Asked]) -> tuple[Asked, ...]:
    """Merge runs with the same id, as two names of one model have; their problems are united."""
    found: dict[str, Asked] = {}
    for run in runs:
        known = found.setdefault(run.spec.id, run)
        together = {problem.id: problem for problem in (*known.problems, *run.problems)}
        if len(together) > len(known.problems):
            covers = len(together) == len(run.problems)
            found[run.spec.id] = run if covers else replace(run, problems=tuple(together.values()))
    return tuple(found.values())


def _covers(known: int | None, limit: int | None) -> bool:
    return known is None or (limit is not None and limit <= known)


def _with_models(
    specs: Sequence[RunSpec], *, only_look: bool
) -> tuple[list[RunSpec], tuple[str, ...]]:
    """Return the specs with the digests of their models, and why some digests are unknown."""
    digests: dict[Any, str | None] = {}
    unknown: list[str] = []
    for spec in specs:
        key = (spec.model, spec.loading.revision)
        if spec.model_digest is not None or key in digests:
            continue
        digests[key] = None
        check_model(spec.model, **spec.loading.options())
        try:
            digests[key] = model_digest(spec.model, revision=spec.loading.revision)
        except ValueError as error:
            if not only_look:
                raise
            unknown.append(str(error))
    found = [
        spec.model_copy(
            update={"model_digest": spec.model_digest or digests[spec.model, spec.loading.revision]}
        )
        for spec in specs
    ]
    return found, tuple(unknown)


def _problems(
    spec: RunSpec, limit: int | None, *, unsafe: bool, scored: bool
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the fields that identify the task in a spec, and the problems."""
    task = task_of(spec)
    if task is None or spec.task is None:
        raise ValueError("a run without a task has no problems: construct its Plan directly")
    if scored:
        check_scoring(task, unsafe=unsafe)
    data = None if spec.data is None else Path(spec.data)
    options = {
        "data": data,
        "exclude_train": spec.exclude_train,
        "split": spec.split,
        "unsafe": unsafe,
    }
    problems = task.problems(limit=limit, **options)
    return task_identity(spec.task, task, data, spec.split), problems


def identified(spec: RunSpec) -> RunSpec:
    """Return the spec with the current digests and versions of its model, data and task.

    Raises ValueError if there is no such model or task.
    """
    task = task_of(spec)
    identity: dict[str, Any] = {"scorer_version": str(SCORING)}  # without a task: of the measures
    if task is not None and spec.task is not None:
        data = None if spec.data is None else Path(spec.data)
        identity = task_identity(spec.task, task, data, spec.split)
    digest = model_digest(spec.model, revision=spec.loading.revision)
    return spec.model_copy(update={"model_digest": digest, **identity})


def drawn_problems(head: Head, *, data: Path | None = None, unsafe: bool = False) -> Asked:
    """Return the drawn problems of a run, to be scored by the current scorer.

    Raises ValueError if the task or its data have changed since.
    """
    spec, task = head.spec, task_of(head.spec)
    if head.imported:
        raise ValueError(f"run {head.id} was imported: it has no samples to score")
    if task is None:
        raise ValueError(
            f"run {head.id} has no task to score it by: "
            "`oddlm score TASK --in FILE` scores answers from anywhere"
        )
    check_scoring(task, unsafe=unsafe)
    given = data or (None if spec.data is None else Path(spec.data))
    now = task_identity(str(spec.task), task, given, spec.split)
    for name in ("data_digest", "task_version"):
        here, then = (str(value or "none")[:12] for value in (now[name], getattr(spec, name)))
        if now[name] != getattr(spec, name):
            raise DamagedRunError(
                f"{head.folder / SPEC}: the {name.replace('_', ' ')} of task {spec.task} is {here} "
                f"here but was {then} when the run was drawn, so its samples do not answer the "
                "current problems; name the original problems with --data FILE"
            )
    options = {
        "data": given,
        "exclude_train": spec.exclude_train,
        "split": spec.split,
        "unsafe": unsafe,
    }
    known = {problem.id: problem for problem in task.problems(**options)}
    drawn = Store(head.folder.parent).digests(head.id)
    if not drawn:
        raise DamagedRunError(f"{head.folder / DRAWN} has no samples, so there is nothing to score")
    for problem, digest in drawn.items():
        if problem not in known or problem_digest(task, known[problem]) != digest:
            what = "has changed" if problem in known else "does not exist"
            raise DamagedRunError(
                f"{head.folder / DRAWN}: problem {problem!r} of task {spec.task} {what}; "
                "nothing was scored"
            )
    return Asked(
        spec.model_copy(update={"scorer_version": now["scorer_version"]}),
        tuple(known[problem] for problem in drawn),
    )


def check_identified(spec: RunSpec) -> None:
    """Raise ValueError for a spec without digests: it would find the records of other weights."""
    for name in ("model_digest", "scorer_version"):
        if getattr(spec, name) is None:
            raise ValueError(
                f"the spec of model {spec.model!r} has no {name}, so runs with other weights or "
                "scorers would have the same id: use oddlm.experiments.run.identified(spec)"
            )


def check_spec(spec: RunSpec) -> None:
    """Raise ValueError for names and values that sampling would refuse, before loading anything."""
    check_params(spec.params)
    spec.params.drawn(spec.n)  # refuses a pool that is too small


def check_problems(run: Asked) -> None:
    """Raise ValueError for duplicate ids, and for text that cannot be stored."""
    task, seen = task_of(run.spec), set[str]()
    for problem in run.problems:
        if problem.id in seen:
            raise ValueError(f"two problems have the id {problem.id!r}: ids must be unique")
        try:
            (problem.id + prompt_of(task, problem)).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"problem {problem.id!r}: its id or prompt is not valid Unicode ({error.reason})"
            ) from None
        seen.add(problem.id)
    if not seen:
        raise ValueError("there are no problems to run")


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

    A problem that fails is stored as a failure and retried by the next call.

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
class _Open:
    """A run that is being written."""

    asked: Asked
    writer: Writer
    closing: ExitStack
    left: set[str]  # ids of the problems that are neither done nor failed
    by_id: dict[str, Problem]
    failed: bool = False
    environments: list[dict[str, Any]] = field(default_factory=list)  # logged so far
    window: Window = field(default_factory=Window)


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
    open: dict[str, _Open] = field(default_factory=dict)  # by id
    to_draw: deque[tuple[_Open, tuple[Problem, ...]]] = field(default_factory=deque)
    to_score: deque[tuple[_Open, tuple[Problem, ...]]] = field(default_factory=deque)
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
        self._note(run, outcome.environment, "draw" if drew else "score")
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
                self._note_network(run)
            run.closing.close()

    def _drew(self, run: _Open, outcome: Outcome) -> None:
        """Count a drawing in the windows of the plan and of all runs that are being drawn."""
        others = (one.window for one in self.open.values() if one is not run and one.window.open)
        for window in (self.window, run.window, *others):
            window.drew(outcome.worker, outcome.drew_s)

    def _note_network(self, run: _Open) -> None:
        if (network := run.window.network()) is not None:
            run.writer.busy(network)

    def _begin(self, asked: Asked) -> None:
        spec = asked.spec
        try:
            with ExitStack() as stack:
                writer = stack.enter_context(
                    self.store.open(spec, len(asked.problems), self._digests_of(asked))
                )
                writer.clear_failures(self.stages)
                closing = stack.pop_all()
        except DamagedRunError as error:  # the other runs are not affected
            self.result.damaged.append(str(error))
            self.watch(Progress(spec, len(asked.problems), False))
            return
        have = writer.scored if "score" in self.stages else writer.digests
        possible = [p for p in asked.problems if "draw" in self.stages or p.id in writer.digests]
        self.result.undrawn += len(asked.problems) - len(possible)
        left = {problem.id for problem in possible if problem.id not in have}
        by_id = {problem.id: problem for problem in asked.problems}
        run = _Open(asked, writer, closing, left, by_id)
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

    def _end(self, run: _Open) -> None:
        spec, writer = run.asked.spec, run.writer
        if writer.scored and writer.scored == writer.digests.keys():
            summary = writer.summary
            if summary is None or summary.problems < len(writer.scored):
                # sorted, because the rounding of sums depends on the order
                scores = sorted(writer.scores(), key=lambda record: record.problem)
                summary = summarise(spec, scores)
                writer.finish(summary)
            if "score" in self.stages and not run.failed:
                self.tracker.finish(spec, summary)
        have = writer.scored if "score" in self.stages else writer.digests
        self._note_network(run)
        if run.by_id.keys() <= set(have):
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

    def _note(self, run: _Open, environment: dict[str, Any], stage: Stage) -> None:
        """Log the environment of a worker, once for every kind of worker that adds to the run."""
        timeless = {key: value for key, value in environment.items() if key != "time"}
        entry = {"stage": stage, **timeless}
        if environment and entry not in run.environments:
            run.environments.append(entry)
            run.writer.start({"time": datetime.now(UTC).isoformat(timespec="seconds"), **entry})


def _in_parts(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    return (tuple(items[first : first + size]) for first in range(0, len(items), size))

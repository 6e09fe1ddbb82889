"""The plan: which problems are requested of which runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..drawing import check_params
from ..spec import RunSpec
from ..store import DRAWN, SPEC, DamagedRunError, Head, Record, Stage, Store
from ..tasks import Problem, check_scoring, problem_digest, task_identity
from .grid import Wanted
from .identity import with_models
from .stages import prompt_of, task_of
from .work import source

BOTH: tuple[Stage, ...] = ("draw", "score")


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
    specs, unknown = with_models([one.spec for one in wanted], only_look=only_look)
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

"""Runs made where the test is, by the driver that every command uses."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from oddlm.experiments.executors.inline import InlineExecutor
from oddlm.experiments.grid import read_grid
from oddlm.experiments.plan import Asked, Plan, make_plan
from oddlm.experiments.run import Result, run_plan
from oddlm.experiments.stages import task_of
from oddlm.experiments.work import Options
from oddlm.spec import RunSpec
from oddlm.store import Record, Store
from oddlm.tasks import Problem

TIMES = {"seconds", "score_seconds", "draw_seconds"}


def asked(
    spec: RunSpec, problems: Sequence[Problem] | None = None, *, limit: int | None = None
) -> Asked:
    task = task_of(spec)
    found = problems if problems is not None else task.problems(limit=limit, split=spec.split)
    return Asked(spec, tuple(found))


def carry_out(
    plan: Plan, store: Store | Path, *, options: Options | None = None, **more: Any
) -> Result:
    with closing(InlineExecutor(options or Options())) as executor:
        return run_plan(plan, store if isinstance(store, Store) else Store(store), executor, **more)


def run(
    store: Store | Path,
    spec: RunSpec,
    problems: Sequence[Problem] | None = None,
    *,
    limit: int | None = None,
    **more: Any,
) -> list[Record]:
    """Return the records of a run in the order of its problems; ValueError if any is damaged."""
    one = asked(spec, problems, limit=limit)
    result = carry_out(Plan((one,)), store, **more)
    for _, failure in result.failures:
        raise ValueError(failure.error)
    for message in result.damaged:
        raise ValueError(message)
    return one.records(store if isinstance(store, Store) else Store(store))


def sweep_inline(grid: Path, store: Path, **more: Any) -> Result:
    return carry_out(make_plan(read_grid(grid)), store, **more)


def content(records: Sequence[Record]) -> list[dict]:
    """All but how long it took."""
    return [record.model_dump(exclude=TIMES) for record in records]


def stored(store: Path) -> dict[str, dict[str, dict]]:
    """By run and problem, all but how long it took; a record that is there twice is an error of
    `read`.
    """
    found = Store(store)
    return {
        name: {one["problem"]: one for one in content(found.read(name).records)}
        for name in found.ids()
    }


def drawn(store: Path) -> int:
    """Whole lines of all runs."""
    return sum(path.read_bytes().count(b"\n") for path in store.glob("*/drawn.jsonl"))


def scored(store: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in store.glob("*/scores.jsonl"))

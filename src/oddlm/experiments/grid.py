"""Grids of runs: TOML files in which a list means "each of these". Does not import torch.

    model = "mini"           # or {name = ..., quantize = "nf4"}, with the fields of Loading
    n = 16
    seed = [0, 1, 2]
    task = [{name = "countdown", limit = 200, params = {length = 24, eos = "late"}}, "minicode"]
    [params]                 # the fields of SampleParams
    temperature = [0, 1]
    [[grid]]                 # the file is the union of its grids; each inherits what is above
    params = {objective = "odd", alpha = [0, 8]}
    [[grid]]
    params = {fork = true, alpha = 0}

Lists may appear anywhere, also in tables: `feature = {name = "max_pool", top_k = [8, 64]}`. The
params of a task override those of the grid. Equivalent runs are one run: for example, alpha 0 is
plain sampling for every objective.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..config import Seed, checked, read_toml
from ..params import SampleParams
from ..spec import Loading, RunSpec
from ..tasks import Task, find_task

MOST_RUNS = 100_000


class Wanted(NamedTuple):
    """A run on its first `limit` problems; None: on all of them."""

    spec: RunSpec
    limit: int | None = None


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelTable(Loading):
    name: str


class TaskTable(_Table):
    name: str
    protocol: str | None = None
    scorer: str | None = None
    exclude_train: bool = False
    split: str | None = None
    data: str | None = None
    limit: int | None = Field(None, ge=1)
    params: SampleParams = Field(default_factory=lambda: SampleParams.model_validate({}))


class Point(_Table):
    """One point of a grid, before the task's defaults are applied."""

    model: ModelTable
    task: TaskTable
    n: int = Field(16, ge=1)
    seed: Seed = 0
    limit: int | None = Field(None, ge=1)
    params: SampleParams = Field(default_factory=lambda: SampleParams.model_validate({}))

    @model_validator(mode="after")
    def _own_seed(self) -> Self:
        if "seed" in self.params.model_fields_set | self.task.params.model_fields_set:
            raise ValueError("seed belongs beside params, not in it")
        return self


def read_grid(path: Path, data: Mapping[str, Path] | None = None) -> list[Wanted]:
    """Return the runs of a file, each once.

    data: by task, a file to read its problems from, which overrides the grid.
    """
    return expand(read_toml(path), str(path), data or {})


def expand(content: Mapping[str, Any], where: str, data: Mapping[str, Path]) -> list[Wanted]:
    shared = {key: value for key, value in content.items() if key != "grid"}
    grids = content.get("grid", [{}] if shared else [])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ValueError(f"{where}: grid must be a list of tables, [[grid]]")
    if not grids:
        raise ValueError(
            f"{where} holds no runs: it needs keys of a grid ({', '.join(Point.model_fields)}) "
            "or [[grid]] tables"
        )
    found: dict[str, Wanted] = {}
    tasks: set[str] = set()
    for number, grid in enumerate(grids, start=1):
        place = f"{where}, grid {number}" if len(grids) > 1 else where
        try:
            for variant in variants(_named({**shared, **grid, "params": _merged(shared, grid)})):
                point = checked(Point, variant)
                tasks.add(point.task.name)
                spec = _spec(point, variant, data.get(point.task.name))
                limit = point.task.limit or point.limit
                if (known := found.get(spec.id)) is not None and limit is not None:
                    limit = None if known.limit is None else max(limit, known.limit)
                found[spec.id] = Wanted(spec, limit)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    for name in sorted(data.keys() - tasks):
        raise ValueError(
            f"{where} has no task {name!r} to read from {data[name]}; "
            f"its tasks: {', '.join(sorted(tasks))}"
        )
    return list(found.values())


def variants(value: Any) -> list[Any]:
    """Return all combinations that a value with lists in it stands for."""
    if isinstance(value, list):
        if not value:
            raise ValueError("an empty list leaves nothing to run")
        return [variant for item in value for variant in variants(item)]
    if isinstance(value, dict):
        columns = [
            [(key, variant) for variant in _variants_of(key, inner)] for key, inner in value.items()
        ]
        if (count := prod(map(len, columns))) > MOST_RUNS:
            raise ValueError(f"the lists make {count} combinations; a grid has at most {MOST_RUNS}")
        return [dict(pairs) for pairs in product(*columns)]
    return [value]


def shard(runs: Sequence[Wanted], part: int, parts: int) -> list[Wanted]:
    """Return every `parts`-th run, starting with the `part`-th (from 1).

    The parts are disjoint and differ in size by at most one run.
    """
    if part > len(runs):
        raise ValueError(f"part {part} of {parts} is empty: the grid has {len(runs)} runs")
    return list(runs[part - 1 :: parts])


def _variants_of(key: str, value: Any) -> list[Any]:
    try:
        return variants(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _merged(shared: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    both = [table.get("params", {}) for table in (shared, grid)]
    for table in both:
        if not isinstance(table, dict):
            raise ValueError(f"params must be a table, not {table!r}")
    return {**both[0], **both[1]}


def _named(grid: dict[str, Any]) -> dict[str, Any]:
    """Expand `task = "countdown"` to `task = {name = "countdown"}`, and likewise for `model`."""

    def table(value: Any) -> Any:
        if isinstance(value, list):
            return [table(item) for item in value]
        return {"name": value} if isinstance(value, str) else value

    return {key: table(value) if key in ("model", "task") else value for key, value in grid.items()}


def _spec(point: Point, variant: Mapping[str, Any], data: Path | None) -> RunSpec:
    table = point.task
    task = find_task(table.name, scorer=table.scorer).under(table.protocol)
    given = data or (Path(table.data) if table.data else None)
    return checked(
        RunSpec,
        {
            "model": point.model.name,
            "loading": point.model.model_dump(exclude={"name"}),
            "task": table.name,
            "protocol": table.protocol,
            "scorer": table.scorer,
            "exclude_train": table.exclude_train,
            "split": table.split,
            "data": None if given is None else str(given),
            "n": point.n,
            "seed": point.seed,
            "params": _params(variant, task).canonical(),
        },
    )


def _params(variant: Mapping[str, Any], task: Task) -> SampleParams:
    """Merge the tables as written in the file, before presets are expanded.

    The fields that a preset or objective sets must not override those that another table names.
    """
    own = variant["task"].get("params", {})
    return checked(SampleParams, {**task.defaults, **variant["params"], **own})

"""Files of runs: a TOML table whose lists mean "each of these". Imports no torch.

    model = "mini"                                   # or {name = ..., quantize = "nf4"}: the fields
    of Loading n = 16
    seed = [0, 1, 2]
    task = [{name = "countdown", limit = 200, params = {length = 24, eos = "late"}}, "minicode"]
    [params]                                         # the fields of SampleParams
    temperature = [0, 1]
    [[grid]]                                         # the file is the union of its grids; each
    takes over what stands above params = {objective = "odd", alpha = [0, 8]}
    [[grid]]
    params = {fork = true, alpha = 0}

Lists stand anywhere, in tables too: `feature = {name = "max_pool", top_k = [8, 64]}`. A setting
that a task has of its own goes before that of the grid. Runs that come to the same are one run;
alpha 0 of every objective is plain sampling.
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
    """The first so many problems of a run; None is all."""

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
    """One point of a grid, before the task's defaults."""

    model: ModelTable
    task: TaskTable
    n: int = Field(16, ge=1)
    seed: Seed = 0
    limit: int | None = Field(None, ge=1)
    params: SampleParams = Field(default_factory=lambda: SampleParams.model_validate({}))

    @model_validator(mode="after")
    def _own_seed(self) -> Self:
        if "seed" in self.params.model_fields_set | self.task.params.model_fields_set:
            raise ValueError("seed stands beside params, not in it")
        return self


def read_grid(path: Path, data: Mapping[str, Path] | None = None) -> list[Wanted]:
    """The runs of a file, each once. data: by task, the file to read its problems from, in place of
    what the grid says.
    """
    return expand(read_toml(path), str(path), data or {})


def expand(content: Mapping[str, Any], where: str, data: Mapping[str, Path]) -> list[Wanted]:
    shared = {key: value for key, value in content.items() if key != "grid"}
    grids = content.get("grid", [{}] if shared else [])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ValueError(f"{where}: grid is a list of tables, [[grid]]")
    if not grids:
        raise ValueError(
            f"{where} holds no runs: it needs keys of a grid ({', '.join(Point.model_fields)}) or [[grid]] tables"
        )
    found: dict[str, Wanted] = {}
    asked: set[str] = set()
    for number, grid in enumerate(grids, start=1):
        place = f"{where}, grid {number}" if len(grids) > 1 else where
        try:
            for variant in variants(_named({**shared, **grid, "params": _merged(shared, grid)})):
                point = checked(Point, variant)
                asked.add(point.task.name)
                spec, limit = (
                    _spec(point, variant, data.get(point.task.name)),
                    point.task.limit or point.limit,
                )
                if (known := found.get(spec.id)) is not None and limit is not None:
                    limit = None if known.limit is None else max(limit, known.limit)
                found[spec.id] = Wanted(spec, limit)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    for name in sorted(data.keys() - asked):
        raise ValueError(
            f"{where} has no task {name!r} to read from {data[name]}; its tasks: {', '.join(sorted(asked))}"
        )
    return list(found.values())


def variants(value: Any) -> list[Any]:
    """Everything that a value with lists in it stands for."""
    if isinstance(value, list):
        if not value:
            raise ValueError("an empty list leaves nothing to run")
        return [variant for one in value for variant in variants(one)]
    if isinstance(value, dict):
        columns = [
            [(key, variant) for variant in _variants_of(key, own)] for key, own in value.items()
        ]
        if (count := prod(map(len, columns))) > MOST_RUNS:
            raise ValueError(
                f"the lists stand for {count} combinations; a grid has at most {MOST_RUNS}"
            )
        return [dict(pairs) for pairs in product(*columns)]
    return [value]


def shard(runs: Sequence[Wanted], part: int, parts: int) -> list[Wanted]:
    """Every parts-th run, beginning with the part-th: the parts are disjoint and nearly alike in
    size.
    """
    if part > len(runs):
        raise ValueError(
            f"there is nothing in part {part} of {parts}: the grid has {len(runs)} runs"
        )
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
            raise ValueError(f"params is a table, not {table!r}")
    return {**both[0], **both[1]}


def _named(grid: dict[str, Any]) -> dict[str, Any]:
    """`task = "countdown"` is `task = {name = "countdown"}`."""

    def table(value: Any) -> Any:
        if isinstance(value, list):
            return [table(one) for one in value]
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
    """As they stand in the file: what a preset or the objective brings must not hide what another
    table says.
    """
    of_task = {"length": task.length} | ({"steps": task.steps} if task.steps else {})
    return checked(
        SampleParams, {**of_task, **variant["params"], **variant["task"].get("params", {})}
    )

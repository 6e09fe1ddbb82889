"""Stored runs for the page at `/runs`: read-only, and read again when the store changes."""

import asyncio
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query
from pydantic import BaseModel, Field

from ..report.cells import Benchmark, Cell, Estimate, read_results
from ..store import DRAWN, SCORES, SUMMARY, Head, Place, Record, Store, StoreError
from .errors import ApiError

MOST_RUNS = 1000  # listed, the newest first
MOST_INDEXES = 8  # runs whose problems are kept in memory
NO_STORE = "this server has no store: start it with `oddlm serve --store DIR` to show runs"


class RunCard(BaseModel):
    """A run in the list of runs."""

    id: str
    model: str | None = None
    task: str | None = None
    objective: str | None = None
    method: str | None = None  # the objective with its options, and the fork, as in tables
    alpha: float | None = None
    temperature: float | None = None
    n: int | None = None
    seed: int | None = None
    problems: int | None = None  # in the complete run
    done: int | None = None
    complete: bool = False
    passed: dict[str, float | None] | None = None  # Pass@k, if the samples are scored
    voted: float | None = None  # Maj@n, if the samples are scored
    began: str | None = None
    damage: str | None = None  # why it cannot be read


class Share(BaseModel):
    k: int
    mean: float
    low: float | None
    high: float | None


class CellCard(BaseModel):
    """A setting and all its runs."""

    label: str
    plain: bool
    runs: list[str]
    passed: list[Share]
    voted: list[Share] = Field(description="Maj@k; empty for runs without votes.")


class BenchmarkCard(BaseModel):
    """One model on one set of problems."""

    name: str
    model: str
    problems: int
    cells: list[CellCard]


class RunList(BaseModel):
    total: int
    data: list[RunCard] = Field(description="Newest first.")


class Curves(BaseModel):
    data: list[BenchmarkCard]
    left_out: dict[str, str] = Field(description="Runs without a Pass@k, and why.")


class StoredProblem(BaseModel):
    id: str
    right: int | None = Field(description="Correct samples; null if they are not scored.")
    n: int


class StoredProblems(BaseModel):
    total: int
    data: list[StoredProblem]


@dataclass(frozen=True)
class _Line:
    place: Place
    problem: StoredProblem


class RunDesk:
    """Reads the store for requests. Its methods block, so call them in a thread."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._computing, self._reading = threading.Lock(), threading.Lock()
        self._curves: tuple[Any, Curves] | None = None
        self._indexes: OrderedDict[tuple[str, int, int], list[_Line]] = OrderedDict()

    def runs(self) -> RunList:
        ids = self.store.ids()
        return RunList(
            total=len(ids), data=[self._card(name) for name in reversed(ids[-MOST_RUNS:])]
        )

    def curves(self) -> Curves:
        """Return Pass@k of all settings; recomputed only after the store has changed."""
        with self._computing:
            state = [(name, self._changed(name, SUMMARY)) for name in self.store.ids()]
            if self._curves is None or self._curves[0] != state:
                self._curves = (state, self._compute())
            return self._curves[1]

    def problems(self, name: str, offset: int, limit: int) -> StoredProblems:
        lines = self._index(name)
        return StoredProblems(
            total=len(lines), data=[line.problem for line in lines[offset : offset + limit]]
        )

    def record(self, name: str, problem: str) -> Record:
        for line in self._index(name):
            if line.problem.id == problem:
                return self.store.record(name, problem, line.place)
        raise ApiError(404, f"run {name} has no problem {problem!r:.200}", param="problem")

    def redacted(self, message: str) -> str:
        """Remove the path of the store, which clients must not see, from a message."""
        return message.replace(f"{self.store.folder}{os.sep}", "").replace(
            str(self.store.folder), "in its folder"
        )

    def _card(self, name: str) -> RunCard:
        try:
            return _card(self.store.exact_head(name))
        except StoreError as error:
            return RunCard(id=name, damage=self.redacted(str(error)))

    def _compute(self) -> Curves:
        try:
            results = read_results(self.store.folder)
        except StoreError:  # no readable run; the list of runs shows what is wrong with each
            return Curves(data=[], left_out={})
        data = [_benchmark(bench) for bench in results.benchmarks]
        return Curves(
            data=data, left_out={one.run: self.redacted(one.why) for one in results.left_out}
        )

    def _index(self, name: str) -> list[_Line]:
        if name not in self.store.ids():  # the name becomes a path below
            raise ApiError(404, f"there is no run {name!r:.100}", param="run")
        key = (name, self._changed(name, DRAWN), self._changed(name, SCORES))
        with self._reading:
            if key not in self._indexes:
                self._indexes[key] = self._lines(name)
                while len(self._indexes) > MOST_INDEXES:
                    self._indexes.popitem(last=False)
            self._indexes.move_to_end(key)
            return self._indexes[key]

    def _lines(self, name: str) -> list[_Line]:
        right = {one.problem: _right(one.correct) for one in self.store.scores(name)}
        n = self.store.exact_head(name).spec.n
        places = self.store.places(name).items()
        return [
            _Line(place, StoredProblem(id=problem, right=right.get(problem), n=n))
            for problem, place in places
        ]

    def _changed(self, name: str, file: str) -> int:
        path = self.store.folder / name / file
        return path.stat().st_mtime_ns if path.exists() else 0


def _card(head: Head) -> RunCard:
    spec, params = head.spec, head.spec.params.canonical()
    return RunCard(
        id=head.id,
        model=spec.model,
        task=f"{spec.task} ({spec.protocol})" if spec.protocol else spec.task,
        objective=params.objective_name,
        method=params.method,
        alpha=params.alpha,
        temperature=params.temperature,
        n=spec.n,
        seed=spec.seed,
        problems=head.problems,
        done=head.summary.problems if head.imported and head.summary else head.scored,
        complete=head.complete,
        passed=None
        if head.summary is None or head.summary.passed is None
        else dict(head.summary.passed),
        voted=None if head.summary is None else head.summary.diversity.get(f"maj@{spec.n}"),
        began=head.starts[0].get("time") if head.starts else None,
    )


def _right(correct: Sequence[bool | None]) -> int | None:
    return None if None in correct else sum(map(bool, correct))


def _benchmark(bench: Benchmark) -> BenchmarkCard:
    return BenchmarkCard(
        name=bench.name,
        model=bench.model,
        problems=bench.count,
        cells=[_cell(cell) for cell in bench.cells],
    )


def _cell(cell: Cell) -> CellCard:
    return CellCard(
        label=cell.label,
        plain=cell.plain,
        runs=list(cell.runs),
        passed=_shares(cell.passed),
        voted=_shares(cell.voted),
    )


def _shares(estimates: Mapping[int, Estimate]) -> list[Share]:
    return [
        Share(k=k, mean=one.mean, low=_known(one.low), high=_known(one.high))
        for k, one in sorted(estimates.items())
    ]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def add_runs(app: FastAPI, desk: RunDesk | None) -> None:
    def configured() -> RunDesk:
        if desk is None:
            raise ApiError(404, NO_STORE, code="no_store")
        return desk

    async def in_thread(function: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(function, *arguments)
        except StoreError as error:
            raise ApiError(
                409, configured().redacted(str(error)), code="store_unreadable"
            ) from None

    Name = Annotated[str, Path(max_length=100)]

    @app.get("/v1/runs")
    async def stored_runs() -> RunList:
        """List the runs of the store."""
        found: RunList = await in_thread(configured().runs)
        return found

    @app.get("/v1/curves")
    async def curves() -> Curves:
        """Return Pass@k with its 95 % interval for every setting in the store."""
        found: Curves = await in_thread(configured().curves)
        return found

    @app.get("/v1/runs/{run}/problems")
    async def stored_problems(
        run: Name,
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> StoredProblems:
        """List the problems of a run, in the order of the run."""
        found: StoredProblems = await in_thread(configured().problems, run, offset, limit)
        return found

    @app.get("/v1/runs/{run}/samples")
    async def stored_samples(run: Name, problem: Annotated[str, Query(max_length=1000)]) -> Record:
        """Return all samples of a problem."""
        found: Record = await in_thread(configured().record, run, problem)
        return found

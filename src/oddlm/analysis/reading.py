"""Runs as arrays: what a report needs of a run, read once from front to back, texts left on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..params import RunSpec
from ..store import ROWS, Head, Store, StoreError, iter_rows

Floats = NDArray[np.float64]
Watch = Callable[[int], None]  # called with the number of problems read since the last call


@dataclass(frozen=True)
class RunData:
    """One complete run. An imported one has no problems of its own: only means over all of them are known."""

    id: str
    spec: RunSpec
    imported: str | None  # the log it came from
    count: int  # problems
    problems: tuple[str, ...]
    correct: NDArray[np.bool_]  # [problems, n]
    seconds: Floats  # [problems], of drawing the samples
    nfe: Floats  # [problems]
    diversity: Mapping[str, Floats]  # [problems]; nan where it cannot be said
    places: Mapping[str, int]  # problem -> the byte of the store's file where its row begins
    means: Mapping[str, float]  # of an imported run: pass@k, measures of diversity, seconds per problem

    def ordered(self, problems: tuple[str, ...]) -> "RunData":
        """The same run with its problems in another order."""
        if problems == self.problems:
            return self
        places = {problem: i for i, problem in enumerate(self.problems)}
        index = [places[problem] for problem in problems]
        return replace(
            self,
            problems=problems,
            correct=self.correct[index],
            seconds=self.seconds[index],
            nfe=self.nfe[index],
            diversity={name: column[index] for name, column in self.diversity.items()},
        )

    def passed(self, k: int) -> float | None:
        """Pass@k of this run, or None where it cannot be had."""
        return self.means.get(f"pass@{k}") if self.imported else float(metrics.pass_at_k(self.correct, k).mean())

    def mean(self, name: str) -> float | None:
        """A measure of diversity, or `seconds` or `nfe` per problem."""
        if self.imported:
            return self.means.get(name)
        column = {"seconds": self.seconds, "nfe": self.nfe}.get(name, self.diversity.get(name))
        known = column[~np.isnan(column)] if column is not None else np.array([])
        return float(known.mean()) if len(known) else None


@dataclass(frozen=True)
class LeftOut:
    run: str
    why: str


def read_runs(store: Store, watch: Watch = lambda _: None) -> tuple[list[RunData], list[LeftOut]]:
    """All runs that can be reported, and the others with the reason."""
    runs: list[RunData] = []
    left_out: list[LeftOut] = []
    for name in store.ids():
        try:
            found = _read(store, store.exact_head(name), watch)
        except StoreError as error:
            found = LeftOut(name, str(error))
        if isinstance(found, LeftOut):
            left_out.append(found)
        else:
            runs.append(found)
    return runs, left_out


def _read(store: Store, head: Head, watch: Watch) -> RunData | LeftOut:
    if head.summary is None:
        return LeftOut(head.id, f"not complete: {head.done} of {head.problems} problems")
    if head.summary.passed is None:
        return LeftOut(head.id, "nothing scores its samples")
    if head.summary.imported is not None:
        return _imported(head)
    return _measured(head, store.folder / head.id / ROWS, watch)


def _measured(head: Head, path: Path, watch: Watch) -> RunData | LeftOut:
    kept: list[tuple[str, int, list[bool], float, int, Mapping[str, float | None]]] = []
    for place, row in iter_rows(path):
        if any(sample.correct is None for sample in row.samples):
            return LeftOut(head.id, f"problem {row.problem!r} has samples that nothing scores")
        if len(row.samples) != head.spec.n:
            return LeftOut(head.id, f"problem {row.problem!r} has {len(row.samples)} samples, not {head.spec.n}")
        kept.append((row.problem, place, row.correct, row.seconds, row.nfe, row.diversity))
        watch(1)
    if len(kept) != head.problems or not kept:
        return LeftOut(head.id, f"its summary speaks of {head.problems} problems, its rows are {len(kept)}")
    problems, places, correct, seconds, nfe, diversity = zip(*kept, strict=True)
    names = sorted({name for measures in diversity for name in measures})
    return RunData(
        id=head.id,
        spec=head.spec,
        imported=None,
        count=len(problems),
        problems=problems,
        correct=np.array(correct, dtype=np.bool_),
        seconds=np.array(seconds, dtype=np.float64),
        nfe=np.array(nfe, dtype=np.float64),
        diversity={name: np.array([measures.get(name) for measures in diversity], dtype=np.float64) for name in names},
        places=dict(zip(problems, places, strict=True)),
        means={},
    )


def _imported(head: Head) -> RunData:
    assert head.summary is not None
    seconds = head.summary.seconds
    known = {**(head.summary.passed or {}), **head.summary.diversity}
    known["seconds"] = None if seconds is None else seconds / head.problems
    none = np.zeros(0)
    return RunData(
        id=head.id,
        spec=head.spec,
        imported=head.summary.imported,
        count=head.problems,
        problems=(),
        correct=np.zeros((0, head.spec.n), dtype=np.bool_),
        seconds=none,
        nfe=none,
        diversity={},
        places={},
        means={name: float(value) for name, value in known.items() if value is not None},
    )

"""Reads runs into arrays for a report, without their texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..spec import RunSpec
from ..store import Head, Store, StoreError

Floats = NDArray[np.float64]
Watch = Callable[[int], None]  # called with the number of problems read since the last call


@dataclass(frozen=True)
class RunData:
    """A complete run. Of an imported run, only means over all problems are known."""

    id: str
    spec: RunSpec
    imported: str | None  # the log it came from
    count: int  # problems
    problems: tuple[str, ...]
    correct: NDArray[np.bool_]  # [problems, n]
    seconds: Floats  # [problems], to draw the samples
    nfe: Floats  # [problems]
    diversity: Mapping[str, Floats]  # [problems]; nan if unknown
    solutions: tuple[tuple[int | None, ...], ...]  # [problems, n]: classes of correct samples
    means: Mapping[str, float]  # if imported: pass@k, measures of diversity, seconds per problem

    def on(self, problems: tuple[str, ...]) -> "RunData":
        """Return the run restricted to these problems, in this order."""
        if problems == self.problems:
            return self
        places = {problem: i for i, problem in enumerate(self.problems)}
        index = [places[problem] for problem in problems]
        return replace(
            self,
            count=len(problems),
            problems=problems,
            correct=self.correct[index],
            solutions=tuple(self.solutions[i] for i in index),
            seconds=self.seconds[index],
            nfe=self.nfe[index],
            diversity={name: column[index] for name, column in self.diversity.items()},
        )

    def passed(self, k: int) -> float | None:
        """Return Pass@k of this run, or None if it is unknown."""
        if self.imported:
            return self.means.get(f"pass@{k}")
        return float(metrics.pass_at_k(self.correct, k).mean())

    def mean(self, name: str) -> float | None:
        """Return the mean over problems of a measure of diversity, `seconds` or `nfe`."""
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
    """Return the runs that can be reported, and the others with the reason.

    Of several runs with the same samples, only the last is reported.
    """
    runs: dict[str, RunData] = {}  # by the id of their samples
    left_out: list[LeftOut] = []
    for name in store.ids():
        try:
            found = _read(store, store.exact_head(name), watch)
        except StoreError as error:
            found = LeftOut(name, str(error))
        if isinstance(found, LeftOut):
            left_out.append(found)
            continue
        samples = name if found.imported else found.spec.draw_id
        if (earlier := runs.pop(samples, None)) is not None:
            left_out.append(
                LeftOut(
                    earlier.id,
                    f"run {name} has the same samples, scored by {found.spec.scorer_version}",
                )
            )
        runs[samples] = found
    return list(runs.values()), left_out


def _read(store: Store, head: Head, watch: Watch) -> RunData | LeftOut:
    if head.summary is None or not head.complete:
        return LeftOut(head.id, f"not complete: {head.scored} of {head.problems} problems")
    if head.summary.passed is None:
        return LeftOut(head.id, "its samples are not scored")
    return _imported(head) if head.imported else _measured(head, store, watch)


def _measured(head: Head, store: Store, watch: Watch) -> RunData | LeftOut:
    """Read the scores of a run; the samples themselves are not needed."""
    records = []
    for record in store.statistics(head.id):
        if None in record.correct:
            return LeftOut(head.id, f"problem {record.problem!r} has samples that are not scored")
        if not len(record.correct) == len(record.solutions) == head.spec.n:
            return LeftOut(
                head.id,
                f"problem {record.problem!r} has {len(record.correct)} samples, not {head.spec.n}",
            )
        records.append(
            (
                record.problem,
                record.correct,
                record.draw_seconds,
                record.nfe,
                record.diversity,
                record.solutions,
            )
        )
        watch(1)
    problems, correct, seconds, nfe, diversity, solutions = zip(*records, strict=True)
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
        diversity={name: _finite([measures.get(name) for measures in diversity]) for name in names},
        solutions=solutions,
        means={},
    )


def _finite(values: Sequence[float | None]) -> Floats:
    """Return an array with nan for missing and infinite values."""
    found = np.array(values, dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)


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
        solutions=(),
        means={name: float(value) for name, value in known.items() if value is not None},
    )

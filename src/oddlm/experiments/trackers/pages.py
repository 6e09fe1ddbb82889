"""A tracker with a page per run, which the trackers for all packages share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...spec import RunSpec
from ...store import Scored, Summary

PROJECT = "oddlm"
Numbers = Mapping[str, float]


class Page(Protocol):
    """The log of one run in a tracking package."""

    def log(self, numbers: Numbers, step: int) -> None: ...

    def end(self, numbers: Numbers | None) -> None:
        """Close the page with the numbers of the whole run, or None if it was stopped."""


OpenPage = Callable[[str, Mapping[str, Any]], Page]  # takes the id of the run and its settings


class Pages:
    """A tracker that opens a page for every run."""

    def __init__(self, open_page: OpenPage) -> None:
        self._open_page = open_page
        self._open: dict[str, tuple[Page, _Standing]] = {}  # by run

    def open(self, run: str, settings: Mapping[str, Any]) -> None:
        """Open the page of a run of any kind."""
        if run in self._open:  # the run was stopped and starts again
            self._open.pop(run)[0].end(None)
        self._open[run] = (self._open_page(run, settings), _Standing())

    def log(self, run: str, numbers: Numbers, step: int) -> None:
        self._open[run][0].log(numbers, step)

    def end(self, run: str, numbers: Numbers) -> None:
        self._open.pop(run)[0].end(numbers)

    def start(self, spec: RunSpec, problems: int) -> None:
        self.open(spec.id, described(spec, problems))

    def record(self, spec: RunSpec, record: Scored) -> None:
        page, standing = self._open[spec.id]
        page.log(standing.add(record), standing.records)

    def finish(self, spec: RunSpec, summary: Summary) -> None:
        numbers = {**(summary.passed or {}), **summary.diversity, "seconds": summary.seconds}
        self.end(spec.id, _known(numbers))

    def close(self) -> None:
        while self._open:
            page, _ = self._open.popitem()[1]
            page.end(None)


@dataclass
class _Standing:
    """Running totals over the records of a run."""

    records: int = 0
    right: float = 0.0
    solved: float = 0.0

    def add(self, record: Scored) -> dict[str, float]:
        """Return Pass@k over all records so far, and the other measures of this record."""
        self.records += 1
        numbers: dict[str, float | None] = {
            **record.diversity,
            "seconds": record.draw_seconds + record.seconds,
        }
        if None not in record.correct:
            n, right = len(record.correct), sum(map(bool, record.correct))
            self.right += right / n
            self.solved += right > 0
            numbers |= {
                f"pass@{n}": self.solved / self.records,
                "pass@1": self.right / self.records,
            }
        return _known(numbers)


def described(spec: RunSpec, problems: int) -> dict[str, Any]:
    """Return the settings of a run as a flat dict, spelled as they are hashed for the id."""
    content = spec.canonical()
    return {**content.pop("params"), **content, "problems": problems}


def _known(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if value is not None}

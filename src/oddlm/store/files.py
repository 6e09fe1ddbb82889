"""Runs on disk: a folder per run, a line per problem and stage. Does not import torch.

    store/<id>/spec.json         the settings of the run
               drawn.jsonl       a line per problem with its samples; a line is whole or absent
               scores.jsonl      a line per problem: verdicts and diversity of its samples
               environment.json  what drew and scored them: an entry per kind of worker and start
               failures.jsonl    a line per problem that failed, with its traceback
               summary.json      written last, when everything requested is there
                                 (an imported run has a spec and a summary only)
               lock              held by the process that is writing

Drawing and scoring are separate: a run drawn on one machine can be copied to another and scored
there. The first eight digits of an id identify the samples, the rest the scorer, so a run with
another scorer finds the samples of its sibling.

A process that is killed loses only the problems in flight; the next one drops a torn line and
resumes. Users copy and merge stores by hand, so a path may hold anything: only regular files and
links to them are opened.
"""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..spec import RunSpec
from . import disk
from .records import (
    DRAWN,
    ENVIRONMENT,
    FAILURES,
    LOCK,
    NETWORK,
    SCORES,
    SPEC,
    SUMMARY,
    DamagedRunError,
    Drawn,
    Environment,
    Failure,
    Known,
    Network,
    Place,
    Record,
    Scored,
    Spec,
    Stage,
    Statistics,
    StoreError,
    Summary,
)


@dataclass(frozen=True)
class Head:
    """A run as it stands on disk, without its records."""

    folder: Path
    spec: RunSpec
    problems: int  # requested
    drawn: int
    scored: int
    summary: Summary | None
    starts: tuple[dict[str, Any], ...]

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def imported(self) -> bool:
        return self.summary is not None and self.summary.imported is not None

    @property
    def busy(self) -> float | None:
        """The share of the time of all starts that the network was busy; None if not known."""
        found = [Network.model_validate(s[NETWORK]) for s in self.starts if NETWORK in s]
        seconds = sum(one.seconds for one in found)
        return sum(one.busy * one.seconds for one in found) / seconds if seconds else None

    @property
    def complete(self) -> bool:
        """Whether everything requested, and everything the summary counts, is there."""
        found = self.summary
        return found is not None and (
            self.imported or self.scored == self.drawn == found.problems >= self.problems
        )


@dataclass(frozen=True)
class Run(Head):
    """A run with its records."""

    records: tuple[Record, ...]


@dataclass
class Writer:
    """A run that this process has locked: no other process can write to it until it is closed."""

    folder: Path
    digests: dict[str, str]  # of the drawn problems, by id
    scored: set[str]
    summary: Summary | None  # of an earlier start
    _places: dict[str, int] = field(default_factory=dict)  # byte offsets of the drawn lines, by id

    def start(self, environment: Mapping[str, Any]) -> None:
        """Log the environment of a worker that is about to add to this run."""
        disk.write(
            self.folder / ENVIRONMENT,
            disk.as_line(Environment(starts=(*_starts(self.folder), dict(environment)))),
        )

    def busy(self, network: Network) -> None:
        """Add to the latest start that drew how busy the network was."""
        starts = list(_starts(self.folder))
        for i in reversed(range(len(starts))):
            if starts[i].get("stage") == "draw":
                starts[i] = {**starts[i], NETWORK: network.model_dump()}
                disk.write(
                    self.folder / ENVIRONMENT, disk.as_line(Environment(starts=tuple(starts)))
                )
                return

    def draw(self, *records: Drawn) -> None:
        """Store samples; they are safely on disk when this returns."""
        self._append(DRAWN, records, self.digests)
        self.digests.update({record.problem: record.digest for record in records})

    def score(self, *records: Scored) -> None:
        """Store the scores of problems that have been drawn, as safely."""
        for record in records:
            if record.problem not in self.digests:
                raise StoreError(
                    f"problem {record.problem!r} of run {self.folder.name} has scores "
                    "but no samples"
                )
        self._append(SCORES, records, self.scored)
        self.scored.update(record.problem for record in records)

    def _append(self, name: str, records: Iterable[Drawn | Scored], known: Iterable[str]) -> None:
        path, lines = self.folder / name, []
        for record in records:
            if record.problem in known:
                raise StoreError(f"problem {record.problem!r} is already in {path}")
            lines.append(disk.as_line(record))
        with disk.writing(path):
            place = disk.append(path, b"".join(lines))
        if name == DRAWN:
            for record, line in zip(records, lines, strict=True):
                self._places[record.problem] = place
                place += len(line)

    def drawn(self, problems: Iterable[str]) -> list[Drawn]:
        """Read the samples of these problems back from disk."""
        return [
            disk.line_at(self.folder / DRAWN, self._places[problem], Drawn, problem)
            for problem in problems
        ]

    def scores(self) -> Iterator[Scored]:
        return (record for _, record in disk.iter_lines(self.folder / SCORES, Scored))

    def fail(self, failure: Failure) -> None:
        """Log that a problem could not be drawn or scored."""
        with disk.writing(self.folder / FAILURES):
            disk.append(self.folder / FAILURES, disk.as_line(failure))

    def clear_failures(self, stages: Iterable[Stage]) -> None:
        """Delete the logged failures of these stages, which are about to be retried."""
        path, stages = self.folder / FAILURES, frozenset(stages)
        kept = [
            line
            for _, line in disk.lines(path)
            if disk.parse(line, Failure, str(path)).stage not in stages
        ]
        if kept:
            disk.write(path, b"".join(kept))
            return
        with disk.reading(path), disk.writing(path):
            path.unlink(missing_ok=True)

    def adopt(self, sibling: Path, digests: Mapping[str, str]) -> None:
        """Copy what a sibling has drawn of these problems, and the environments it was drawn in."""
        lines = {}
        for number, (_, line) in enumerate(disk.lines(sibling / DRAWN), start=1):
            found = disk.parse(line, Known, f"{sibling / DRAWN}, line {number}")
            if found.problem not in self.digests and digests.get(found.problem) == found.digest:
                lines[found.problem] = line
        if not lines:
            return
        earlier, theirs = _starts(self.folder), _starts(sibling)
        disk.write(
            self.folder / ENVIRONMENT,
            disk.as_line(Environment(starts=(*earlier, *(s for s in theirs if s not in earlier)))),
        )
        with disk.writing(self.folder / DRAWN):
            place = disk.append(self.folder / DRAWN, b"".join(lines.values()))
        for problem, line in lines.items():
            self.digests[problem], self._places[problem] = digests[problem], place
            place += len(line)

    def finish(self, summary: Summary) -> None:
        disk.write(self.folder / SUMMARY, disk.as_line(summary))


@dataclass(frozen=True)
class Store:
    """A folder of runs."""

    folder: Path

    def check(self) -> None:
        """Raise StoreError if runs cannot be written here. Call this before computing anything."""
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(
                f"{self.folder} is a file, but a store is a folder: name another with --store DIR"
            )
        with disk.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".probe-{socket.gethostname()}-{os.getpid()}"
            probe.touch()
            probe.unlink()

    @contextmanager
    def open(
        self, spec: RunSpec, problems: int, digests: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[Writer]:
        """Lock and open the run of this spec, new or existing, for this number of problems.

        digests: of the requested problems, by id. Stored problems must match them. Samples of
        siblings, which are runs that differ only in their scorer, are copied if they match.

        Raises RunHeldError if another process has the run open. Nothing is written before every
        existing file has been validated. A run that produces nothing, for example because its
        model does not load, leaves nothing behind.
        """
        folder = self.folder / spec.id
        if folder.exists() and not folder.is_dir():
            raise DamagedRunError(f"{folder} is not a folder: move it away")
        with disk.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with disk.locked(folder):
            files = (SPEC, DRAWN, SCORES, ENVIRONMENT, SUMMARY, FAILURES)
            fresh = not any(os.path.lexists(folder / name) for name in files)
            try:
                yield self._begin(folder, spec, problems, digests)
            finally:
                if fresh and not any(
                    (folder / name).exists() for name in (DRAWN, SUMMARY, FAILURES)
                ):
                    with suppress(OSError):  # the folder may hold other files
                        for name in (SPEC, ENVIRONMENT, LOCK):
                            (folder / name).unlink(missing_ok=True)
                        folder.rmdir()

    def _begin(
        self, folder: Path, spec: RunSpec, problems: int, digests: Mapping[str, str]
    ) -> Writer:
        path = folder / SPEC
        known = disk.read(path, Spec)
        if known is None:
            for name in (DRAWN, SCORES, SUMMARY):
                if (folder / name).exists():
                    raise DamagedRunError(
                        f"{path} is missing, but {folder / name} exists: "
                        f"copy it again, or move {folder} away"
                    )
        elif known.spec.canonical() != spec.canonical():
            raise DamagedRunError(
                f"{path} does not describe run {spec.id}: it was edited; move {folder} away"
            )
        writer = _writer(folder)
        for problem in digests.keys() & writer.digests.keys():
            if digests[problem] != writer.digests[problem]:
                raise DamagedRunError(
                    f"{folder / DRAWN}: the prompt or target of problem {problem!r} has changed "
                    "since it was drawn; use another --store, or increase the task's version"
                )
        for name in (DRAWN, SCORES):
            disk.drop_torn_line(folder / name)
        if known is None or known.problems < problems:
            disk.write(path, disk.as_line(Spec(id=spec.id, problems=problems, spec=spec)))
        if digests.keys() - writer.digests.keys():
            for sibling in self._siblings(spec):
                with suppress(DamagedRunError):  # a damaged sibling is no reason to stop
                    writer.adopt(sibling, digests)
        return writer

    def _siblings(self, spec: RunSpec) -> Iterator[Path]:
        """Yield the folders of runs with the same samples but another scorer."""
        for path in sorted(self.folder.glob(f"{spec.draw_id}*/{SPEC}")):
            with suppress(DamagedRunError):
                found = disk.read(path, Spec) if path.parent.name != spec.id else None
                if found is not None and found.spec.draws_like(spec):
                    yield path.parent

    def complete(self, spec: RunSpec) -> bool:
        """Return whether everything requested from this run is there."""
        try:
            return (self.folder / spec.id / SPEC).exists() and self.exact_head(spec.id).complete
        except DamagedRunError:  # opening the run reports it
            return False

    def ids(self) -> list[str]:
        """Return the ids of all runs, oldest first, including folders whose spec is missing."""
        if not self.folder.is_dir():
            raise StoreError(
                f"there is no store {self.folder}: create one with `oddlm eval`, "
                "or name another with --store DIR"
            )
        found = {
            path.parent for name in (SPEC, DRAWN, SUMMARY) for path in self.folder.glob(f"*/{name}")
        }
        begun = [(disk.changed(folder / SPEC) or 0, folder.name) for folder in found]
        return [name for _, name in sorted(begun)]

    def find(self, name: str) -> str:
        """Return the id of the run that begins with `name`."""
        ids = self.ids()
        found = [i for i in ids if i.startswith(name)] if name else []
        if name in ids:
            found = [name]
        if len(found) != 1:
            listed = ", ".join(found or ids) or "none"
            problem = "several runs begin with" if found else "there is no run"
            raise StoreError(f"{problem} {name!r} in {self.folder}: {listed}")
        return found[0]

    def head(self, name: str) -> Head:
        """Return the head of the run whose id begins with `name`; records are counted, not read."""
        return self.exact_head(self.find(name))

    def exact_head(self, name: str) -> Head:
        """Return the head of the run with exactly this id, without listing the other runs.

        Raises DamagedRunError if files are missing or incomplete.
        """
        folder = self.folder / name
        spec = disk.read(folder / SPEC, Spec)
        if spec is None:
            raise DamagedRunError(
                f"{folder / SPEC} is missing: copy it again, or move {folder} away"
            )
        if not spec.spec.id == spec.id == name:
            raise DamagedRunError(
                f"{folder / SPEC} describes run {spec.spec.id}: "
                "the file was edited, or the folder renamed"
            )
        summary = disk.read(folder / SUMMARY, Summary)
        drawn, scored = _check_whole(folder, summary)
        return Head(folder, spec.spec, spec.problems, drawn, scored, summary, _starts(folder))

    def read(self, name: str) -> Run:
        """Return the run whose id begins with `name`, its records in the order of drawing."""
        head = self.head(name)
        return Run(**vars(head), records=tuple(self.records(head.id)))

    def records(self, name: str) -> Iterator[Record]:
        """Yield the records of the run with exactly this id, in the order of drawing."""
        folder = self.folder / name
        scores = {record.problem: record for _, record in disk.iter_lines(folder / SCORES, Scored)}
        for _, drawn in disk.iter_lines(folder / DRAWN, Drawn):
            yield Record.of(drawn, scores.get(drawn.problem), folder)

    def scores(self, name: str) -> Iterator[Scored]:
        """Yield the scores of a run, in the order of scoring."""
        return (record for _, record in disk.iter_lines(self.folder / name / SCORES, Scored))

    def statistics(self, name: str) -> Iterator[Statistics]:
        """Yield the scores of a run without the texts, which is faster."""
        return (record for _, record in disk.iter_lines(self.folder / name / SCORES, Statistics))

    def digests(self, name: str) -> dict[str, str]:
        """Return the digests of the drawn problems by id, in the order of drawing."""
        return {
            line.problem: line.digest
            for _, line in disk.iter_lines(self.folder / name / DRAWN, Known)
        }

    def places(self, name: str) -> dict[str, Place]:
        """Return the place of each problem's lines by id, in the order of drawing."""
        folder = self.folder / name
        scored = {line.problem: place for place, line in disk.iter_lines(folder / SCORES, Known)}
        return {
            line.problem: Place(place, scored.get(line.problem))
            for place, line in disk.iter_lines(folder / DRAWN, Known)
        }

    def record(self, name: str, problem: str, place: Place) -> Record:
        """Read the record of one problem at a place that `places` has returned."""
        folder = self.folder / name
        scored = (
            None
            if place.scored is None
            else disk.line_at(folder / SCORES, place.scored, Scored, problem)
        )
        return Record.of(disk.line_at(folder / DRAWN, place.drawn, Drawn, problem), scored, folder)

    def failures(self, spec: RunSpec) -> list[Failure]:
        """Return the failures of the last attempt to run this spec."""
        path = self.folder / spec.id / FAILURES
        return [disk.parse(line, Failure, str(path)) for _, line in disk.lines(path)]


def _check_whole(folder: Path, summary: Summary | None) -> tuple[int, int]:
    """Return how many problems are drawn and scored. Refuse a run that was copied in part.

    A writer draws, then scores, then writes the summary. The files are read in the opposite order,
    so that a run which is being written still looks consistent.
    """
    scored, drawn = (disk.count_lines(folder / name)[0] for name in (SCORES, DRAWN))
    if summary is None or summary.imported is None:
        for name, lines in ((DRAWN, drawn), (SCORES, scored)):
            if summary is not None and lines < summary.problems:
                raise DamagedRunError(
                    f"{folder / name} holds {lines} of the {summary.problems} problems in "
                    f"{SUMMARY}: it was copied in part; copy it again, or delete {SUMMARY} to "
                    "resume from what is there"
                )
        if scored > drawn:
            raise DamagedRunError(
                f"{folder / DRAWN} holds {drawn} problems, but {SCORES} has scores of {scored}: "
                "copy it again"
            )
    return drawn, scored


def _starts(folder: Path) -> tuple[dict[str, Any], ...]:
    found = disk.read(folder / ENVIRONMENT, Environment)
    return () if found is None else found.starts


def _writer(folder: Path) -> Writer:
    """Validate what a run holds, ignoring torn lines."""
    summary = disk.read(folder / SUMMARY, Summary)
    if summary is not None and summary.imported:
        raise StoreError(
            f"run {folder.name} was imported from {summary.imported}: it has no records to resume "
            "from; use another --store"
        )
    _check_whole(folder, summary)
    _starts(folder)  # reports a damaged file now rather than when it is rewritten
    drawn = {
        line.problem: (line.digest, place) for place, line in disk.iter_lines(folder / DRAWN, Known)
    }
    scored = {line.problem for _, line in disk.iter_lines(folder / SCORES, Known)}
    for problem in scored - drawn.keys():
        raise DamagedRunError(
            f"{folder / SCORES} has scores of problem {problem!r}, but {folder / DRAWN} has no "
            "samples of it: copy that file again"
        )
    digests = {problem: digest for problem, (digest, _) in drawn.items()}
    places = {problem: place for problem, (_, place) in drawn.items()}
    return Writer(folder, digests, scored, summary, places)

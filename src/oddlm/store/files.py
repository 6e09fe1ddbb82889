"""Runs on disk: a folder per run, a line per problem and stage. Imports no torch.

    store/<id>/spec.json         what was asked
               drawn.jsonl       a line per problem with its samples; a line is whole or absent
               scores.jsonl      a line per problem: verdicts, and how much the samples differ
               environment.json  what drew and scored them: an entry per kind of worker and start
               failures.jsonl    a line per problem that failed, with its traceback
               summary.json      written last: everything that was asked is there
                                 (an imported run has a summary alone)
               lock              held by the process that writes

Drawing and scoring are separate: a run drawn on one machine can be copied to another and scored
there. The first eight digits of an id stand for the samples, the rest for the scorer, so a run with
another scorer finds the samples of its sibling.

A process killed at any moment loses the problems in flight; the next one drops a torn line and
resumes. Stores are copied and merged by hand, so anything may be where a file should be: only
regular files (and links to them) are opened.
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
    SCORES,
    SPEC,
    SUMMARY,
    DamagedRunError,
    Drawn,
    Environment,
    Failure,
    Known,
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
    problems: int  # asked for
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
    def complete(self) -> bool:
        """Is everything there that was asked for, and that the summary speaks of?"""
        found = self.summary
        return found is not None and (
            self.imported or self.scored == self.drawn == found.problems >= self.problems
        )


@dataclass(frozen=True)
class Run(Head):
    records: tuple[Record, ...]


@dataclass
class Writer:
    """A run that this process holds; nobody else writes to it until it is closed."""

    folder: Path
    digests: dict[str, str]  # of the problems that are drawn
    scored: set[str]
    summary: Summary | None  # of an earlier start
    _places: dict[str, int] = field(default_factory=dict)  # of their lines

    def start(self, environment: Mapping[str, Any]) -> None:
        """Note what is about to add to this run."""
        disk.write(
            self.folder / ENVIRONMENT,
            disk.as_line(Environment(starts=(*_starts(self.folder), dict(environment)))),
        )

    def draw(self, *records: Drawn) -> None:
        """On disk, whole, when this returns."""
        self._append(DRAWN, records, self.digests)
        self.digests.update({record.problem: record.digest for record in records})

    def score(self, *records: Scored) -> None:
        """The same for the scores of problems that are drawn."""
        for record in records:
            if record.problem not in self.digests:
                raise StoreError(
                    f"problem {record.problem!r} of run {self.folder.name} has scores and no samples"
                )
        self._append(SCORES, records, self.scored)
        self.scored.update(record.problem for record in records)

    def _append(self, name: str, records: Iterable[Drawn | Scored], known: Iterable[str]) -> None:
        path, lines = self.folder / name, []
        for record in records:
            if record.problem in known:
                raise StoreError(f"problem {record.problem!r} is in {path} already")
            lines.append(disk.as_line(record))
        with disk.writing(path):
            place = disk.append(path, b"".join(lines))
        if name == DRAWN:
            for record, line in zip(records, lines, strict=True):
                self._places[record.problem] = place
                place += len(line)

    def drawn(self, problems: Iterable[str]) -> list[Drawn]:
        """The samples of problems that are drawn, read from disk."""
        return [
            disk.line_at(self.folder / DRAWN, self._places[problem], Drawn, problem)
            for problem in problems
        ]

    def scores(self) -> Iterator[Scored]:
        return (record for _, record in disk.iter_lines(self.folder / SCORES, Scored))

    def fail(self, failure: Failure) -> None:
        """Note that a problem could not be drawn or scored."""
        with disk.writing(self.folder / FAILURES):
            disk.append(self.folder / FAILURES, disk.as_line(failure))

    def forgive(self, stages: Iterable[Stage]) -> None:
        """Forget the failures of these stages: what failed is about to be tried again."""
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
        """Take over what a sibling has drawn of these problems, and what is known of who drew it."""
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
    folder: Path

    def check(self) -> None:
        """Can runs be written here? Asked before anything is computed."""
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(
                f"{self.folder} is a file: a store is a folder, --store DIR names another"
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
        """The run of this spec, new or as it was left, for so many problems; a second process is
        refused while one holds it.

        digests: of the problems that are asked for, by id. What is stored of them must have these,
        and what siblings have drawn of them is taken over: runs that differ in their scorer alone.

        Nothing is written before all that is there is understood. A run that comes to nothing, say
        because a model does not load, leaves nothing behind.
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
                    with suppress(OSError):  # of a folder that holds something else, too
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
                        f"{path} is gone, but not {folder / name}: copy it again, or move {folder} away"
                    )
        elif known.spec.canonical() != spec.canonical():
            raise DamagedRunError(
                f"{path} describes another run than {spec.id}: it was edited; move {folder} away"
            )
        writer = _writer(folder)
        for problem in digests.keys() & writer.digests.keys():
            if digests[problem] != writer.digests[problem]:
                raise DamagedRunError(
                    f"{folder / DRAWN}: problem {problem!r} is not what it was: its prompt or target has changed; "
                    "give another --store, or raise the task's version"
                )
        for name in (DRAWN, SCORES):
            disk.drop_torn_line(folder / name)
        if known is None or known.problems < problems:
            disk.write(path, disk.as_line(Spec(id=spec.id, problems=problems, spec=spec)))
        if digests.keys() - writer.digests.keys():
            for sibling in self._siblings(spec):
                with suppress(DamagedRunError):  # its own trouble
                    writer.adopt(sibling, digests)
        return writer

    def _siblings(self, spec: RunSpec) -> Iterator[Path]:
        """The folders of runs with the same samples and another scorer."""
        for path in sorted(self.folder.glob(f"{spec.draw_id}*/{SPEC}")):
            with suppress(DamagedRunError):
                found = disk.read(path, Spec) if path.parent.name != spec.id else None
                if found is not None and found.spec.draws_like(spec):
                    yield path.parent

    def complete(self, spec: RunSpec) -> bool:
        """Is everything there that was asked of this run?"""
        try:
            return (self.folder / spec.id / SPEC).exists() and self.exact_head(spec.id).complete
        except DamagedRunError:  # who opens it is told
            return False

    def ids(self) -> list[str]:
        """Of the runs that have begun, oldest first; and the folders of those whose spec is gone."""
        if not self.folder.is_dir():
            raise StoreError(
                f"there is no store {self.folder}: `oddlm eval` makes one, --store DIR names another"
            )
        found = {
            path.parent for name in (SPEC, DRAWN, SUMMARY) for path in self.folder.glob(f"*/{name}")
        }
        begun = [(disk.changed(folder / SPEC) or 0, folder.name) for folder in found]
        return [name for _, name in sorted(begun)]

    def find(self, name: str) -> str:
        """The id of a run, given the beginning of it."""
        ids = self.ids()
        found = [i for i in ids if i.startswith(name)] if name else []
        if name in ids:
            found = [name]
        if len(found) != 1:
            some = ", ".join(found or ids) or "none"
            raise StoreError(
                f"{'several runs begin with' if found else 'there is no run'} {name!r} in {self.folder}: {some}"
            )
        return found[0]

    def head(self, name: str) -> Head:
        """A run by its id or by the beginning of it; its records are counted, not read."""
        return self.exact_head(self.find(name))

    def exact_head(self, name: str) -> Head:
        """The head of a run whose whole id is given: the others are not looked at.

        What was copied in part is refused.
        """
        folder = self.folder / name
        spec = disk.read(folder / SPEC, Spec)
        if spec is None:
            raise DamagedRunError(f"{folder / SPEC} is gone: copy it again, or move {folder} away")
        if not spec.spec.id == spec.id == name:
            raise DamagedRunError(
                f"{folder / SPEC} describes run {spec.spec.id}: it was edited, or the folder renamed"
            )
        summary = disk.read(folder / SUMMARY, Summary)
        drawn, scored = _check_whole(folder, summary)
        return Head(folder, spec.spec, spec.problems, drawn, scored, summary, _starts(folder))

    def read(self, name: str) -> Run:
        """A run by its id or by the beginning of it, with all its records, in the order in which
        they were drawn.
        """
        head = self.head(name)
        return Run(**vars(head), records=tuple(self.records(head.id)))

    def records(self, name: str) -> Iterator[Record]:
        folder = self.folder / name
        scores = {record.problem: record for _, record in disk.iter_lines(folder / SCORES, Scored)}
        for _, drawn in disk.iter_lines(folder / DRAWN, Drawn):
            yield Record.of(drawn, scores.get(drawn.problem), folder)

    def scores(self, name: str) -> Iterator[Scored]:
        return (record for _, record in disk.iter_lines(self.folder / name / SCORES, Scored))

    def statistics(self, name: str) -> Iterator[Statistics]:
        """The same without the texts."""
        return (record for _, record in disk.iter_lines(self.folder / name / SCORES, Statistics))

    def digests(self, name: str) -> dict[str, str]:
        """Of the problems that are drawn, in that order."""
        return {
            line.problem: line.digest
            for _, line in disk.iter_lines(self.folder / name / DRAWN, Known)
        }

    def places(self, name: str) -> dict[str, Place]:
        """By problem, in the order in which they were drawn, where its lines begin."""
        folder = self.folder / name
        scored = {line.problem: place for place, line in disk.iter_lines(folder / SCORES, Known)}
        return {
            line.problem: Place(place, scored.get(line.problem))
            for place, line in disk.iter_lines(folder / DRAWN, Known)
        }

    def record(self, name: str, problem: str, place: Place) -> Record:
        """One problem, as `places` has found it."""
        folder = self.folder / name
        scored = (
            None
            if place.scored is None
            else disk.line_at(folder / SCORES, place.scored, Scored, problem)
        )
        return Record.of(disk.line_at(folder / DRAWN, place.drawn, Drawn, problem), scored, folder)

    def failures(self, spec: RunSpec) -> list[Failure]:
        """What failed when the run was last tried."""
        path = self.folder / spec.id / FAILURES
        return [disk.parse(line, Failure, str(path)) for _, line in disk.lines(path)]


def _check_whole(folder: Path, told: Summary | None) -> tuple[int, int]:
    """How many problems are drawn and scored; what was copied in part is refused.

    Who writes draws before it scores, and tells last: so that others may look meanwhile, the last
    is counted first.
    """
    scored, drawn = (disk.count_lines(folder / name)[0] for name in (SCORES, DRAWN))
    if told is None or told.imported is None:
        for name, lines in ((DRAWN, drawn), (SCORES, scored)):
            if told is not None and lines < told.problems:
                raise DamagedRunError(
                    f"{folder / name} holds {lines} of the {told.problems} problems that {SUMMARY} speaks of: it was copied in "
                    f"part; copy it again, or delete {SUMMARY} to go on from what is there"
                )
        if scored > drawn:
            raise DamagedRunError(
                f"{folder / DRAWN} holds {drawn} problems, and {SCORES} has scores of {scored}: copy it again"
            )
    return drawn, scored


def _starts(folder: Path) -> tuple[dict[str, Any], ...]:
    found = disk.read(folder / ENVIRONMENT, Environment)
    return () if found is None else found.starts


def _writer(folder: Path) -> Writer:
    """What is there, understood; a line that is torn is not there."""
    told = disk.read(folder / SUMMARY, Summary)
    if told is not None and told.imported:
        raise StoreError(
            f"run {folder.name} was imported from {told.imported}: it has no records to go on with; give another --store"
        )
    _check_whole(folder, told)
    _starts(folder)  # now, and not when it is written
    drawn = {
        line.problem: (line.digest, place) for place, line in disk.iter_lines(folder / DRAWN, Known)
    }
    scored = {line.problem for _, line in disk.iter_lines(folder / SCORES, Known)}
    for problem in scored - drawn.keys():
        raise DamagedRunError(
            f"{folder / SCORES} has scores of problem {problem!r}, and {folder / DRAWN} no samples: copy that again"
        )
    digests = {problem: digest for problem, (digest, _) in drawn.items()}
    places = {problem: place for problem, (_, place) in drawn.items()}
    return Writer(folder, digests, scored, told, places)

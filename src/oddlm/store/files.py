"""Runs on disk: a folder per run, a line per problem and stage. Imports no torch.

    store/<id>/spec.json         what was asked
               drawn.jsonl       a line per problem with all its samples; a line is there whole or not at all
               scores.jsonl      a line per problem with the verdicts on its samples and how much they differ
               environment.json  what drew and scored them: one entry per kind of worker and start
               failures.jsonl    a line per problem that could not be drawn or scored, with the traceback; the next start
                                 tries again
               summary.json      written last: everything that was asked is there
                                 (an imported run has a summary alone)
               lock              held by the process that writes

Drawing and scoring are apart: a folder that was drawn on one machine is copied to another and scored there. The first eight
digits of an id stand for the samples, the rest for the scorer, so that a run with another scorer finds those of its sibling.

A process killed at any moment loses the problems in flight; the next one drops what is torn and resumes. Stores are copied and
merged by hand, so anything may stand where a file should: only regular files (links to them too) are opened.
"""

import errno
import fcntl
import json
import math
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ..files import write_whole
from ..params import RunSpec, checked
from ..versions import STORE

Stage = Literal["draw", "score"]
SPEC, ENVIRONMENT, SUMMARY, LOCK = "spec.json", "environment.json", "summary.json", "lock"
DRAWN, SCORES = "drawn.jsonl", "scores.jsonl"
FAILURES = "failures.jsonl"
KEPT = "what was finished is kept"
MOST_BYTES = 1 << 26  # of a file that is read at once
MOST_LINE_BYTES = 1 << 30  # of a record
CHUNK = 1 << 16  # malloc maps larger ones anew each time, which takes longer than to read them
NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENXIO)  # ENXIO: a socket
WRITE = os.O_RDWR | os.O_CREAT
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class StoreError(ValueError):
    """A store that cannot be read or written as it is; the message says what to do."""


class RunHeldError(StoreError):
    """Another process is writing this run."""


class DamagedRunError(StoreError):
    """A file of one run cannot be read as what it should be; other runs are not concerned."""


def _storable(text: Any) -> Any:
    """A model may write half a surrogate pair, which no file can hold."""
    return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_storable)]
Class = Annotated[int, Field(ge=0)]
Number = Annotated[float | None, BeforeValidator(lambda x: None if isinstance(x, float) and not math.isfinite(x) else x)]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[2] = STORE


class DrawnSample(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    text: Text
    length: int  # tokens before the first end token
    size: int  # all tokens
    ends: int  # end tokens among them
    finish_reason: str
    nfe: int  # network evaluations of its own
    logprob: Number = None  # of the tokens before the end, under the network when they were written; rounded
    tokens: tuple[int, ...] | None = None  # where they were asked for, as are
    logprobs: tuple[Number, ...] | None = None  # theirs


class Drawn(_File):
    """The samples of one problem."""

    problem: Text
    digest: str  # of what was asked and what is right
    prompt: Text
    seed: int
    nfe: int  # per sample that was kept, rounded up: those of a pool that were not have cost as much
    seconds: float
    samples: tuple[DrawnSample, ...]


class Scored(_File):
    """What can be said of the samples of one problem; column i is about sample i. Statistics need nothing else."""

    problem: Text
    correct: tuple[bool | None, ...]  # None: nothing scores it
    solutions: tuple[Class | None, ...]  # right samples of the same class have the same number
    diversity: Mapping[str, Number]
    nfe: int
    draw_seconds: float
    seconds: float
    answers: tuple[Text | None, ...]
    details: tuple[Text | None, ...]

    @model_validator(mode="after")
    def _as_long(self) -> Self:
        if not len(self.correct) == len(self.solutions) == len(self.answers) == len(self.details):
            raise ValueError(f"problem {self.problem!r}: its columns are not about the same number of samples")
        return self


class Statistics(BaseModel):
    """As much of a `Scored` as statistics need. Texts are the greater part of its line, and checks in Python of its time."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[2]
    problem: str
    correct: tuple[bool | None, ...]
    solutions: tuple[Class | None, ...]
    diversity: dict[str, float | None]  # what is not finite cannot be said
    nfe: int
    draw_seconds: float


class SampleRecord(DrawnSample):
    correct: bool | None = None
    answer: Text | None = None
    detail: Text | None = None


class Record(BaseModel):
    """One problem with all its samples, drawn and, as far as that was done, scored."""

    model_config = ConfigDict(frozen=True)

    problem: str
    prompt: str
    seed: int
    nfe: int
    seconds: float  # of drawing
    score_seconds: float
    diversity: Mapping[str, Number]
    samples: tuple[SampleRecord, ...]

    @classmethod
    def of(cls, drawn: Drawn, scored: Scored | None, folder: Path) -> "Record":
        if scored is not None and len(scored.correct) != len(drawn.samples):
            counts = f"{len(scored.correct)} verdicts on {len(drawn.samples)} samples"
            raise DamagedRunError(f"{folder / SCORES}: problem {drawn.problem!r} has {counts}; delete its line")
        unknown: tuple[None, ...] = (None,) * len(drawn.samples)
        columns = (unknown,) * 3 if scored is None else (scored.correct, scored.answers, scored.details)
        return cls.model_construct(
            problem=drawn.problem,
            prompt=drawn.prompt,
            seed=drawn.seed,
            nfe=drawn.nfe,
            seconds=drawn.seconds,
            score_seconds=0.0 if scored is None else scored.seconds,
            diversity={} if scored is None else scored.diversity,
            samples=tuple(
                SampleRecord.model_construct(**vars(sample), correct=correct, answer=answer, detail=detail)
                for sample, correct, answer, detail in zip(drawn.samples, *columns, strict=True)
            ),
        )

    @property
    def correct(self) -> list[bool]:
        return [bool(sample.correct) for sample in self.samples]


class Failure(_File):
    """A problem that could not be drawn or scored, and why."""

    problem: Text
    stage: Stage
    error: Text  # one line
    traceback: Text


class Spec(_File):
    id: str
    problems: int = Field(ge=1, lt=2**31)  # the most that were asked for
    spec: RunSpec


class Environment(_File):
    starts: tuple[dict[str, Any], ...]


class Summary(_File):
    id: str
    problems: int
    samples: int
    seconds: Number  # None: the log of an imported run does not say
    passed: Mapping[str, Number] | None  # None: nothing was scored
    diversity: Mapping[str, Number]
    imported: Text | None = None  # the log that these numbers were taken from: the run has no records, and never had


F = TypeVar("F", bound=_File)


class _Known(BaseModel):
    """As much of a line as tells whether it is there."""

    schema_version: Literal[2]
    problem: str
    digest: str = ""


class Place(NamedTuple):
    """Where the lines of a problem begin, in bytes."""

    drawn: int
    scored: int | None


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
        return found is not None and (self.imported or self.scored == self.drawn == found.problems >= self.problems)


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
        _write(self.folder / ENVIRONMENT, _line(Environment(starts=(*_starts(self.folder), dict(environment)))))

    def draw(self, *records: Drawn) -> None:
        """On disk, whole, when this returns."""
        self._append(DRAWN, records, self.digests)
        self.digests.update({record.problem: record.digest for record in records})

    def score(self, *records: Scored) -> None:
        """The same for the scores of problems that are drawn."""
        for record in records:
            if record.problem not in self.digests:
                raise StoreError(f"problem {record.problem!r} of run {self.folder.name} has scores and no samples")
        self._append(SCORES, records, self.scored)
        self.scored.update(record.problem for record in records)

    def _append(self, name: str, records: Iterable[Drawn | Scored], known: Iterable[str]) -> None:
        path, lines = self.folder / name, []
        for record in records:
            if record.problem in known:
                raise StoreError(f"problem {record.problem!r} is in {path} already")
            lines.append(_line(record))
        with _writing(path):
            place = _append(path, b"".join(lines))
        if name == DRAWN:
            for record, line in zip(records, lines, strict=True):
                self._places[record.problem] = place
                place += len(line)

    def drawn(self, problems: Iterable[str]) -> list[Drawn]:
        """The samples of problems that are drawn, read from disk."""
        return [_at(self.folder / DRAWN, self._places[problem], Drawn, problem) for problem in problems]

    def scores(self) -> Iterator[Scored]:
        return (record for _, record in iter_lines(self.folder / SCORES, Scored))

    def fail(self, failure: Failure) -> None:
        """Note that a problem could not be drawn or scored."""
        with _writing(self.folder / FAILURES):
            _append(self.folder / FAILURES, _line(failure))

    def forgive(self, stages: Iterable[Stage]) -> None:
        """Forget the failures of these stages: what failed is about to be tried again."""
        path, stages = self.folder / FAILURES, frozenset(stages)
        kept = [line for _, line in _lines(path) if _parse(line, Failure, str(path)).stage not in stages]
        if kept:
            _write(path, b"".join(kept))
            return
        with _reading(path), _writing(path):
            path.unlink(missing_ok=True)

    def adopt(self, sibling: Path, digests: Mapping[str, str]) -> None:
        """Take over what a sibling has drawn of these problems, and what is known of who drew it."""
        lines = {}
        for number, (_, line) in enumerate(_lines(sibling / DRAWN), start=1):
            found = _parse(line, _Known, f"{sibling / DRAWN}, line {number}")
            if found.problem not in self.digests and digests.get(found.problem) == found.digest:
                lines[found.problem] = line
        if not lines:
            return
        earlier, theirs = _starts(self.folder), _starts(sibling)
        _write(self.folder / ENVIRONMENT, _line(Environment(starts=(*earlier, *(s for s in theirs if s not in earlier)))))
        with _writing(self.folder / DRAWN):
            place = _append(self.folder / DRAWN, b"".join(lines.values()))
        for problem, line in lines.items():
            self.digests[problem], self._places[problem] = digests[problem], place
            place += len(line)

    def finish(self, summary: Summary) -> None:
        _write(self.folder / SUMMARY, _line(summary))


@dataclass(frozen=True)
class Store:
    folder: Path

    def check(self) -> None:
        """Can runs be written here? Asked before anything is computed."""
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is a file: a store is a folder, --store DIR names another")
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".probe-{socket.gethostname()}-{os.getpid()}"
            probe.touch()
            probe.unlink()

    @contextmanager
    def open(self, spec: RunSpec, problems: int, digests: Mapping[str, str] = MappingProxyType({})) -> Iterator[Writer]:
        """The run of this spec, new or as it was left, for so many problems; a second process is refused while one holds it.

        digests: of the problems that are asked for, by id. What is stored of them must have these, and what siblings have drawn
        of them is taken over: runs that differ in their scorer alone.

        Nothing is written before all that is there is understood. A run that comes to nothing, say because a model does not
        load, leaves nothing behind.
        """
        folder = self.folder / spec.id
        if folder.exists() and not folder.is_dir():
            raise DamagedRunError(f"{folder} is not a folder: move it away")
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            files = (SPEC, DRAWN, SCORES, ENVIRONMENT, SUMMARY, FAILURES)
            fresh = not any(os.path.lexists(folder / name) for name in files)
            try:
                yield self._begin(folder, spec, problems, digests)
            finally:
                if fresh and not any((folder / name).exists() for name in (DRAWN, SUMMARY, FAILURES)):
                    with suppress(OSError):  # of a folder that holds something else, too
                        for name in (SPEC, ENVIRONMENT, LOCK):
                            (folder / name).unlink(missing_ok=True)
                        folder.rmdir()

    def _begin(self, folder: Path, spec: RunSpec, problems: int, digests: Mapping[str, str]) -> Writer:
        path = folder / SPEC
        known = _read(path, Spec)
        if known is None:
            for name in (DRAWN, SCORES, SUMMARY):
                if (folder / name).exists():
                    raise DamagedRunError(f"{path} is gone, but not {folder / name}: copy it again, or move {folder} away")
        elif known.spec.canonical() != spec.canonical():
            raise DamagedRunError(f"{path} describes another run than {spec.id}: it was edited; move {folder} away")
        writer = _writer(folder)
        for problem in digests.keys() & writer.digests.keys():
            if digests[problem] != writer.digests[problem]:
                raise DamagedRunError(
                    f"{folder / DRAWN}: problem {problem!r} is not what it was: its prompt or target has changed; "
                    "give another --store, or raise the task's version"
                )
        for name in (DRAWN, SCORES):
            _drop_torn_line(folder / name)
        if known is None or known.problems < problems:
            _write(path, _line(Spec(id=spec.id, problems=problems, spec=spec)))
        if digests.keys() - writer.digests.keys():
            for sibling in self._siblings(spec):
                with suppress(DamagedRunError):  # its own trouble
                    writer.adopt(sibling, digests)
        return writer

    def _siblings(self, spec: RunSpec) -> Iterator[Path]:
        """The folders of runs with the same samples and another scorer."""
        for path in sorted(self.folder.glob(f"{spec.draw_id}*/{SPEC}")):
            with suppress(DamagedRunError):
                found = _read(path, Spec) if path.parent.name != spec.id else None
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
            raise StoreError(f"there is no store {self.folder}: `oddlm eval` makes one, --store DIR names another")
        found = {path.parent for name in (SPEC, DRAWN, SUMMARY) for path in self.folder.glob(f"*/{name}")}
        begun = [(_changed(folder / SPEC) or 0, folder.name) for folder in found]
        return [name for _, name in sorted(begun)]

    def find(self, name: str) -> str:
        """The id of a run, given the beginning of it."""
        ids = self.ids()
        found = [i for i in ids if i.startswith(name)] if name else []
        if name in ids:
            found = [name]
        if len(found) != 1:
            some = ", ".join(found or ids) or "none"
            raise StoreError(f"{'several runs begin with' if found else 'there is no run'} {name!r} in {self.folder}: {some}")
        return found[0]

    def head(self, name: str) -> Head:
        """A run by its id or by the beginning of it; its records are counted, not read."""
        return self.exact_head(self.find(name))

    def exact_head(self, name: str) -> Head:
        """The head of a run whose whole id is given: the others are not looked at. What was copied in part is refused."""
        folder = self.folder / name
        spec = _read(folder / SPEC, Spec)
        if spec is None:
            raise DamagedRunError(f"{folder / SPEC} is gone: copy it again, or move {folder} away")
        if not spec.spec.id == spec.id == name:
            raise DamagedRunError(f"{folder / SPEC} describes run {spec.spec.id}: it was edited, or the folder renamed")
        summary = _read(folder / SUMMARY, Summary)
        drawn, scored = _check_whole(folder, summary)
        return Head(folder, spec.spec, spec.problems, drawn, scored, summary, _starts(folder))

    def read(self, name: str) -> Run:
        """A run by its id or by the beginning of it, with all its records, in the order in which they were drawn."""
        head = self.head(name)
        return Run(**vars(head), records=tuple(self.records(head.id)))

    def records(self, name: str) -> Iterator[Record]:
        folder = self.folder / name
        scores = {record.problem: record for _, record in iter_lines(folder / SCORES, Scored)}
        for _, drawn in iter_lines(folder / DRAWN, Drawn):
            yield Record.of(drawn, scores.get(drawn.problem), folder)

    def scores(self, name: str) -> Iterator[Scored]:
        return (record for _, record in iter_lines(self.folder / name / SCORES, Scored))

    def statistics(self, name: str) -> Iterator[Statistics]:
        """The same without the texts."""
        return (record for _, record in iter_lines(self.folder / name / SCORES, Statistics))

    def digests(self, name: str) -> dict[str, str]:
        """Of the problems that are drawn, in that order."""
        return {line.problem: line.digest for _, line in iter_lines(self.folder / name / DRAWN, _Known)}

    def places(self, name: str) -> dict[str, Place]:
        """By problem, in the order in which they were drawn, where its lines begin."""
        folder = self.folder / name
        scored = {line.problem: place for place, line in iter_lines(folder / SCORES, _Known)}
        return {line.problem: Place(place, scored.get(line.problem)) for place, line in iter_lines(folder / DRAWN, _Known)}

    def record(self, name: str, problem: str, place: Place) -> Record:
        """One problem, as `places` has found it."""
        folder = self.folder / name
        scored = None if place.scored is None else _at(folder / SCORES, place.scored, Scored, problem)
        return Record.of(_at(folder / DRAWN, place.drawn, Drawn, problem), scored, folder)

    def failures(self, spec: RunSpec) -> list[Failure]:
        """What failed when the run was last tried."""
        path = self.folder / spec.id / FAILURES
        return [_parse(line, Failure, str(path)) for _, line in _lines(path)]


def _check_whole(folder: Path, told: Summary | None) -> tuple[int, int]:
    """How many problems are drawn and scored; what was copied in part is refused.

    Who writes draws before it scores, and tells last: so that others may look meanwhile, the last is counted first.
    """
    scored, drawn = (_count_lines(folder / name)[0] for name in (SCORES, DRAWN))
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
    found = _read(folder / ENVIRONMENT, Environment)
    return () if found is None else found.starts


def _writer(folder: Path) -> Writer:
    """What is there, understood; a line that is torn is not there."""
    told = _read(folder / SUMMARY, Summary)
    if told is not None and told.imported:
        raise StoreError(
            f"run {folder.name} was imported from {told.imported}: it has no records to go on with; give another --store"
        )
    _check_whole(folder, told)
    _starts(folder)  # now, and not when it is written
    drawn = {line.problem: (line.digest, place) for place, line in iter_lines(folder / DRAWN, _Known)}
    scored = {line.problem for _, line in iter_lines(folder / SCORES, _Known)}
    for problem in scored - drawn.keys():
        raise DamagedRunError(
            f"{folder / SCORES} has scores of problem {problem!r}, and {folder / DRAWN} no samples: copy that again"
        )
    digests = {problem: digest for problem, (digest, _) in drawn.items()}
    places = {problem: place for problem, (_, place) in drawn.items()}
    return Writer(folder, digests, scored, told, places)


def _write(path: Path, content: bytes) -> None:
    with _reading(path):  # nothing but a file may be there
        pass
    try:
        write_whole(path, content)
    except ValueError as error:
        raise StoreError(f"{error}; {KEPT}") from error


def _append(path: Path, content: bytes) -> int:
    """The byte where it begins."""
    file = _open(path, WRITE | os.O_APPEND)
    try:
        size = os.fstat(file).st_size
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:  # not Ctrl-C: a whole line stays, a torn one is dropped by the next start
            os.ftruncate(file, size)
            raise
        return size
    finally:
        os.close(file)


def _drop_torn_line(path: Path) -> None:
    """A line without an end was being written when its process died."""
    _, whole, size = _count_lines(path)
    if whole < size:
        with _writing(path):
            os.truncate(path, whole)


L = TypeVar("L", Drawn, Scored, Statistics, _Known)


def iter_lines(path: Path, kind: type[L]) -> Iterator[tuple[int, L]]:
    """The records of a file one after the other, each with the byte where it begins; an unfinished line is left out."""
    seen: set[str] = set()
    for number, (place, line) in enumerate(_lines(path), start=1):
        record = _parse(line, kind, f"{path}, line {number}")
        if record.problem in seen:
            raise DamagedRunError(f"{path}, line {number}: problem {record.problem!r} is there twice; delete one of the lines")
        seen.add(record.problem)
        yield place, record


def _at(path: Path, place: int, kind: type[L], problem: str) -> L:
    """The line that begins at a byte."""
    line = b""
    with _reading(path) as file:
        if file is not None:
            file.seek(place)
            line = file.readline(MOST_LINE_BYTES)
    record = _parse(line, kind, f"{path}, byte {place}")
    if record.problem != problem:
        raise StoreError(f"{path} has changed: {record.problem!r} stands where {problem!r} was; read the store again")
    return record


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Those that are whole, each with the byte where it begins."""
    place, line = 0, b""
    with _reading(path) as file:
        while file is not None and (line := file.readline(MOST_LINE_BYTES)).endswith(b"\n"):
            yield place, line
            place += len(line)
        if len(line) == MOST_LINE_BYTES:
            raise DamagedRunError(f"{path}: the line at byte {place} is longer than {MOST_LINE_BYTES} bytes; delete it")


def _count_lines(path: Path) -> tuple[int, int, int]:
    """How many are whole, the bytes that those take, and the bytes of the file; they are not read into memory."""
    lines = whole = size = 0
    with _reading(path) as file:
        while file is not None and (chunk := file.read(CHUNK)):
            lines += chunk.count(b"\n")
            whole = size + end + 1 if (end := chunk.rfind(b"\n")) >= 0 else whole
            size += len(chunk)
    return lines, whole, size


def _changed(path: Path) -> int | None:
    """When, in nanoseconds; None for what is gone, or cannot be looked at."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO | None]:
    """A regular file, opened; None where there is nothing."""
    try:
        file = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise DamagedRunError(f"cannot read {path}: {error.strerror}") from error
    try:
        with os.fdopen(file, "rb") as opened:
            yield opened
    except OSError as error:
        raise DamagedRunError(f"cannot read {path}: {error.strerror}") from error


def _open(path: Path, flags: int) -> int:
    """The descriptor of a regular file; what is something else is refused, without waiting for it."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise DamagedRunError(f"{path} is not a file ({error.strerror}): move it away") from error
    kind = stat.S_IFMT(os.fstat(file).st_mode)
    if kind != stat.S_IFREG:
        os.close(file)
        raise DamagedRunError(f"{path} is {KINDS.get(kind, 'something else')}, not a file: move it away")
    return file


def _read(path: Path, kind: type[F]) -> F | None:
    """The content of a file; None where there is none."""
    with _reading(path) as file:
        content = None if file is None else file.read(MOST_BYTES + 1)
    if content is None:
        return None
    if len(content) > MOST_BYTES:
        raise DamagedRunError(f"{path} is longer than {MOST_BYTES} bytes: no run writes so much there; move it away")
    return _parse(content, kind, str(path))


B = TypeVar("B", bound=BaseModel)


def _parse(content: bytes, kind: type[B], where: str) -> B:
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        raise _damage(content, kind, where) from None


def _damage(content: bytes, kind: type[BaseModel], where: str) -> DamagedRunError:
    """What is wrong with a file or line, in one line."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        cure = "copy it again" if kind is Spec else "delete it, and what is missing is made again"
        return DamagedRunError(f"{where}: damaged, not JSON ({error}); {cure}")
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != STORE:
        age = "a newer" if isinstance(version, int) and version > STORE else "an older"
        return DamagedRunError(f"{where}: schema {version}, from {age} oddlm (this one reads {STORE}); give another --store")
    try:
        checked(kind, found)
    except ValueError as error:
        return DamagedRunError(f"{where}: {error}")
    return DamagedRunError(f"{where}: not what oddlm writes; move it away")


def _line(content: BaseModel) -> bytes:
    return content.model_dump_json(exclude_none=isinstance(content, Drawn)).encode() + b"\n"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder / LOCK
    with _writing(path):
        file = _open(path, WRITE)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
            message = f"run {folder.name} is being written by {holder}: wait until it ends, or give another --store"
            raise RunHeldError(message) from None
        with _writing(path):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(file)  # gives the lock back


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {KEPT}") from error

"""Runs on disk: a folder per run, a line per problem. Imports no torch.

    store/<id>/spec.json         what was asked
               environment.json  what ran it: one entry per start
               rows.jsonl        a line per problem with all its samples; a line is there whole or not at all
                                 (an imported run has none: its summary is all that is known)
               failures.jsonl    a line per problem that a sweep could not run, with the traceback; the next one tries again
               summary.json      written last: the run is complete
               lock              held by the process that writes

A process killed at any moment loses the problem in flight; the next one drops what is torn and goes on. Stores are copied and
merged by hand, so anything may stand where a file should: only regular files (links to them too) are opened.
"""

import errno
import fcntl
import json
import math
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from .files import write_whole
from .params import RunSpec, checked

SCHEMA = 1
SPEC, ENVIRONMENT, ROWS, SUMMARY, LOCK = "spec.json", "environment.json", "rows.jsonl", "summary.json", "lock"
FAILURES = "failures.jsonl"
KEPT = "what was finished is kept"
MOST_BYTES = 1 << 26  # of a file that is read at once
MOST_LINE_BYTES = 1 << 30  # of a row
CHUNK = 1 << 20
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
Number = Annotated[float | None, BeforeValidator(lambda x: None if isinstance(x, float) and not math.isfinite(x) else x)]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA


class SampleRow(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    text: Text
    length: int  # tokens before the end token
    finish_reason: str
    tokens: tuple[int, ...] | None = None
    correct: bool | None = None  # None: nothing scores it
    answer: Text | None = None
    detail: Text | None = None


class Row(_File):
    """One problem with all its samples."""

    problem: Text
    prompt: Text
    seed: int
    nfe: int  # per sample that was kept, rounded up: those of a pool that were not have cost as much
    seconds: float  # of drawing its samples
    score_seconds: float
    diversity: Mapping[str, Number]
    samples: tuple[SampleRow, ...]

    @property
    def correct(self) -> list[bool]:
        return [bool(sample.correct) for sample in self.samples]


class Failure(_File):
    """A problem that has no row, and why."""

    problem: Text
    error: Text  # one line
    traceback: Text


class Spec(_File):
    id: str
    problems: int = Field(ge=1, lt=2**31)  # that the run will have when it is complete
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
    imported: Text | None = None  # the log that these numbers were taken from: the run has no rows, and never had

    def holds(self, rows: int) -> bool:
        """Are so many rows all that this speaks of?"""
        return self.imported is not None or rows >= self.problems


F = TypeVar("F", bound=_File)


@dataclass(frozen=True)
class Head:
    """A run as it stands on disk, without its rows."""

    folder: Path
    spec: RunSpec
    problems: int
    done: int
    summary: Summary | None
    starts: tuple[dict[str, Any], ...]

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def complete(self) -> bool:
        """Has the run ended, and are the rows that its summary speaks of still there?"""
        return self.summary is not None and self.summary.holds(self.done)


@dataclass(frozen=True)
class Run(Head):
    rows: tuple[Row, ...]


@dataclass
class Writer:
    """A run that this process holds; nobody else writes to it until it is closed."""

    folder: Path
    rows: dict[str, Row] = field(default_factory=dict)  # by problem

    def start(self, environment: Mapping[str, Any]) -> None:
        """Note what is about to add to this run."""
        path = self.folder / ENVIRONMENT
        earlier = found.starts if (found := _read(path, Environment)) else ()
        _write(path, _line(Environment(starts=(*earlier, dict(environment)))))

    def append(self, *rows: Row) -> None:
        """On disk, whole, when this returns."""
        for row in rows:
            if row.problem in self.rows:
                raise StoreError(f"problem {row.problem!r} is in run {self.folder.name} already")
        with _writing(self.folder / ROWS):
            _append(self.folder / ROWS, b"".join(map(_line, rows)))
        self.rows.update({row.problem: row for row in rows})

    def fail(self, failure: Failure) -> None:
        """Note that a problem could not be run."""
        with _writing(self.folder / FAILURES):
            _append(self.folder / FAILURES, _line(failure))

    def forgive(self) -> None:
        """Forget the failures: what failed is about to be tried again."""
        with _reading(self.folder / FAILURES), _writing(self.folder / FAILURES):
            (self.folder / FAILURES).unlink(missing_ok=True)

    def finish(self, summary: Summary) -> None:
        _write(self.folder / SUMMARY, _line(summary))


@dataclass(frozen=True)
class Store:
    folder: Path

    def check(self) -> None:
        """Can runs be written here? Asked before anything is computed."""
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".probe-{socket.gethostname()}-{os.getpid()}"
            probe.touch()
            probe.unlink()

    @contextmanager
    def open(self, spec: RunSpec, problems: int) -> Iterator[Writer]:
        """The run of this spec, new or as it was left; a second process is refused while one holds it."""
        folder = self.folder / spec.id
        if folder.exists() and not folder.is_dir():
            raise DamagedRunError(f"{folder} is not a folder: move it away")
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            path = folder / SPEC
            known = _read(path, Spec)
            if known is None:
                known = Spec(id=spec.id, problems=problems, spec=spec)
                _write(path, _line(known))
            if known.spec.canonical() != spec.canonical():
                raise DamagedRunError(f"{path} describes another run than {spec.id}: it was edited; move {folder} away")
            told = _read(folder / SUMMARY, Summary)
            if told is not None and told.imported:
                raise StoreError(
                    f"run {spec.id} was imported from {told.imported}: it has no rows to go on with; give another --store"
                )
            _read(folder / ENVIRONMENT, Environment)  # now, and not when it is written
            _drop_torn_line(folder / ROWS)
            yield Writer(folder, {row.problem: row for row in _read_rows(folder / ROWS)})

    def complete(self, spec: RunSpec) -> bool:
        """Has the run ended, and are the rows that its summary speaks of still there?"""
        told = _read(self.folder / spec.id / SUMMARY, Summary)
        return told is not None and told.holds(self.done(spec))

    def done(self, spec: RunSpec) -> int:
        """How many problems of a run are there; they are counted, not read."""
        return _count_lines(self.folder / spec.id / ROWS)[0]

    def ids(self) -> list[str]:
        """Of the runs that have begun, oldest first."""
        if not self.folder.is_dir():
            raise StoreError(f"there is no store {self.folder}: `oddlm eval` makes one, --store DIR names another")
        begun = [(age, path) for path in self.folder.glob(f"*/{SPEC}") if (age := _changed(path)) is not None]
        return [path.parent.name for _, path in sorted(begun)]

    def head(self, name: str) -> Head:
        """A run by its id or by the beginning of it; its rows are counted, not read."""
        ids = self.ids()
        found = [i for i in ids if i.startswith(name)] if name else []
        if name in ids:
            found = [name]
        if len(found) != 1:
            some = ", ".join(found or ids) or "none"
            raise StoreError(f"{'several runs begin with' if found else 'there is no run'} {name!r} in {self.folder}: {some}")
        return self.exact_head(found[0])

    def exact_head(self, name: str) -> Head:
        """The head of a run whose whole id is given: the others are not looked at."""
        folder = self.folder / name
        spec = _read(folder / SPEC, Spec)
        if spec is None:
            raise DamagedRunError(f"{folder / SPEC} is gone: move {folder} away")
        starts = found.starts if (found := _read(folder / ENVIRONMENT, Environment)) else ()
        done = _count_lines(folder / ROWS)[0]
        return Head(folder, spec.spec, spec.problems, done, _read(folder / SUMMARY, Summary), starts)

    def read(self, name: str) -> Run:
        """A run by its id or by the beginning of it, with all its rows."""
        head = self.head(name)
        return Run(**vars(head), rows=tuple(_read_rows(head.folder / ROWS)))

    def row(self, name: str, problem: str, place: int) -> Row:
        """The line of a problem that begins at byte `place` of a run's rows, as `iter_rows` gave it."""
        path = self.folder / name / ROWS
        line = b""
        with _reading(path) as file:
            if file is not None:
                file.seek(place)
                line = file.readline(MOST_LINE_BYTES)
        row = _parse(line, Row, f"{path}, byte {place}")
        if row.problem != problem:
            raise StoreError(f"{path} has changed: {row.problem!r} stands where {problem!r} was; read the store again")
        return row

    def failures(self, spec: RunSpec) -> list[Failure]:
        """What failed when the run was last tried."""
        path = self.folder / spec.id / FAILURES
        return [_parse(line, Failure, str(path)) for _, line in _lines(path)]


def _write(path: Path, content: bytes) -> None:
    with _reading(path):  # nothing but a file may be there
        pass
    try:
        write_whole(path, content)
    except ValueError as error:
        raise StoreError(f"{error}; {KEPT}") from error


def _append(path: Path, content: bytes) -> None:
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
    finally:
        os.close(file)


def _drop_torn_line(path: Path) -> None:
    """A line without an end was being written when its process died."""
    _, whole, size = _count_lines(path)
    if whole < size:
        with _writing(path):
            os.truncate(path, whole)


def _read_rows(path: Path) -> list[Row]:
    return [row for _, row in iter_rows(path)]


def iter_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file one after the other, each with the byte where it begins; a line that is not finished is left out."""
    seen: set[str] = set()
    for number, (place, line) in enumerate(_lines(path), start=1):
        row = _parse(line, Row, f"{path}, line {number}")
        if row.problem in seen:
            raise DamagedRunError(f"{path}, line {number}: problem {row.problem!r} is there twice; delete one of the lines")
        seen.add(row.problem)
        yield place, row


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


def _parse(content: bytes, kind: type[F], where: str) -> F:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedRunError(f"{where}: damaged, not JSON ({error}); delete it, and what is missing is made again") from error
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SCHEMA:
        age = "a newer" if isinstance(version, int) and version > SCHEMA else "an older"
        raise DamagedRunError(f"{where}: schema {version}, from {age} oddlm (this one reads {SCHEMA}); give another --store")
    try:
        return checked(kind, found)
    except ValueError as error:
        raise DamagedRunError(f"{where}: {error}") from error


def _line(content: BaseModel) -> bytes:
    text = json.dumps(content.model_dump(mode="json"), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


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

"""Runs on disk: a folder per run, a line per problem. Imports no torch.

    store/<id>/spec.json         what was asked
               environment.json  what ran it: one entry per start
               rows.jsonl        a line per problem with all its samples; a line is there whole or not at all
                                 (an imported run has none: its summary is all that is known)
               failures.jsonl    a line per problem that a sweep could not run, with the traceback; the next one tries again
               summary.json      written last: the run is complete
               lock              held by the process that writes

A process killed at any moment loses the problem in flight; the next one drops what is torn and goes on.
"""

import fcntl
import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from .files import write_whole
from .params import RunSpec, checked

SCHEMA = 1
SPEC, ENVIRONMENT, ROWS, SUMMARY, LOCK = "spec.json", "environment.json", "rows.jsonl", "summary.json", "lock"
FAILURES = "failures.jsonl"
KEPT = "what was finished is kept"


class StoreError(ValueError):
    """A store that cannot be read or written as it is; the message says what to do."""


class RunHeldError(StoreError):
    """Another process is writing this run."""


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
    problems: int  # that the run will have when it is complete
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
        earlier = _read(path, Environment).starts if path.exists() else ()
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
        with _writing(self.folder / FAILURES):
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
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            path = folder / SPEC
            if not path.exists():
                _write(path, _line(Spec(id=spec.id, problems=problems, spec=spec)))
            if _read(path, Spec).spec.canonical() != spec.canonical():
                raise StoreError(f"{path} describes another run than {spec.id}: it was edited; move {folder} away")
            if (folder / SUMMARY).exists() and (source := _read(folder / SUMMARY, Summary).imported):
                raise StoreError(
                    f"run {spec.id} was imported from {source}: it has no rows to go on with; give another --store"
                )
            with _writing(folder / ROWS):
                _drop_torn_line(folder / ROWS)
            yield Writer(folder, {row.problem: row for row in _read_rows(folder / ROWS)})

    def complete(self, spec: RunSpec) -> bool:
        return (self.folder / spec.id / SUMMARY).exists()

    def done(self, spec: RunSpec) -> int:
        """How many problems of a run are there; they are counted, not read."""
        return _count(self.folder / spec.id / ROWS)

    def ids(self) -> list[str]:
        """Of the runs that have begun, oldest first."""
        if not self.folder.is_dir():
            raise StoreError(f"there is no store {self.folder}: `oddlm eval` makes one, --store DIR names another")
        begun = self.folder.glob(f"*/{SPEC}")
        return [path.parent.name for path in sorted(begun, key=lambda path: (path.stat().st_mtime_ns, path))]

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
        summary = _read(folder / SUMMARY, Summary) if (folder / SUMMARY).exists() else None
        starts = _read(folder / ENVIRONMENT, Environment).starts if (folder / ENVIRONMENT).exists() else ()
        return Head(folder, spec.spec, spec.problems, _count(folder / ROWS), summary, starts)

    def read(self, name: str) -> Run:
        """A run by its id or by the beginning of it, with all its rows."""
        head = self.head(name)
        return Run(**vars(head), rows=tuple(_read_rows(head.folder / ROWS)))

    def row(self, name: str, problem: str, place: int) -> Row:
        """The line of a problem that begins at byte `place` of a run's rows, as `iter_rows` gave it."""
        path = self.folder / name / ROWS
        try:
            with path.open("rb") as file:
                file.seek(place)
                line = file.readline()
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        row = _parse(line, Row, f"{path}, byte {place}")
        if row.problem != problem:
            raise StoreError(f"{path} has changed: {row.problem!r} stands where {problem!r} was; read the store again")
        return row

    def failures(self, spec: RunSpec) -> list[Failure]:
        """What failed when the run was last tried."""
        path = self.folder / spec.id / FAILURES
        return [_parse(line, Failure, str(path)) for line in _lines(path)]


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except ValueError as error:
        raise StoreError(f"{error}; {KEPT}") from error


def _append(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
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
    if not path.exists():
        return
    whole = path.read_bytes().rfind(b"\n") + 1
    if whole < path.stat().st_size:
        os.truncate(path, whole)


def _read_rows(path: Path) -> list[Row]:
    return [row for _, row in iter_rows(path)]


def iter_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file one after the other, each with the byte where it begins; a line that is not finished is left out."""
    if not path.exists():
        return
    seen: set[str] = set()
    place = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            row = _parse(line, Row, f"{path}, line {number}")
            if row.problem in seen:
                raise StoreError(f"{path}, line {number}: problem {row.problem!r} is there twice; delete one of the lines")
            seen.add(row.problem)
            yield place, row
            place += len(line)


def _lines(path: Path) -> list[bytes]:
    """Those that are whole."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _read(path: Path, kind: type[F]) -> F:
    try:
        return _parse(path.read_bytes(), kind, str(path))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _parse(content: bytes, kind: type[F], where: str) -> F:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where}: damaged, not JSON ({error}); delete it, and what is missing is made again") from error
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SCHEMA:
        age = "a newer" if isinstance(version, int) and version > SCHEMA else "an older"
        raise StoreError(f"{where}: schema {version}, from {age} oddlm (this one reads {SCHEMA}); give another --store")
    try:
        return checked(kind, found)
    except ValueError as error:
        raise StoreError(f"{where}: {error}") from error


def _line(content: BaseModel) -> bytes:
    text = json.dumps(content.model_dump(mode="json"), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder / LOCK
    with _writing(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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

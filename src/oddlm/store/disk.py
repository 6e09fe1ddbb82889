"""Files of lines that are there whole or not at all, read and written with care: anything may stand
where a file should.

Only regular files (links to them too) are opened. What is wrong with one is a `DamagedRunError`
that names it.
"""

import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from ..config import checked
from ..files import write_whole
from ..versions import STORE
from .records import (
    LOCK,
    DamagedRunError,
    Drawn,
    Known,
    RunHeldError,
    Scored,
    Spec,
    Statistics,
    StoredFile,
    StoreError,
)

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
F = TypeVar("F", bound=StoredFile)


def write(path: Path, content: bytes) -> None:
    with reading(path):  # nothing but a file may be there
        pass
    try:
        write_whole(path, content)
    except ValueError as error:
        raise StoreError(f"{error}; {KEPT}") from error


def append(path: Path, content: bytes) -> int:
    """The byte where it begins."""
    file = open_regular(path, WRITE | os.O_APPEND)
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


def drop_torn_line(path: Path) -> None:
    """A line without an end was being written when its process died."""
    _, whole, size = count_lines(path)
    if whole < size:
        with writing(path):
            os.truncate(path, whole)


L = TypeVar("L", Drawn, Scored, Statistics, Known)


def iter_lines(path: Path, kind: type[L]) -> Iterator[tuple[int, L]]:
    """The records of a file one after the other, each with the byte where it begins; an unfinished
    line is left out.
    """
    seen: set[str] = set()
    for number, (place, line) in enumerate(lines(path), start=1):
        record = parse(line, kind, f"{path}, line {number}")
        if record.problem in seen:
            raise DamagedRunError(
                f"{path}, line {number}: problem {record.problem!r} is there twice; delete one of the lines"
            )
        seen.add(record.problem)
        yield place, record


def line_at(path: Path, place: int, kind: type[L], problem: str) -> L:
    """The line that begins at a byte."""
    line = b""
    with reading(path) as file:
        if file is not None:
            file.seek(place)
            line = file.readline(MOST_LINE_BYTES)
    record = parse(line, kind, f"{path}, byte {place}")
    if record.problem != problem:
        raise StoreError(
            f"{path} has changed: {record.problem!r} stands where {problem!r} was; read the store again"
        )
    return record


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Those that are whole, each with the byte where it begins."""
    place, line = 0, b""
    with reading(path) as file:
        while file is not None and (line := file.readline(MOST_LINE_BYTES)).endswith(b"\n"):
            yield place, line
            place += len(line)
        if len(line) == MOST_LINE_BYTES:
            raise DamagedRunError(
                f"{path}: the line at byte {place} is longer than {MOST_LINE_BYTES} bytes; delete it"
            )


def count_lines(path: Path) -> tuple[int, int, int]:
    """How many are whole, the bytes that those take, and the bytes of the file; they are not read
    into memory.
    """
    count = whole = size = 0
    with reading(path) as file:
        while file is not None and (chunk := file.read(CHUNK)):
            count += chunk.count(b"\n")
            whole = size + end + 1 if (end := chunk.rfind(b"\n")) >= 0 else whole
            size += len(chunk)
    return count, whole, size


def changed(path: Path) -> int | None:
    """When, in nanoseconds; None for what is gone, or cannot be looked at."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO | None]:
    """A regular file, opened; None where there is nothing."""
    try:
        file = open_regular(path, os.O_RDONLY)
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


def open_regular(path: Path, flags: int) -> int:
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
        raise DamagedRunError(
            f"{path} is {KINDS.get(kind, 'something else')}, not a file: move it away"
        )
    return file


def read(path: Path, kind: type[F]) -> F | None:
    """The content of a file; None where there is none."""
    with reading(path) as file:
        content = None if file is None else file.read(MOST_BYTES + 1)
    if content is None:
        return None
    if len(content) > MOST_BYTES:
        raise DamagedRunError(
            f"{path} is longer than {MOST_BYTES} bytes: no run writes so much there; move it away"
        )
    return parse(content, kind, str(path))


B = TypeVar("B", bound=BaseModel)


def parse(content: bytes, kind: type[B], where: str) -> B:
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
        return DamagedRunError(
            f"{where}: schema {version}, from {age} oddlm (this one reads {STORE}); give another --store"
        )
    try:
        checked(kind, found)
    except ValueError as error:
        return DamagedRunError(f"{where}: {error}")
    return DamagedRunError(f"{where}: not what oddlm writes; move it away")


def as_line(content: BaseModel) -> bytes:
    return content.model_dump_json(exclude_none=isinstance(content, Drawn)).encode() + b"\n"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    path = folder / LOCK
    with writing(path):
        file = open_regular(path, WRITE)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
            message = f"run {folder.name} is being written by {holder}: wait until it ends, or give another --store"
            raise RunHeldError(message) from None
        with writing(path):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(file)  # gives the lock back


@contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {KEPT}") from error

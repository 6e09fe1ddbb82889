"""Read and write the files of a run: atomically, and without trusting what is on disk.

Only regular files and links to them are opened. Anything else, and any damaged file, raises a
`DamagedRunError` that names the file.
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

KEPT = "finished problems are kept"
MOST_BYTES = 1 << 26  # largest file that is read at once
MOST_LINE_BYTES = 1 << 30  # longest record
CHUNK = 1 << 16  # malloc maps larger buffers anew each time, which takes longer than reading them
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
    """Replace a file atomically."""
    with reading(path):  # refuses to replace anything but a regular file
        pass
    try:
        write_whole(path, content)
    except ValueError as error:
        raise StoreError(f"{error}; {KEPT}") from error


def append(path: Path, content: bytes) -> int:
    """Append durably and return the offset at which the content begins."""
    file = open_regular(path, WRITE | os.O_APPEND)
    try:
        size = os.fstat(file).st_size
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        # Not on Ctrl-C: a whole line is kept, and the next start drops a torn one.
        except OSError:
            os.ftruncate(file, size)
            raise
        return size
    finally:
        os.close(file)


def drop_torn_line(path: Path) -> None:
    """Truncate a last line without a newline: its process died while writing it."""
    _, whole, size = count_lines(path)
    if whole < size:
        with writing(path):
            os.truncate(path, whole)


L = TypeVar("L", Drawn, Scored, Statistics, Known)


def iter_lines(path: Path, kind: type[L]) -> Iterator[tuple[int, L]]:
    """Yield the records of a file with their byte offsets, without an unfinished last line."""
    seen: set[str] = set()
    for number, (place, line) in enumerate(lines(path), start=1):
        record = parse(line, kind, f"{path}, line {number}")
        if record.problem in seen:
            raise DamagedRunError(
                f"{path}, line {number}: problem {record.problem!r} appears twice; "
                "delete one of the two lines"
            )
        seen.add(record.problem)
        yield place, record


def line_at(path: Path, place: int, kind: type[L], problem: str) -> L:
    """Return the record whose line begins at the given byte offset."""
    line = b""
    with reading(path) as file:
        if file is not None:
            file.seek(place)
            line = file.readline(MOST_LINE_BYTES)
    record = parse(line, kind, f"{path}, byte {place}")
    if record.problem != problem:
        raise StoreError(
            f"{path} has changed: found problem {record.problem!r} in place of {problem!r}; "
            "read the store again"
        )
    return record


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines with their byte offsets."""
    place, line = 0, b""
    with reading(path) as file:
        while file is not None and (line := file.readline(MOST_LINE_BYTES)).endswith(b"\n"):
            yield place, line
            place += len(line)
        if len(line) == MOST_LINE_BYTES:
            raise DamagedRunError(
                f"{path}: the line at byte {place} exceeds {MOST_LINE_BYTES} bytes; delete it"
            )


def count_lines(path: Path) -> tuple[int, int, int]:
    """Return the number of complete lines, their total bytes, and the size of the file.

    The file is read in chunks, so its size does not matter.
    """
    count = whole = size = 0
    with reading(path) as file:
        while file is not None and (chunk := file.read(CHUNK)):
            count += chunk.count(b"\n")
            whole = size + end + 1 if (end := chunk.rfind(b"\n")) >= 0 else whole
            size += len(chunk)
    return count, whole, size


def changed(path: Path) -> int | None:
    """Return the modification time in nanoseconds, or None if it is not available."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO | None]:
    """Open a regular file for reading; None if there is no file."""
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
    """Return the descriptor of a regular file. Refuse anything else, without blocking on it."""
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
    """Return the content of a file, or None if there is no file."""
    with reading(path) as file:
        content = None if file is None else file.read(MOST_BYTES + 1)
    if content is None:
        return None
    if len(content) > MOST_BYTES:
        raise DamagedRunError(
            f"{path} exceeds {MOST_BYTES} bytes, which no run writes there; move it away"
        )
    return parse(content, kind, str(path))


B = TypeVar("B", bound=BaseModel)


def parse(content: bytes, kind: type[B], where: str) -> B:
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        raise _damage(content, kind, where) from None


def _damage(content: bytes, kind: type[BaseModel], where: str) -> DamagedRunError:
    """Describe what is wrong with a file or line."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        cure = "copy it again" if kind is Spec else "delete it, and a rerun will replace it"
        return DamagedRunError(f"{where}: damaged, not JSON ({error}); {cure}")
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != STORE:
        age = "a newer" if isinstance(version, int) and version > STORE else "an older"
        return DamagedRunError(
            f"{where}: schema {version}, from {age} oddlm (this one reads {STORE}); "
            "use another --store"
        )
    try:
        checked(kind, found)
    except ValueError as error:
        return DamagedRunError(f"{where}: {error}")
    return DamagedRunError(f"{where}: not written by oddlm; move it away")


def as_line(content: BaseModel) -> bytes:
    return content.model_dump_json(exclude_none=isinstance(content, Drawn)).encode() + b"\n"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run, or raise RunHeldError at once if another process holds it."""
    path = folder / LOCK
    with writing(path):
        file = open_regular(path, WRITE)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
            raise RunHeldError(
                f"run {folder.name} is being written by {holder}: "
                "wait until it has finished, or use another --store"
            ) from None
        with writing(path):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(file)  # releases the lock


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the body into a StoreError that names the path."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; {KEPT}") from error

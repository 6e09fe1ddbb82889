"""Writing output files that the user named. This module does not import torch."""

import errno
import os
import secrets
import stat
import sys
import warnings
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

STDOUT = 1
# The folder does not allow a second file or a rename; the file itself may still be writable.
NO_EXCHANGE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


class OutputError(Exception):
    """Standard output cannot be written.

    It is not an OSError because typer and rich handle those of streams, each in its own way.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror}")
        self.errno = error.errno


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: it holds either its old content or the new one, whatever happens.

    Links are followed and remain links. An existing file keeps its mode. Anything that is not a
    regular file (a device, a pipe) is written in place. So is a file in a folder that does not
    allow a second one; only such a file may be left half written. Raises ValueError if the file
    cannot be written, and OutputError if that file is our standard output.
    """
    try:
        if is_stdout(path):
            _write_to_stdout(content)
            return
        found = _stat(path)
        target = Path(os.path.realpath(path))
        if found is not None and not (stat.S_ISREG(found.st_mode) and _is(found, target)):
            _write_into(path, content)
            return
        try:
            _exchange(target, content, found)
        except OSError as error:
            if found is None or error.errno not in NO_EXCHANGE:
                raise
            _write_into(target, content)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error


def check_target(path: Path) -> None:
    """Raise ValueError if `write_whole` could not write the file, as far as that can be known."""
    try:
        found = _stat(path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error
    folder = Path(os.path.realpath(path)).parent
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise ValueError(f"cannot write {path}: it is a folder")
    if found is None and not folder.is_dir():
        raise ValueError(f"cannot write {path}: its folder does not exist")
    if not os.access(folder if found is None else path, os.W_OK):
        raise ValueError(f"cannot write {path}: {os.strerror(errno.EACCES)}")


def make_folder(path: Path) -> None:
    """Make a folder, with those above it; raise ValueError if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"{path} is a file: name a folder") from None
    except OSError as error:
        raise ValueError(f"cannot make the folder {path}: {error.strerror}") from error


def is_stdout(path: Path) -> bool:
    """Whether this file is our standard output (/dev/stdout, or where the shell redirected it)."""
    try:
        return os.path.samestat(path.stat(), os.fstat(STDOUT))
    except OSError:
        return False


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a matplotlib figure in the format of the file's suffix, or as PNG without one."""
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix(".") or "png", **options)
    write_whole(path, picture.getvalue())


def _stat(path: Path) -> os.stat_result | None:
    """Return the status of a file; None if it does not exist, as for a dangling link."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _is(found: os.stat_result, target: Path) -> bool:
    """Whether this is the file at `target`; not so for a deleted file opened through /dev/fd."""
    again = _stat(target)
    return again is not None and os.path.samestat(found, again)


def _exchange(target: Path, content: bytes, found: os.stat_result | None) -> None:
    """Write a temporary file and rename it to the target."""
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        file = os.open(
            part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if found is None else 0o600
        )
        try:
            if found is not None:
                with suppress(PermissionError):
                    os.fchown(file, found.st_uid, found.st_gid)
                os.fchmod(file, found.st_mode & 0o777)
            _write_all(file, content)
            os.fsync(file)
        finally:
            os.close(file)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    with suppress(PermissionError):  # a folder may be writable and not readable
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_into(path: Path, content: bytes) -> None:
    """Write into an existing file in place, without creating anything."""
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOCTTY
    try:
        file = os.open(path, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO or not path.is_fifo():
            raise
        warnings.warn(f"the pipe {path} has no reader yet: waiting for one", stacklevel=3)
        file = os.open(path, flags)
    try:
        os.set_blocking(file, True)
        _write_all(file, content)
    finally:
        os.close(file)


def _write_to_stdout(content: bytes) -> None:
    """Write after the text that was printed.

    A file that is opened again would be written from its start, and a socket cannot be opened.
    """
    try:
        sys.stdout.flush()
        _write_all(STDOUT, content)
    except OSError as error:
        raise OutputError(error) from error


def _write_all(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]

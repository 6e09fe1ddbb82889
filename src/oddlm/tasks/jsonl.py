"""Problems out of files."""

import gzip
import hashlib
import io
import json
import warnings
import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, TypeVar

from ..text import number_of

MOST_BYTES = 1 << 28  # of a file of problems or answers, as it is after unpacking
T = TypeVar("T")
HALVES = ("tune", "test")
EXPLORATION = (
    2026  # seed of the problems of docs/exploration.md, which nothing else was measured on
)


def instead(task: str) -> str:
    """What a message says to people who cannot have a task's own data."""
    return f"give a local file (--data FILE; for `oddlm sweep` --data {task}=FILE)"


def read_jsonl(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of every non-empty line; each row has the fields.

    ValueError names the line.
    """
    raw = _content(path)
    if raw.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(io.BytesIO(raw)) as unpacked:
                raw = _bounded(path, unpacked)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"cannot read {path}: {error}") from error
    rows = 0
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        missing = (
            [name for name in fields if name not in row] if isinstance(row, dict) else list(fields)
        )
        if missing:
            raise ValueError(
                f"{path}, line {number}: wanted an object with {', '.join(fields)}; missing: {', '.join(missing)}"
            )
        rows += 1
        yield number, row
    if not rows:
        raise ValueError(f"{path} holds no problems")


def text_field(path: Path, number: int, row: dict[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise ValueError(f"{path}, line {number}: {name} is {type(value).__name__}, not text")
    return value


def in_half(text: str, split: str | None) -> bool:
    """Is a problem of a file, which has no sides of its own, in this half? None is the whole.

    blake2b with an 8-byte digest, of what the problem asks in UTF-8, read as a big-endian integer:
    even is tune, odd is test.
    """
    if split is None:
        return True
    if split not in HALVES:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(HALVES)}")
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return HALVES[int.from_bytes(digest, "big") % 2] == split


def first(problems: Sequence[T], limit: int | None) -> list[T]:
    """The first `limit` problems; all of them, and a warning, where there are fewer."""
    if limit is None:
        return list(problems)
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if limit > len(problems):
        warnings.warn(
            f"limit {limit} is more than the {number_of(len(problems), 'problem')} to be had; using all",
            stacklevel=3,
        )
    return list(problems[:limit])


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(_content(path)).hexdigest()


def _content(path: Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return _bounded(path, file)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _bounded(path: Path, file: IO[bytes] | gzip.GzipFile) -> bytes:
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path} holds more than {MOST_BYTES >> 20} MiB: give a part of it")
    return content

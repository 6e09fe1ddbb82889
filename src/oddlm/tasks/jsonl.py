"""Reading problems from JSONL files and JSON lists."""

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

MOST_BYTES = 1 << 28  # of a file of problems or answers, after decompression
T = TypeVar("T")
HALVES = ("tune", "test")
# Seeds of the problems of docs/exploration.md and of docs/default.md, each for itself alone.
EXPLORATION, DEFAULT = 2026, 2027


def instead(task: str) -> str:
    """Return the advice for users who cannot get a task's own data."""
    return f"give a local file (--data FILE; for `oddlm sweep` --data {task}=FILE)"


def read_jsonl(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, record) for every non-empty line.

    Raise ValueError, naming the line, if a record is not a JSON object with these fields.
    """
    raw = file_bytes(path)
    if raw.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(io.BytesIO(raw)) as unpacked:
                raw = _bounded(path, unpacked)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"cannot read {path}: {error}") from error
    records = 0
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        records += 1
        yield number, _with_fields(path, number, record, fields)
    if not records:
        raise ValueError(f"{path} is empty: expected one JSON object per line")


def read_rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, record) of a JSONL file, or of a .json file that holds one list.

    Raise ValueError, naming the record, if it is not an object with these fields.
    """
    if path.suffix != ".json":
        yield from read_jsonl(path, fields)
        return
    content = file_bytes(path)
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path} must hold a list of objects")
    for number, record in enumerate(rows, start=1):
        yield number, _with_fields(path, number, record, fields)


def _with_fields(path: Path, number: int, record: Any, fields: Sequence[str]) -> dict[str, Any]:
    there: dict[str, Any] = record if isinstance(record, dict) else {}
    missing = [name for name in fields if name not in there]
    if missing:
        raise ValueError(
            f"{path}, line {number}: expected an object with {', '.join(fields)}; "
            f"missing: {', '.join(missing)}"
        )
    return there


def text_field(path: Path, number: int, record: dict[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise ValueError(f"{path}, line {number}: {name} is {type(value).__name__}, not text")
    return value


def in_half(text: str, split: str | None) -> bool:
    """Return whether a problem of a file without splits is in this half; None is the whole file.

    The half is a hash: the 8-byte blake2b digest of the question in UTF-8, read as a big-endian
    integer. Even is tune, odd is test.
    """
    if split is None:
        return True
    if split not in HALVES:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(HALVES)}")
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return HALVES[int.from_bytes(digest, "big") % 2] == split


def first(problems: Sequence[T], limit: int | None) -> list[T]:
    """Return the first `limit` problems; if there are fewer, warn and return all."""
    if limit is None:
        return list(problems)
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if limit > len(problems):
        warnings.warn(
            f"limit {limit} exceeds the {number_of(len(problems), 'problem')} available; using all",
            stacklevel=3,
        )
    return list(problems[:limit])


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file_bytes(path)).hexdigest()


def file_bytes(path: Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return _bounded(path, file)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _bounded(path: Path, file: IO[bytes] | gzip.GzipFile) -> bytes:
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES >> 20} MiB: give a part of it")
    return content

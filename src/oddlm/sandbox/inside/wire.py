"""Plain data as bytes: the only thing that crosses between a candidate and its judge.

A reader only ever builds built-in values (None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset,
dict), so whatever the other side sends, `==` on the result is Python's own.
No imports beyond `os`: both sides start once per program, and `json` would double the start.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` would add a third to the start of the process
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 1_000_000
MAX_DEPTH = 64
HEADER = 8  # hex digits of a frame's length

_CONTAINERS: tuple[tuple[Any, bytes], ...] = ((list, b"l"), (tuple, b"u"), (set, b"e"), (frozenset, b"z"))
_MAKERS = {tag: kind for kind, tag in _CONTAINERS}


class WireError(ValueError):
    """A value that is not plain data, or bytes that are not a value."""


def encode(value: Any, max_bytes: int = MAX_BYTES) -> bytes:
    out = bytearray()
    _write(value, out, max_bytes, 0)
    return bytes(out)


def decode(data: bytes) -> Any:
    try:
        value, end = _read(data, 0, 0)
    except WireError:
        raise
    except (ValueError, TypeError, OverflowError) as error:  # bad number, bad UTF-8, unhashable key
        raise WireError(f"malformed value: {type(error).__name__}") from None
    if end != len(data):
        raise WireError("bytes after the value")
    return value


def _write(value: Any, out: bytearray, max_bytes: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"a value nested more than {MAX_DEPTH} deep")
    if value is None:
        out += b"n"
    elif isinstance(value, bool):
        out += b"t" if value else b"f"
    elif isinstance(value, int):
        out += b"i%b;" % hex(value).encode()
    elif isinstance(value, float):
        out += b"d%b;" % float.__repr__(value).encode()
    elif isinstance(value, complex):
        out += b"c%b;%b;" % (repr(value.real).encode(), repr(value.imag).encode())
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        out += b"s%d:%b" % (len(data), data)
    elif isinstance(value, (bytes, bytearray)):
        out += b"b%d:%b" % (len(value), bytes(value))
    elif isinstance(value, dict):
        out += b"m%d:" % len(value)
        for key, item in value.items():
            _write(key, out, max_bytes, depth + 1)
            _write(item, out, max_bytes, depth + 1)
    else:
        _write_sequence(value, out, max_bytes, depth)
    if len(out) > max_bytes:
        raise WireError(f"a value of more than {max_bytes} bytes")


def _write_sequence(value: Any, out: bytearray, max_bytes: int, depth: int) -> None:
    for kind, tag in _CONTAINERS:
        if isinstance(value, kind):
            out += b"%b%d:" % (tag, len(value))
            for item in value:
                _write(item, out, max_bytes, depth + 1)
            return
    raise WireError(f"a value of type {type(value).__name__}, which is not plain data")


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise WireError(f"a value nested more than {MAX_DEPTH} deep")
    tag = data[at : at + 1]
    at += 1
    if tag in (b"n", b"t", b"f"):
        return {b"n": None, b"t": True, b"f": False}[tag], at
    if tag == b"i":
        text, at = _upto(data, at, b";")
        return int(text, 16), at
    if tag == b"d":
        text, at = _upto(data, at, b";")
        return float(text), at
    if tag == b"c":
        real, at = _upto(data, at, b";")
        imaginary, at = _upto(data, at, b";")
        return complex(float(real), float(imaginary)), at
    count, at = _count(data, at)
    if tag in (b"s", b"b"):
        chunk = data[at : at + count]
        return (chunk if tag == b"b" else chunk.decode("utf-8", "surrogatepass")), at + count
    items = []
    for _ in range(2 * count if tag == b"m" else count):
        item, at = _read(data, at, depth + 1)
        items.append(item)
    if tag == b"m":
        return dict(zip(items[::2], items[1::2], strict=True)), at
    if tag not in _MAKERS:
        raise WireError(f"unknown tag {tag!r}")
    return _MAKERS[tag](items), at


def _upto(data: bytes, at: int, mark: bytes) -> tuple[bytes, int]:
    end = data.find(mark, at)
    if end < 0:
        raise WireError("cut short")
    return data[at:end], end + 1


def _count(data: bytes, at: int) -> tuple[int, int]:
    end = data.find(b":", at, at + HEADER)
    if end < 0 or not data[at:end].isdigit():
        raise WireError("malformed length")
    count = int(data[at:end])
    if count > len(data) - end - 1:
        raise WireError("cut short")
    return count, end + 1


def send(fd: int, value: Any) -> None:
    payload = encode(value)
    data = memoryview(b"%0*x" % (HEADER, len(payload)) + payload)
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Any:
    """The next value; EOFError when the other side is gone."""
    header = _exactly(fd, HEADER)
    try:
        size = int(header, 16)
    except ValueError:
        raise WireError("malformed frame") from None
    if not 0 <= size <= MAX_BYTES:
        raise WireError(f"a value of more than {MAX_BYTES} bytes")
    return decode(_exactly(fd, size))


def _exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)

"""Values as bytes: everything that crosses between a candidate and its judge.

A reader builds only built-in values (None, bool, int, float, complex, str, bytes, list, tuple, set,
frozenset, dict) and a few values of the standard library (library.py). Whatever the other side
sends, `==` on the result is therefore Python's own. Anything else crosses as the number of an
object that stays where it is; `Ends` decides which objects may, and by default none do.

No imports beyond `os`: both sides start once per program, and `json` would double the start-up time.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing `typing` would add a third to the start-up time
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 16 << 20
MAX_DEPTH = 64
HEADER = 8  # hex digits of a frame's length
COUNT = len(str(MAX_BYTES))  # most digits of a count

_CONTAINERS: tuple[tuple[Any, bytes], ...] = ((list, b"l"), (tuple, b"u"), (set, b"e"), (frozenset, b"z"))
_MAKERS = {tag: kind for kind, tag in _CONTAINERS}
_PLAIN = {int, str, list, dict, tuple, float, set, bytes, frozenset, complex}
_VALUE, _OWN, _BACK = b"v", b"o", b"r"  # of the library; an object of the sender; one of the receiver


class WireError(ValueError):
    """A value that cannot cross, or bytes that are not a value."""


class Ends:
    """What one side does with objects that stay where they are. The base class lets none cross."""

    def keeps(self, value: Any) -> bool:  # noqa: ARG002
        """Does this stay, although it could cross as a value? Asked about subclasses of plain types."""
        return False

    def give(self, value: Any) -> tuple[str, Any]:
        """("own", description) for an object of this side, ("back", number) for one of the other."""
        raise WireError(f"a value of type {type(value).__name__}, which is not plain data")

    def take_own(self, number: Any) -> Any:
        """The object of this side that the other side refers to."""
        raise WireError(f"a reference to an unknown object, {number!r:.20}")

    def take_other(self, about: Any) -> Any:
        """A stand-in for an object of the other side."""
        raise WireError(f"a reference to an unknown object, {about!r:.20}")


NO_OBJECTS = Ends()


def encode(value: Any, max_bytes: int = MAX_BYTES, ends: Ends = NO_OBJECTS) -> bytes:
    out = bytearray()
    _write(value, out, max_bytes, 0, ends)
    return bytes(out)


def decode(data: bytes, ends: Ends = NO_OBJECTS) -> Any:
    try:
        value, end = _read(data, 0, 0, ends)
    except WireError:
        raise
    except (ValueError, TypeError, OverflowError) as error:  # bad number, bad UTF-8, unhashable key
        raise WireError(f"malformed value: {type(error).__name__}") from None
    if end != len(data):
        raise WireError("bytes after the value")
    return value


def _write(value: Any, out: bytearray, max_bytes: int, depth: int, ends: Ends) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"a value nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if value is None:
        out += b"n"
    elif kind is bool:
        out += b"t" if value else b"f"
    elif kind not in _PLAIN and ends.keeps(value):
        _write_object(value, out, max_bytes, depth, ends)
    elif kind not in _PLAIN and _write_library(value, out, max_bytes, depth, ends):
        pass
    elif isinstance(value, int):
        out += b"i%b;" % int.__format__(value, "x").encode()
    elif isinstance(value, float):
        out += b"d%b;" % float.__repr__(value).encode()
    elif isinstance(value, complex):
        out += b"c%b;%b;" % (repr(value.real).encode(), repr(value.imag).encode())
    elif isinstance(value, str):
        data = str.encode(value, "utf-8", "surrogatepass")
        out += b"s%d:%b" % (len(data), data)
    elif isinstance(value, bytes):
        out += b"b%d:%b" % (len(value), bytes(value))
    elif isinstance(value, dict):
        out += b"m%d:" % len(value)
        for key, item in value.items():
            _write(key, out, max_bytes, depth + 1, ends)
            _write(item, out, max_bytes, depth + 1, ends)
    else:
        _write_sequence(value, out, max_bytes, depth, ends)
    if len(out) > max_bytes:
        raise WireError(f"a value of more than {max_bytes} bytes")


def _write_library(value: Any, out: bytearray, max_bytes: int, depth: int, ends: Ends) -> bool:
    """Write a value of the standard library; False if it is not one."""
    from . import library

    parts = library.parts(value)
    if parts is not None:
        out += _VALUE
        _write(parts, out, max_bytes, depth + 1, ends)
    return parts is not None


def _write_sequence(value: Any, out: bytearray, max_bytes: int, depth: int, ends: Ends) -> None:
    for kind, tag in _CONTAINERS:
        if isinstance(value, kind):
            out += b"%b%d:" % (tag, len(value))
            for item in value:
                _write(item, out, max_bytes, depth + 1, ends)
            return
    _write_object(value, out, max_bytes, depth, ends)


def _write_object(value: Any, out: bytearray, max_bytes: int, depth: int, ends: Ends) -> None:
    whose, about = ends.give(value)
    out += _OWN if whose == "own" else _BACK
    _write(about, out, max_bytes, depth + 1, NO_OBJECTS)


def _read(data: bytes, at: int, depth: int, ends: Ends) -> tuple[Any, int]:
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
    if tag in (_VALUE, _OWN, _BACK):
        about, at = _read(data, at, depth + 1, ends if tag == _VALUE else NO_OBJECTS)
        return _built(tag, about, ends), at
    count, at = _count(data, at)
    if tag in (b"s", b"b"):
        chunk = data[at : at + count]
        return (chunk if tag == b"b" else chunk.decode("utf-8", "surrogatepass")), at + count
    items = []
    for _ in range(2 * count if tag == b"m" else count):
        item, at = _read(data, at, depth + 1, ends)
        items.append(item)
    if tag == b"m":
        return dict(zip(items[::2], items[1::2], strict=True)), at
    if tag not in _MAKERS:
        raise WireError(f"unknown tag {tag!r}")
    return _MAKERS[tag](items), at


def _built(tag: bytes, about: Any, ends: Ends) -> Any:
    if tag == _OWN:
        return ends.take_other(about)
    if tag == _BACK:
        return ends.take_own(about)
    from . import library

    try:
        return library.build(about)
    except Exception as error:  # whatever a constructor of the library makes of nonsense
        raise WireError(f"malformed value: {type(error).__name__}") from None


def _upto(data: bytes, at: int, mark: bytes) -> tuple[bytes, int]:
    end = data.find(mark, at)
    if end < 0:
        raise WireError("cut short")
    return data[at:end], end + 1


def _count(data: bytes, at: int) -> tuple[int, int]:
    end = data.find(b":", at, at + COUNT + 1)
    if end < 0 or not data[at:end].isdigit():
        raise WireError("malformed length")
    count = int(data[at:end])
    if count > len(data) - end - 1:
        raise WireError("cut short")
    return count, end + 1


def send(fd: int, value: Any) -> None:
    send_bytes(fd, encode(value))


def send_bytes(fd: int, payload: bytes) -> None:
    data = memoryview(b"%0*x" % (HEADER, len(payload)) + payload)
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int, ends: Ends = NO_OBJECTS) -> Any:
    """The next value; EOFError when the other side is gone."""
    header = _exactly(fd, HEADER)
    try:
        size = int(header, 16)
    except ValueError:
        raise WireError("malformed frame") from None
    if not 0 <= size <= MAX_BYTES:
        raise WireError(f"a value of more than {MAX_BYTES} bytes")
    return decode(_exactly(fd, size), ends)


def _exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)

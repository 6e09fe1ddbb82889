"""Values as bytes: everything that crosses between a candidate and its judge.

A reader builds only built-in values (None, bool, int, float, complex, str, bytes, list, tuple, set,
frozenset, dict) and a few values of the standard library (library.py). Whatever the other side
sends, `==` on the result is therefore Python's own. Anything else crosses as the number of an
object that stays where it is; `Ends` decides which objects may cross so, by default none.

A container that occurs twice in a value is also one container that occurs twice in the copy. With a
`Heap`, containers keep their identity from one message to the next (heap.py).

This module imports only `os`: both sides start once per program, and `json` would double the
start-up time.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing `typing` would add a third to the start-up time
if TYPE_CHECKING:
    from typing import Any

    from .heap import Heap

MAX_BYTES = 16 << 20
MAX_DEPTH = 200
HEADER = 8  # hex digits of a frame's length
COUNT = len(str(MAX_BYTES))  # most digits of a count
MANY = 16  # from this length on, numbers of one type get a compact notation

_TAGS: dict[Any, bytes] = {list: b"l", tuple: b"u", set: b"e", frozenset: b"z", dict: b"m"}
_MAKERS: dict[bytes, Any] = {tag: kind for kind, tag in _TAGS.items()}
_SCALARS = {int, float, str, bytes, complex}
_VALUE, _MUTABLE = b"v", b"w"  # value of the library, immutable or mutable
_OWN, _BACK = b"o", b"r"  # object of the sender, or of the receiver
# Container that is new to the heap, known to the heap, or seen earlier in this message.
_NEW, _KNOWN, _AGAIN = b"h", b"k", b"="


class WireError(ValueError):
    """A value that cannot cross, or bytes that are not a value."""


class Ends:
    """How one side represents objects that stay where they are. The base class lets none cross."""

    def keeps(self, value: Any) -> bool:  # noqa: ARG002
        """Return whether an instance of a subclass of a plain type stays instead of crossing."""
        return False

    def give(self, value: Any) -> tuple[str, Any]:
        """Return ("own", description) for an object of this side, else ("back", number)."""
        raise WireError(f"a value of type {type(value).__name__}, which is not plain data")

    def take_own(self, number: Any) -> Any:
        """Return the object of this side that the other side refers to."""
        raise WireError(f"a reference to an unknown object, {number!r:.20}")

    def take_other(self, about: Any) -> Any:
        """Return a stand-in for an object of the other side."""
        raise WireError(f"a reference to an unknown object, {about!r:.20}")


NO_OBJECTS = Ends()


def encode(
    value: Any, max_bytes: int = MAX_BYTES, ends: Ends = NO_OBJECTS, heap: Heap | None = None
) -> bytes:
    writer = Writer(max_bytes, ends, heap)
    writer.write(value, 0)
    return bytes(writer.out)


class Writer:
    def __init__(self, max_bytes: int, ends: Ends, heap: Heap | None) -> None:
        self.out = bytearray()
        self.max_bytes, self.ends, self.heap = max_bytes, ends, heap
        self.seen: dict[int, int] = {}  # id of a container: its number in this message
        self.containers: list[Any] = []

    def write(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise WireError(f"a value nested more than {MAX_DEPTH} deep")
        kind = type(value)
        if value is None:
            self.out += b"n"
        elif kind is bool:
            self.out += b"t" if value else b"f"
        elif kind in _SCALARS:
            self.scalar(value)
        elif kind in _TAGS:
            self.container(value, depth)
        elif self.ends.keeps(value):
            self.object(value, depth)
        elif not self.library(value, depth):
            self.subclass(value, depth)
        if len(self.out) > self.max_bytes:
            raise WireError(f"a value of more than {self.max_bytes} bytes")

    def scalar(self, value: Any) -> None:
        if isinstance(value, int):
            self.out += b"i%b;" % int.__format__(value, "x").encode()
        elif isinstance(value, float):
            self.out += b"d%b;" % float.__repr__(value).encode()
        elif isinstance(value, str):
            data = str.encode(value, "utf-8", "surrogatepass")
            self.out += b"s%d:%b" % (len(data), data)
        elif isinstance(value, bytes):
            self.out += b"b%d:%b" % (len(value), bytes(value))
        else:
            self.out += b"c%b;%b;" % (repr(value.real).encode(), repr(value.imag).encode())

    def container(self, value: Any, depth: int) -> None:
        mutable = isinstance(value, (list, dict, set))
        if mutable and self.again(value):
            return
        kind = next(kind for kind in _TAGS if isinstance(value, kind))
        tag = _TAGS[kind]
        if kind in (list, tuple) and len(value) >= MANY and self.numbers(tag, value):
            return
        self.out += b"%b%d:" % (tag, len(value))
        for item in value.items() if kind is dict else value:
            for part in item if kind is dict else (item,):
                self.write(part, depth + 1)

    def numbers(self, tag: bytes, value: Any) -> bool:
        """Write many ints or many floats at once; return False for anything else."""
        kinds = set(map(type, value))
        # Each number takes at least a digit and a comma.
        if kinds in ({int}, {float}) and 2 * len(value) > self.max_bytes:
            raise WireError(f"a value of more than {self.max_bytes} bytes")
        if kinds == {int}:
            data = b",".join([b"%x" % number for number in value])
        elif kinds == {float}:
            data = ",".join(map(repr, value)).encode()
        else:
            return False
        self.out += b"%b%b%d:%b" % (tag.upper(), b"i" if int in kinds else b"d", len(data), data)
        return True

    def again(self, value: Any) -> bool:
        """Write a reference if the reader has the container, else announce it as new.

        Return whether the reader has it.
        """
        if self.heap is not None:
            number, known = self.heap.number(value)
            self.out += (b"%b%d;" if known else b"%b%d:") % (_KNOWN if known else _NEW, number)
            return known
        number = self.seen.setdefault(id(value), len(self.containers))
        known = number < len(self.containers)
        if known:
            self.out += b"%b%d;" % (_AGAIN, number)
        else:
            self.containers.append(value)  # also keeps its id from being reused
        return known

    def library(self, value: Any, depth: int) -> bool:
        """Write a value of the standard library; return False if it is not one."""
        from . import library

        parts = library.parts(value)
        if parts is None:
            return False
        mutable = parts[0] in library.MUTABLE
        if mutable and self.again(value):
            return True
        self.out += _MUTABLE if mutable else _VALUE
        # A function among the fields of a named tuple would be a method.
        ends, self.ends = self.ends, NO_OBJECTS
        self.write(parts, depth + 1)
        self.ends = ends
        return True

    def subclass(self, value: Any, depth: int) -> None:
        for kind in (*_SCALARS, *_TAGS):
            if isinstance(value, kind):
                return self.scalar(value) if kind in _SCALARS else self.container(value, depth)
        return self.object(value, depth)

    def object(self, value: Any, depth: int) -> None:
        whose, about = self.ends.give(value)
        self.out += _OWN if whose == "own" else _BACK
        ends, heap, self.ends, self.heap = self.ends, self.heap, NO_OBJECTS, None
        self.write(about, depth + 1)
        self.ends, self.heap = ends, heap


def decode(data: bytes, ends: Ends = NO_OBJECTS, heap: Heap | None = None) -> Any:
    reader = Reader(data, ends, heap)
    try:
        value = reader.read(0)
    except WireError:
        raise
    except (ValueError, TypeError, OverflowError) as error:  # bad number, bad UTF-8, unhashable key
        raise WireError(f"malformed value: {type(error).__name__}") from None
    if reader.at != len(data):
        raise WireError("bytes after the value")
    return value


class Reader:
    def __init__(self, data: bytes, ends: Ends, heap: Heap | None) -> None:
        self.data, self.at = data, 0
        self.ends, self.heap = ends, heap
        self.containers: list[Any] = []

    def read(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise WireError(f"a value nested more than {MAX_DEPTH} deep")
        tag = self.data[self.at : self.at + 1]
        self.at += 1
        if tag in (b"n", b"t", b"f"):
            return {b"n": None, b"t": True, b"f": False}[tag]
        if tag == b"i":
            return int(self.upto(b";"), 16)
        if tag == b"d":
            return float(self.upto(b";"))
        if tag == b"c":
            return complex(float(self.upto(b";")), float(self.upto(b";")))
        if tag in (b"s", b"b"):
            chunk = self.take(self.count())
            return chunk if tag == b"b" else chunk.decode("utf-8", "surrogatepass")
        if tag in (_OWN, _BACK):
            about = self.apart(depth)
            return self.ends.take_other(about) if tag == _OWN else self.ends.take_own(about)
        if tag in (_AGAIN, _KNOWN):
            return self.earlier(tag, int(self.upto(b";")))
        number = None
        if tag == _NEW:
            number, tag = int(self.upto(b":")), self.take(1)
        return (
            self.library(tag, number, depth)
            if tag in (_VALUE, _MUTABLE)
            else self.container(tag, number, depth)
        )

    def container(self, tag: bytes, number: int | None, depth: int) -> Any:
        if tag.lower() not in _MAKERS:
            raise WireError(f"unknown tag {tag!r}")
        if tag in (b"L", b"U"):
            values = self.numbers()
            return self.remember(values, number) if tag == b"L" else tuple(values)
        count = self.count()
        if tag not in (b"l", b"m", b"e"):
            return _MAKERS[tag]([self.read(depth + 1) for _ in range(count)])
        value = self.remember(_MAKERS[tag](), number)
        if tag == b"m":
            for _ in range(count):
                key = self.read(depth + 1)
                value[key] = self.read(depth + 1)
        else:
            items = [self.read(depth + 1) for _ in range(count)]
            value.extend(items) if tag == b"l" else value.update(items)
        return value

    def library(self, tag: bytes, number: int | None, depth: int) -> Any:
        from . import library

        place = len(self.containers)
        if tag == _MUTABLE and number is None:
            self.containers.append(None)  # until it is built, nothing can refer to it
        parts = self.apart(depth, self.heap)
        try:
            value = library.build(parts)
        except Exception as error:  # a constructor may raise anything for malformed parts
            raise WireError(f"malformed value: {type(error).__name__}") from None
        if tag == _MUTABLE and number is None:
            self.containers[place] = value
        return value if number is None else self.remember(value, number)

    def apart(self, depth: int, heap: Heap | None = None) -> Any:
        """Read a part that may not hold objects, nor shared containers unless `heap` is given."""
        before = self.ends, self.heap
        self.ends, self.heap = NO_OBJECTS, heap
        value = self.read(depth + 1)
        self.ends, self.heap = before
        return value

    def remember(self, value: Any, number: int | None) -> Any:
        if number is None:
            self.containers.append(value)
        elif self.heap is None:
            raise WireError("a shared container where none may be")
        else:
            self.heap.add(number, value)
        return value

    def earlier(self, tag: bytes, number: int) -> Any:
        if (
            tag == _AGAIN
            and 0 <= number < len(self.containers)
            and self.containers[number] is not None
        ):
            return self.containers[number]
        if tag == _KNOWN and self.heap is not None:
            return self.heap.get(number)
        raise WireError("a reference to an unknown container")

    def numbers(self) -> Any:
        tag = self.take(1)
        parts = self.take(self.count()).split(b",")
        if tag not in (b"i", b"d"):
            raise WireError("malformed numbers")
        return [int(part, 16) for part in parts] if tag == b"i" else [float(part) for part in parts]

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise WireError("cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def upto(self, mark: bytes) -> bytes:
        end = self.data.find(mark, self.at)
        if end < 0:
            raise WireError("cut short")
        part, self.at = self.data[self.at : end], end + 1
        return part

    def count(self) -> int:
        end = self.data.find(b":", self.at, self.at + COUNT + 1)
        if end < 0 or not self.data[self.at : end].isdigit():
            raise WireError("malformed length")
        count, self.at = int(self.data[self.at : end]), end + 1
        if count > len(self.data) - self.at:
            raise WireError("cut short")
        return count


def send(fd: int, value: Any) -> None:
    send_bytes(fd, encode(value))


def send_bytes(fd: int, payload: bytes) -> None:
    data = memoryview(b"%0*x" % (HEADER, len(payload)) + payload)
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Any:
    """Return the next value; raise EOFError if the other side has ended."""
    return decode(receive_bytes(fd))


def receive_bytes(fd: int) -> bytes:
    header = _exactly(fd, HEADER)
    try:
        size = int(header, 16)
    except ValueError:
        raise WireError("malformed frame") from None
    if not 0 <= size <= MAX_BYTES:
        raise WireError(f"a value of more than {MAX_BYTES} bytes")
    return _exactly(fd, size)


def _exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)

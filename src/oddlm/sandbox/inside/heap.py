"""Containers that both sides know by number; changes of one copy reach the other with a message.

This gives lists, dicts and other containers the identity that they have in plain Python, from one
call to the next.
"""

from __future__ import annotations

from .wire import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Changes = tuple[tuple[int, Any], ...]


class Heap:
    """The shared containers of one side.

    `first` is 0 on one side and 1 on the other, so that both can number containers.
    """

    def __init__(self, first: int) -> None:
        self._next, self._first = first, first
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}  # by id
        self._before: dict[int, Any] = {}  # their content as the other side last saw it

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._numbers

    def __len__(self) -> int:
        return len(self._objects)

    def number(self, value: Any) -> tuple[int, bool]:
        """Return the number of a container, and whether the other side has it already."""
        known = id(value) in self._numbers
        if not known:
            self._keep(self._next, value)
            self._before[self._next] = content(value)
            self._next += 2
        return self._numbers[id(value)], known

    def add(self, number: int, value: Any) -> None:
        """Add a container that the other side has numbered."""
        if number in self._objects or number % 2 == self._first or number < 0:
            raise WireError("a container with the number of another")
        self._keep(number, value)

    def get(self, number: int) -> Any:
        if number not in self._objects:
            raise WireError("a reference to an unknown container")
        return self._objects[number]

    def _keep(self, number: int, value: Any) -> None:
        self._objects[number] = value
        self._numbers[id(value)] = number

    def settle(self) -> None:
        """Record the content of new containers as what the other side last saw."""
        for number, value in self._objects.items():
            if number not in self._before:
                self._before[number] = content(value)

    def changes(self) -> Changes:
        """Return (number, content) of every container changed since the other side last saw it."""
        found = []
        for number, value in self._objects.items():
            now = content(value)
            if not same(self._before.get(number), now):
                self._before[number] = now
                found.append((number, now))
        return tuple(found)

    def apply(self, changes: Any) -> None:
        """Apply the changes of the other side; raise WireError if a container cannot hold them."""
        if not isinstance(changes, tuple):
            raise WireError("malformed changes")
        for change in changes:
            match change:
                case (int(number), bytes() | tuple() as now):
                    value = self.get(number)
                    try:
                        replace(value, now)
                    except (TypeError, ValueError) as error:
                        raise WireError(f"malformed changes: {error}") from None
                    self._before[number] = content(value)
                case _:
                    raise WireError("malformed changes")


def content(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    return tuple(value.items()) if isinstance(value, dict) else tuple(value)


def same(before: Any, now: Any) -> bool:
    """Return whether two contents hold the same objects in the same order."""
    if before is None or len(before) != len(now):
        return False
    if isinstance(now, bytes):
        return bool(before == now)
    for one, two in zip(before, now):  # noqa: B905
        pair = type(one) is tuple and type(two) is tuple and len(one) == len(two) == 2
        if one is not two and not (pair and one[0] is two[0] and one[1] is two[1]):
            return False
    return True


def replace(value: Any, now: Any) -> None:
    """Give a container this content."""
    if isinstance(value, dict):
        dict.clear(value)
        for key, item in now:
            dict.__setitem__(value, key, item)
    elif isinstance(value, set):
        value.clear()
        value.update(now)
    elif isinstance(value, list):
        value[:] = now
    elif isinstance(value, bytearray):
        value[:] = bytes(now)
    elif hasattr(value, "popleft"):
        value.clear()
        value.extend(now)
    else:  # array
        del value[:]
        value.extend(now)

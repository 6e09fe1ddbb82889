"""The judge's stand-ins for objects of the program.

Each does only what its kind allows. As a value a stand-in is nothing but itself: it equals no data, and
whether it is true was said once, when it came. The judge's end of the wire does the asking.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator as Items
    from typing import Any

    from .judge import Candidate

_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
_OTHER = """
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __str__ __repr__ __format__
    __neg__ __pos__ __abs__ __invert__ __int__ __float__ __complex__ __index__ __round__
    __call__ __len__ __getitem__ __setitem__ __delitem__ __contains__ __iter__ __next__ __reversed__
    __enter__ __exit__ __instancecheck__
"""
# The special methods through which the tests may use an object of the program.
DUNDERS = {f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in _BINARY.split()} | set(_OTHER.split())


class Proxy:
    """Something that can only be told from others. Its own attributes have names that no program is likely to use."""

    __slots__ = ("_odd_about", "_odd_by_reference", "_odd_number", "_odd_peer", "_odd_truth")
    _odd_peer: Candidate
    _odd_number: int
    _odd_about: str
    _odd_truth: bool
    _odd_by_reference: bool

    def __init__(self, peer: Candidate, number: int, about: str, truth: bool, by_reference: bool) -> None:
        object.__setattr__(self, "_odd_peer", peer)
        object.__setattr__(self, "_odd_number", number)
        object.__setattr__(self, "_odd_about", about)
        object.__setattr__(self, "_odd_truth", truth)
        object.__setattr__(self, "_odd_by_reference", by_reference)

    def __repr__(self) -> str:
        return f"<{self._odd_about}>"

    def __bool__(self) -> bool:
        return self._odd_truth


class Function(Proxy):
    """Something to call."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._odd_peer.call(self, args, kwargs, shared=self._odd_by_reference)

    def _odd_shared(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it for its effect: what it does to its arguments is done to those of the tests."""
        return self._odd_peer.call(self, args, kwargs, shared=True)

    def __repr__(self) -> str:
        return f"<function {self._odd_about}>"

    @property
    def __name__(self) -> str:
        return self._odd_about


class Iterable(Proxy):
    """Something to iterate over."""

    __slots__ = ()

    def __iter__(self) -> Items[Any]:
        return iter(self._odd_peer.iterate(self))


class Iterator(Proxy):
    """Something that is being iterated over, such as a generator."""

    __slots__ = ()

    def __iter__(self) -> Items[Any]:
        """Ends where the program's own iterator ends."""
        while (found := self._odd_peer.advance(self)) is not None:
            yield found[0]

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """At the end, this raises a StopIteration that the tests have to catch: left alone inside an
        iteration of their own, it would end that one.
        """
        found = self._odd_peer.advance(self, value)
        if found is None:
            raise self._odd_peer.raised(StopIteration())
        return found[0]


class Object(Proxy):
    """An object by reference: attributes, methods and operators are the program's own."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._odd_peer.request(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._odd_peer.request(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        self._odd_peer.request(self, "delete", name)


_classes: dict[frozenset[str], type[Object]] = {}


def object_class(dunders: frozenset[str]) -> type[Object]:
    """A class of stand-ins with exactly these special methods: Python's syntax goes by which exist."""
    if dunders not in _classes:
        methods: dict[str, Any] = {name: _method(name) for name in dunders & DUNDERS}
        if "__len__" in methods:
            methods.setdefault("__bool__", _by_length)
        _classes[dunders] = type("Object", (Object,), {"__slots__": (), **methods})
    return _classes[dunders]


def _by_length(value: Any) -> bool:
    return len(value) > 0


def _method(name: str) -> Callable[..., Any]:
    if name == "__call__":
        return Function.__call__
    if name == "__iter__":
        return Iterable.__iter__
    if name == "__next__":
        return lambda self: Iterator.send(self, None)
    if name == "__exit__":  # the exception itself stays with the judge
        return lambda self, kind, *_: self._odd_peer.request(self, "special", name, (_builtin(kind), None, None))
    return lambda self, *args: self._odd_peer.request(self, "special", name, args)


def _builtin(kind: Any) -> Any:
    """The nearest exception class that both sides have."""
    return None if kind is None else next(one for one in kind.__mro__ if one.__module__ == "builtins")

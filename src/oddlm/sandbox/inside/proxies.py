"""The judge's stand-ins for objects of the program.

Each does only what its kind allows. As a value, a stand-in equals only itself, never data, and its
truth value is fixed when it arrives. The judge's end of the wire sends the requests.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Iterator as Items
    from typing import Any

    from .judge import Candidate

_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
_OTHER = """
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __str__ __repr__ __format__
    __neg__ __pos__ __abs__ __invert__ __int__ __float__ __complex__ __index__ __round__
    __floor__ __ceil__ __trunc__ __bytes__ __fspath__ __length_hint__
    __call__ __len__ __getitem__ __setitem__ __delitem__ __contains__ __iter__ __next__ __reversed__
    __enter__ __exit__ __await__ __instancecheck__ __subclasscheck__
"""
# The special methods through which the tests may use an object of the program.
DUNDERS = {f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in _BINARY.split()} | set(
    _OTHER.split()
)
DESCRIPTIONS = (
    "__name__",
    "__qualname__",
    "__doc__",
    "__dict__",
    "__module__",
    "__annotations__",
    "__defaults__",
)


class Proxy:
    """An object that has only an identity.

    Its own attributes have names that no program is likely to use.
    """

    __slots__ = ("_odd_about", "_odd_by_reference", "_odd_number", "_odd_peer", "_odd_truth")
    _odd_peer: Candidate
    _odd_number: int
    _odd_about: str
    _odd_truth: bool
    _odd_by_reference: bool

    def __init__(
        self, peer: Candidate, number: int, about: str, truth: bool, by_reference: bool
    ) -> None:
        object.__setattr__(self, "_odd_peer", peer)
        object.__setattr__(self, "_odd_number", number)
        object.__setattr__(self, "_odd_about", about)
        object.__setattr__(self, "_odd_truth", truth)
        object.__setattr__(self, "_odd_by_reference", by_reference)

    def __repr__(self) -> str:
        return f"<{self._odd_about}>"

    def __bool__(self) -> bool:
        return self._odd_truth

    def __copy__(self) -> Proxy:
        return self

    def __deepcopy__(self, memo: Any) -> Proxy:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} stays with the program")


class Function(Proxy):
    # A function of the program, with the docstring that it has there.
    __slots__ = ("_odd_doc",)
    _odd_doc: str | None

    def __init__(
        self, peer: Candidate, number: int, about: str, truth: bool, by_reference: bool
    ) -> None:
        super().__init__(peer, number, about, truth, by_reference)
        self._odd_doc = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._odd_peer.call(self, args, kwargs, effect=False)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Bind it as a method of a class of the tests."""
        return self if owner is None else lambda *args, **kwargs: self(owner, *args, **kwargs)

    def _odd_effect(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it for its effect: its changes are applied to the arguments of the tests."""
        return self._odd_peer.call(self, args, kwargs, effect=True)

    def __repr__(self) -> str:
        return f"<function {self._odd_about}>"

    @property
    def __name__(self) -> str:
        return self._odd_about

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self._odd_doc


class Iterable(Proxy):
    """Something to iterate over. A second iteration yields the same items as the first."""

    __slots__ = ("_odd_items", "_odd_source")
    _odd_items: list[Any]
    _odd_source: Any

    def __init__(
        self, peer: Candidate, number: int, about: str, truth: bool, by_reference: bool
    ) -> None:
        super().__init__(peer, number, about, truth, by_reference)
        self._odd_items, self._odd_source = [], None

    def __iter__(self) -> Items[Any]:
        if self._odd_source is None:
            self._odd_source = iter(self._odd_peer.iterate(self))
        place = 0
        while True:
            if place == len(self._odd_items):
                for item in self._odd_source:
                    self._odd_items.append(item)
                    break
                else:
                    return
            yield self._odd_items[place]
            place += 1


class Iterator(Proxy):
    """An iterator of the program, such as a generator."""

    __slots__ = ()

    def __iter__(self) -> Generator[Any, Any, Any]:
        """Iterate to the end of the program's own iterator, and return its return value."""
        sent = None
        while True:
            found, value = self._odd_peer.advance(self, sent)
            if not found:
                return value
            sent = yield value

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._odd_item(*self._odd_peer.advance(self, value))

    def throw(self, error: Any, *_: Any) -> Any:
        return self._odd_item(
            *self._odd_peer.throw(self, error if isinstance(error, BaseException) else error())
        )

    def close(self) -> None:
        self._odd_peer.end_iterator(self)

    def _odd_item(self, found: bool, value: Any) -> Any:
        """Return an item; at the end raise a StopIteration that the tests must catch.

        If they did not catch it, it would end an iteration of theirs.
        """
        if not found:
            raise self._odd_peer.raised(StopIteration(value))
        return value


class Object(Proxy):
    """An object by reference: attributes, methods and operators are the program's own."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in DESCRIPTIONS:
            raise AttributeError(name)
        return self._odd_peer.request(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._odd_peer.request(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        self._odd_peer.request(self, "delete", name)

    def __dir__(self) -> list[str]:
        return list(self._odd_peer.request(self, "dir", ""))

    def __copy__(self) -> Any:
        return self._odd_peer.request(self, "copy", "copy")

    def __deepcopy__(self, memo: Any) -> Any:
        return self._odd_peer.request(self, "copy", "deepcopy")


_classes: dict[frozenset[str], type[Object]] = {}


def object_class(dunders: frozenset[str]) -> type[Object]:
    """Return a class of stand-ins with exactly these special methods.

    Python's syntax depends on which of them exist.
    """
    if dunders not in _classes:
        methods: dict[str, Any] = {name: _method(name) for name in dunders & DUNDERS}
        if "__len__" in methods:
            methods.setdefault("__bool__", _by_length)
        descriptions = {name: property(_description(name)) for name in ("__doc__", "__dict__")}
        _classes[dunders] = type("Object", (Object,), {"__slots__": (), **descriptions, **methods})
    return _classes[dunders]


def _description(name: str) -> Callable[[Any], Any]:
    return lambda self: self._odd_peer.request(self, "get", name)


def _by_length(value: Any) -> bool:
    return len(value) > 0


def _method(name: str) -> Callable[..., Any]:
    if name == "__call__":
        return Function.__call__
    if name == "__iter__":
        return lambda self: iter(self._odd_peer.iterate(self))
    if name == "__next__":
        return lambda self: Iterator._odd_item(self, *self._odd_peer.advance(self))
    if name == "__await__":
        return lambda self: self._odd_peer.wait(self).__await__()
    if name == "__exit__":
        return lambda self, kind, error, trace: self._odd_peer.leave(self, error)  # noqa: ARG005
    if name == "__repr__":
        return lambda self: self._odd_peer.shown(self)
    return lambda self, *args: self._odd_peer.request(self, "special", name, args)

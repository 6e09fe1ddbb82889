"""Values of the standard library on the wire: a name and plain parts, from which they are rebuilt.

A value of a subclass crosses as the nearest class listed here, just as a value of a subclass of a
plain type crosses as that type.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SINGLETONS = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}
# Factories of a defaultdict; others are dropped.
FACTORIES = {"bool", "dict", "float", "int", "list", "set", "str", "tuple"}
MUTABLE = {"bytearray", "array", "Counter", "OrderedDict", "defaultdict", "deque"}
TYPES = FACTORIES | {"bytearray", "bytes", "complex", "frozenset", "object", "range", "type"}


def parts(value: Any) -> tuple[Any, ...] | None:
    """Return (name, part, ...) of a value of the library; None for any other value."""
    if isinstance(value, type):
        name: str = value.__name__
        known = getattr(builtins, name, None) is value and _is_offered(value)
        return ("type", name) if known else None
    if value is Ellipsis or value is NotImplemented:
        return (str(value),)
    fields = getattr(type(value), "_fields", None)
    if isinstance(value, tuple) and isinstance(fields, tuple):
        return ("namedtuple", type(value).__name__, fields, tuple(value))
    for kind in type(value).__mro__:
        take = _PARTS.get((kind.__module__.partition(".")[0], kind.__qualname__))
        if take is not None:
            return (kind.__qualname__, *take(value))
    return None


def build(about: Any) -> Any:
    """Rebuild a value from its `parts`; any exception means that `about` is malformed."""
    name, *rest = about
    return SINGLETONS[name] if name in SINGLETONS else _BUILD[name](*rest)


def _is_offered(kind: Any) -> bool:
    return kind.__name__ in TYPES or issubclass(kind, BaseException)


def _delta(value: Any) -> tuple[int, int, int]:
    return value.days, value.seconds, value.microseconds


def _clock(value: Any) -> tuple[Any, ...]:
    """Return the parts of a time; only the offset of its time zone crosses."""
    offset = value.utcoffset()
    zone = None if offset is None else _delta(offset)
    return value.hour, value.minute, value.second, value.microsecond, zone, value.fold


def _factory(factory: Any) -> str | None:
    name = getattr(factory, "__name__", None)
    return name if name in FACTORIES and getattr(builtins, name) is factory else None


def _items(value: Any) -> tuple[Any, ...]:
    return (tuple(value),)


# (module, class): how to split a value into parts.
_PARTS: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("builtins", "bytearray"): lambda v: (bytes(v),),
    ("builtins", "range"): lambda v: (v.start, v.stop, v.step),
    ("builtins", "slice"): lambda v: (v.start, v.stop, v.step),
    ("builtins", "dict_keys"): _items,
    ("builtins", "dict_values"): _items,
    ("builtins", "dict_items"): _items,
    ("array", "array"): lambda v: (v.typecode, tuple(v)),
    ("collections", "Counter"): lambda v: (tuple(v.items()),),
    ("collections", "OrderedDict"): lambda v: (tuple(v.items()),),
    ("collections", "defaultdict"): lambda v: (_factory(v.default_factory), tuple(v.items())),
    ("collections", "deque"): lambda v: (tuple(v), v.maxlen),
    ("datetime", "datetime"): lambda v: (v.year, v.month, v.day, *_clock(v)),
    ("datetime", "date"): lambda v: (v.year, v.month, v.day),
    ("datetime", "time"): _clock,
    ("datetime", "timedelta"): _delta,
    ("datetime", "timezone"): lambda v: (_delta(v.utcoffset(None)),),
    ("decimal", "Decimal"): lambda v: (str(v),),
    ("fractions", "Fraction"): lambda v: (v.numerator, v.denominator),
    ("pathlib", "PurePosixPath"): lambda v: (str(v),),
    ("re", "Pattern"): lambda v: (v.pattern, v.flags),
    ("types", "SimpleNamespace"): lambda v: (dict(vars(v)),),
    ("uuid", "UUID"): lambda v: (v.int,),
}


def _type(name: str) -> type:
    kind = getattr(builtins, name)
    if not isinstance(kind, type) or not _is_offered(kind):
        raise ValueError(name)
    return kind


def _module(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


def _from(module: str, name: str) -> Callable[..., Any]:
    return lambda *args: getattr(_module(module), name)(*args)


def _zone(offset: Any) -> Any:
    datetime = _module("datetime")
    return None if offset is None else datetime.timezone(datetime.timedelta(*offset))


def _moment(name: str) -> Callable[..., Any]:
    def make(*args: Any) -> Any:
        *numbers, offset, fold = args
        return getattr(_module("datetime"), name)(*numbers, tzinfo=_zone(offset), fold=fold)

    return make


def _default_dict(factory: str | None, content: tuple[Any, ...]) -> Any:
    if factory is not None and factory not in FACTORIES:
        raise ValueError(factory)
    return _module("collections").defaultdict(factory and getattr(builtins, factory), content)


# The name of a class: how to rebuild a value from its parts.
_BUILD: dict[str, Callable[..., Any]] = {
    "type": _type,
    "bytearray": lambda data: bytearray(bytes(data)),
    "range": lambda *args: range(*args),
    "slice": lambda *args: slice(*args),
    "dict_keys": lambda items: dict.fromkeys(items).keys(),
    "dict_values": lambda items: dict(enumerate(items)).values(),
    "dict_items": lambda items: dict(items).items(),
    "array": _from("array", "array"),
    "Counter": lambda items: _module("collections").Counter(dict(items)),
    "OrderedDict": _from("collections", "OrderedDict"),
    "defaultdict": _default_dict,
    "deque": _from("collections", "deque"),
    "namedtuple": lambda name, fields, values: _module("collections").namedtuple(name, fields)(
        *values
    ),
    "datetime": _moment("datetime"),
    "date": _from("datetime", "date"),
    "time": _moment("time"),
    "timedelta": _from("datetime", "timedelta"),
    "timezone": _zone,
    "Decimal": _from("decimal", "Decimal"),
    "Fraction": _from("fractions", "Fraction"),
    "PurePosixPath": _from("pathlib", "PurePosixPath"),
    "Pattern": lambda pattern, flags: _module("re").compile(pattern, flags),
    "SimpleNamespace": lambda content: _module("types").SimpleNamespace(**content),
    "UUID": lambda number: _module("uuid").UUID(int=number),
}

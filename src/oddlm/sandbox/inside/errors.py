"""Exceptions on the wire: class names, arguments and text, from which the reader makes its own."""

from __future__ import annotations

import builtins

from .wire import WireError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    # names of the classes, nearest first; args; text; other attributes; members of a group
    Told = tuple[tuple[str, ...], tuple[Any, ...] | None, str, dict[str, Any], tuple[Any, ...]]

MESSAGE = 300  # characters of a text
ARGUMENTS = 10_000  # bytes
MEMBERS = 16  # of a group, and levels of groups within groups
UNREADABLE: Told = (("Exception",), None, "its message could not be read", {}, ())


def tell(error: BaseException, level: int = 0) -> Told:
    try:
        names = tuple(str(kind.__name__)[:MESSAGE] for kind in type(error).__mro__[:-1])
        found = error.exceptions if isinstance(error, BaseExceptionGroup) and level < MEMBERS else ()
        members = tuple(tell(one, level + 1) for one in found[:MEMBERS])
        args = error.args[:1] if members else error.args
        attributes = {name: value for name, value in vars(error).items() if _is_plain(value)}
        return names, tuple(args) if _is_plain(args) else None, str(error)[:MESSAGE], attributes, members
    except BaseException:
        return UNREADABLE


def _is_plain(value: Any) -> bool:
    try:
        encode(value, ARGUMENTS)
    except WireError:
        return False
    return True


def rebuild(told: Any, classes: Mapping[str, type[BaseException]]) -> BaseException:
    """An exception like the one described. `classes` are those known by name besides the built-in ones.

    What a lying program describes may be anything; WireError if it is not what `tell` says.
    """
    match told:
        case (tuple(names), None | tuple() as args, str(text), dict(attributes), tuple(members)):
            if names and all(isinstance(name, str) for name in (*names, *attributes)):
                return _rebuild(names, args, text, attributes, members, classes)
    raise WireError("a malformed exception")


def _rebuild(
    names: tuple[str, ...],
    args: tuple[Any, ...] | None,
    text: str,
    attributes: dict[str, Any],
    members: tuple[Any, ...],
    classes: Mapping[str, type[BaseException]],
) -> BaseException:
    for name in (*names, "Exception"):
        kind = classes.get(name) or getattr(builtins, name, None)
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            continue
        given = (text,) if args is None else args
        if issubclass(kind, BaseExceptionGroup):
            given = (*given[:1], [rebuild(member, classes) for member in members])
        try:
            error = kind(*given)
            if names[0] != name or str(error)[:MESSAGE] != text:
                error = _subclass(names[0], kind, text)(*given)
        except Exception:  # arguments that this class does not take
            continue
        for attribute, value in attributes.items():
            if not attribute.startswith("_") and not hasattr(error, attribute):
                setattr(error, attribute, value)
        return error
    raise WireError("a malformed exception")


def _subclass(name: str, kind: type[BaseException], text: str) -> type[BaseException]:
    """A class with the name and the text of the program's own."""

    def shown(_: BaseException) -> str:
        return text

    return type(name if name.isidentifier() else "Exception", (kind,), {"__str__": shown})

"""Exceptions on the wire: class names, arguments and text, from which the reader makes its own."""

from __future__ import annotations

import builtins
import sys

from .wire import WireError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Classes = Mapping[str, type[BaseException]]

MESSAGE = 10_000  # characters of a text
ARGUMENTS = 100_000  # bytes
ATTRIBUTES = 64
MEMBERS = 16  # of a group, and levels of groups within groups
CAUSES = 4
SETTABLE = (
    "filename",
    "filename2",
    "value",
    "code",
    "name",
    "path",
    "msg",
)  # that built-in classes have
FIELDS = ("names", "args", "text", "attributes", "members", "cause", "notes")


def tell(error: BaseException, level: int = 0, *, secret: bool = False) -> dict[str, Any]:
    """What the other side needs to know of an exception; if it is `secret`, no more than its class."""
    try:
        names = tuple(
            (str(kind.__module__), str(kind.__name__)) for kind in type(error).__mro__[:-1]
        )
        if secret:
            return {"names": names, "args": (), "text": ""}
        found = (
            error.exceptions if isinstance(error, BaseExceptionGroup) and level < MEMBERS else ()
        )
        members = tuple(tell(one, level + 1) for one in found[:MEMBERS])
        args = error.args[:1] if members else error.args
        cause = error.__cause__ if level < CAUSES else None
        return {
            "names": names,
            "args": tuple(args) if _is_plain(args) else None,
            "text": str(error)[:MESSAGE],
            "attributes": _attributes(error),
            "members": members,
            "cause": None if cause is None else tell(cause, level + 1),
            "notes": tuple(str(note)[:MESSAGE] for note in getattr(error, "__notes__", ())),
        }
    except BaseException:
        return {
            "names": (("builtins", "Exception"),),
            "args": None,
            "text": "its message could not be read",
        }


def _attributes(error: BaseException) -> dict[str, Any]:
    """Plain attributes, of the class too, that a built-in exception does not have; and the file of
    an OSError.
    """
    usual = set(dir(Exception))
    found = {}
    for name in [name for name in dir(error) if name not in usual and not name.startswith("_")][
        :ATTRIBUTES
    ]:
        value = getattr(error, name, None)
        if not callable(value) and _is_plain(value):
            found[name] = value
    return found


def _is_plain(value: Any) -> bool:
    try:
        encode(value, ARGUMENTS)
    except WireError:
        return False
    return True


def rebuild(told: Any, classes: Classes) -> BaseException:
    """An exception like the one described. `classes` are those known by name besides the library's.

    What a lying program describes may be anything; WireError if it is not what `tell` says.
    """
    if not isinstance(told, dict) or not told.keys() <= set(FIELDS):
        raise WireError("a malformed exception")
    names, args, text = told.get("names"), told.get("args"), told.get("text")
    if not (
        isinstance(names, tuple)
        and names
        and all(_is_name(name) for name in names)
        and isinstance(text, str)
    ):
        raise WireError("a malformed exception")
    given = args if isinstance(args, tuple) else (text,)
    bases = _bases(names, classes)
    if issubclass(bases[0], BaseExceptionGroup):
        members = told.get("members")
        given = (
            *given[:1],
            [
                rebuild(member, classes)
                for member in (members if isinstance(members, tuple) else ())
            ],
        )
    error = _make(names[0][1], bases, given, text)
    _set_attributes(error, told.get("attributes"))
    if told.get("cause") is not None:
        error.__cause__ = rebuild(told["cause"], classes)
    for note in told.get("notes") or ():
        error.add_note(str(note))
    return error


def _is_name(name: Any) -> bool:
    return (
        isinstance(name, tuple) and len(name) == 2 and all(isinstance(part, str) for part in name)
    )


def _bases(names: tuple[tuple[str, str], ...], classes: Classes) -> list[type[BaseException]]:
    """The known classes among the names, without those that another of them derives from."""
    known: list[type[BaseException]] = []
    for module, name in names:
        # Of the library only modules that are here already: to import one at a program's wish might
        # do something.
        kind = classes.get(name) or getattr(
            builtins if module == "builtins" else sys.modules.get(module), name, None
        )
        library = module.partition(".")[0] in sys.stdlib_module_names
        if (
            isinstance(kind, type)
            and issubclass(kind, BaseException)
            and (name in classes or library)
        ):
            known += [] if any(issubclass(one, kind) for one in known) else [kind]
    return known or [Exception]


def _make(
    name: str, bases: list[type[BaseException]], given: tuple[Any, ...], text: str
) -> BaseException:
    first = bases[0]
    error: BaseException
    if len(bases) == 1 and first.__name__ == name:
        try:
            error = first(*given)
            if str(error)[:MESSAGE] == text:
                return error
        except Exception:  # arguments that the class does not take
            pass

    def shown(_: BaseException) -> str:
        return text

    for kinds in (tuple(bases), (first,), (Exception,)):
        try:
            kind = type(name if name.isidentifier() else "Exception", kinds, {"__str__": shown})
            error = kind.__new__(kind, *given)
            if not isinstance(error, BaseExceptionGroup):
                error.args = given
            return error
        except Exception:  # bases that do not go together, or arguments that __new__ does not take
            continue
    raise WireError("a malformed exception")


def _set_attributes(error: BaseException, attributes: Any) -> None:
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(name, str) and not name.startswith("_"):
            try:
                if name in SETTABLE or not hasattr(error, name):
                    setattr(error, name, value)
            except Exception:  # of the class's own making, and not to be set
                continue

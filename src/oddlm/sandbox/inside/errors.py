"""Exceptions on the wire: class names, arguments and text, from which the reader rebuilds them."""

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
# Attributes of built-in classes that can be set.
SETTABLE = ("filename", "filename2", "value", "code", "name", "path", "msg")
FIELDS = ("names", "args", "text", "attributes", "members", "cause", "notes")


def describe(error: BaseException, level: int = 0, *, secret: bool = False) -> dict[str, Any]:
    """Describe an exception for the other side; with `secret`, only its class."""
    try:
        names = tuple(
            (str(kind.__module__), str(kind.__name__)) for kind in type(error).__mro__[:-1]
        )
        if secret:
            return {"names": names, "args": (), "text": ""}
        found = (
            error.exceptions if isinstance(error, BaseExceptionGroup) and level < MEMBERS else ()
        )
        members = tuple(describe(one, level + 1) for one in found[:MEMBERS])
        args = error.args[:1] if members else error.args
        cause = error.__cause__ if level < CAUSES else None
        return {
            "names": names,
            "args": tuple(args) if _is_plain(args) else None,
            "text": str(error)[:MESSAGE],
            "attributes": _attributes(error),
            "members": members,
            "cause": None if cause is None else describe(cause, level + 1),
            "notes": tuple(str(note)[:MESSAGE] for note in getattr(error, "__notes__", ())),
        }
    except BaseException:
        return {
            "names": (("builtins", "Exception"),),
            "args": None,
            "text": "its message could not be read",
        }


def _attributes(error: BaseException) -> dict[str, Any]:
    """Return the plain attributes that Exception itself does not have, including class attributes.

    The file of an OSError is among them.
    """
    usual = set(dir(Exception))
    found = {}
    names = [name for name in dir(error) if name not in usual and not name.startswith("_")]
    for name in names[:ATTRIBUTES]:
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


def rebuild(about: Any, classes: Classes) -> BaseException:
    """Return an exception like the one described.

    `classes` are the classes known by name, besides the library's. A hostile program may send
    anything; raise WireError if it is not a result of `describe`.
    """
    if not isinstance(about, dict) or not about.keys() <= set(FIELDS):
        raise WireError("a malformed exception")
    names, args, text = about.get("names"), about.get("args"), about.get("text")
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
        members = about.get("members")
        members = members if isinstance(members, tuple) else ()
        given = (*given[:1], [rebuild(member, classes) for member in members])
    error = _make(names[0][1], bases, given, text)
    _set_attributes(error, about.get("attributes"))
    if about.get("cause") is not None:
        error.__cause__ = rebuild(about["cause"], classes)
    for note in about.get("notes") or ():
        error.add_note(str(note))
    return error


def _is_name(name: Any) -> bool:
    return (
        isinstance(name, tuple) and len(name) == 2 and all(isinstance(part, str) for part in name)
    )


def _bases(names: tuple[tuple[str, str], ...], classes: Classes) -> list[type[BaseException]]:
    """Return the known classes among the names, without those that another one derives from."""
    known: list[type[BaseException]] = []
    for module, name in names:
        # Only modules that are already loaded: importing one that a program names might have
        # side effects.
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
        except Exception:  # incompatible bases, or arguments that __new__ does not take
            continue
    raise WireError("a malformed exception")


def _set_attributes(error: BaseException, attributes: Any) -> None:
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if isinstance(name, str) and not name.startswith("_"):
            try:
                if name in SETTABLE or not hasattr(error, name):
                    setattr(error, name, value)
            except Exception:  # the class does not let it be set
                continue

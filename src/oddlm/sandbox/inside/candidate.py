"""The untrusted side: runs a program, then answers calls of its functions with plain data.

Nothing here is a guard. The program shares this process and may rewrite all of it; the judge believes only values.
"""

from __future__ import annotations

import os
import sys

from .confine import confine, leave_if_alone
from .wire import WireError, decode, encode, receive, send

TYPE_CHECKING = False  # `typing` would add a third to the start of the process
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

MODULE = "candidate"
CUTS = 40  # how often a broken tail may be cut off
MESSAGE = 300


def main(argv: list[str]) -> None:
    requests, replies, *limits = map(int, argv)
    confine(*limits)
    leave_if_alone(1)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        sources, functions, tidy = decode(stdin.read())
    try:
        code = choose(sources, functions) if tidy else compile(sources[0], MODULE, "exec")
        module = type(sys)(MODULE)  # not "__main__": a program's demonstration is not run
        sys.modules[MODULE] = module
        exec(code, module.__dict__)
        missing = [name for name in functions if not callable(module.__dict__.get(name))]
        if missing:
            raise NameError(f"the program defines no function {missing[0]!r}")
    except BaseException as error:
        send(replies, ("error", *describe(error)))
        return
    send(replies, ("ready",))
    while True:
        number, name, args, kwargs = receive(requests)
        send(replies, answer(number, module.__dict__[name], args, kwargs))


def answer(number: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    try:
        value = function(*args, **kwargs)
    except BaseException as error:
        return (number, "raised", *describe(error))
    reply = (number, "returned", value)
    try:
        encode(reply)
    except WireError as error:
        return (number, "not plain", str(error))
    except BaseException as error:
        return (number, "not plain", "a value that raised {}: {}".format(*describe(error)))
    return reply


def describe(error: BaseException) -> tuple[str, str]:
    try:
        return type(error).__name__, str(error)[:MESSAGE]
    except BaseException:
        return "Exception", "its message could not be read"


def choose(sources: tuple[str, ...], functions: tuple[str, ...]) -> CodeType:
    """The first source that is whole; failing that, the first that is whole once its broken tail is cut off."""
    first: BaseException | None = None
    for cuts in (0, CUTS):
        for source in sources:
            try:
                return prepare(source, functions, cuts)
            except (SyntaxError, ValueError, NameError, MemoryError, RecursionError) as error:
                first = first or error
    raise first or SyntaxError("no program")


def prepare(source: str, functions: tuple[str, ...], cuts: int) -> CodeType:
    import ast

    lines = source.splitlines(keepends=True)
    for left in range(cuts, -1, -1):
        try:
            tree = ast.parse("".join(lines))
            tree.body = [node for node in tree.body if not is_prose(node)]
            code = compile(tree, MODULE, "exec")
        except SyntaxError as error:
            if not left or not lines:
                raise
            lines = lines[: min((error.lineno or 1) - 1, len(lines) - 1)]
            continue
        for name in functions:
            require_body(tree, name)
        return code
    raise AssertionError("unreachable")


def is_prose(node: Any) -> bool:
    """A bare word or phrase that happens to parse: it can only raise a NameError."""
    import ast

    if isinstance(node, ast.Expr):
        return not isinstance(node.value, (ast.Call, ast.Constant))
    return isinstance(node, ast.AnnAssign) and node.value is None


def require_body(tree: Any, name: str) -> None:
    """A docstring with nothing after it but other definitions is the prompt's own function, not an answer."""
    import ast

    bound = [node for node in ast.walk(tree) if name in (getattr(node, "name", None), getattr(node, "id", None))]
    bound = [node for node in bound if not isinstance(getattr(node, "ctx", None), ast.Load)]
    bound += [node for node in ast.walk(tree) if isinstance(node, ast.alias) and name in (node.asname, "*")]
    if not bound:
        raise NameError(f"the program defines no function {name!r}")
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    definitions = [node for node in tree.body if isinstance(node, kinds[:2]) and node.name == name]
    stubs = [node for node in definitions[-1:] if ast.get_docstring(node, clean=False) is not None]
    if any(all(isinstance(part, kinds) for part in stub.body[1:]) for stub in stubs):
        raise NameError(f"the program gives {name!r} no body")

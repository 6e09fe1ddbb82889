"""The program that an answer means: which reading of it is whole, and which lines are prose.

Runs on the untrusted side.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

MODULE = "candidate"
CUTS = 40  # how often a broken tail may be cut off


def choose(sources: tuple[str, ...], names: tuple[str, ...]) -> CodeType:
    """The first source that is whole and uses no name that it lacks; failing that, the first that
    is whole; failing that, the first that is whole once its broken tail is cut off.
    """
    first: BaseException | None = None
    for cuts, complete in ((0, True), (0, False), (CUTS, False)):
        for source in sources:
            try:
                return prepare(source, names, cuts, complete)
            except (SyntaxError, ValueError, NameError, MemoryError, RecursionError) as error:
                first = first or error
    raise first or SyntaxError("no program")


def prepare(source: str, names: tuple[str, ...], cuts: int, complete: bool = False) -> CodeType:
    import ast

    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # as Python counts them
    for left in range(cuts, -1, -1):
        try:
            tree = ast.parse("\n".join(lines))
            known = names_bound(tree, inside=False) | set(dir(builtins))
            tree.body = [node for node in tree.body if not is_prose(node, known)]
            code = compile(tree, MODULE, "exec")
        except SyntaxError as error:
            if not left or not lines:
                raise
            lines = lines[: min((error.lineno or 1) - 1, len(lines) - 1)]
            continue
        for name in names:
            require_body(tree, name)
        if complete and not is_complete(tree):
            raise NameError("the program uses names that it does not define")
        return code
    raise AssertionError("unreachable")


def names_bound(tree: Any, *, inside: bool = True) -> set[str]:
    """The names that this code binds, "*" for all of a module's; without `inside`, those of the
    module alone.
    """
    import ast

    bound: set[str] = set()
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name):
            bound |= set() if isinstance(node.ctx, ast.Load) else {node.id}
        elif not isinstance(
            node, ast.keyword
        ):  # definitions, parameters, caught exceptions, patterns
            bound |= {
                found
                for field in ("name", "arg", "rest")
                if isinstance(found := getattr(node, field, None), str)
            }
        own = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
        left += ast.iter_child_nodes(node) if inside or not own else ()
    return bound


def is_complete(tree: Any) -> bool:
    """Does the code bind every name that it uses, somewhere?"""
    import ast

    known = names_bound(tree) | set(dir(builtins)) | {"__name__", "__file__"}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return used <= known or "*" in known


def is_prose(node: Any, known: set[str]) -> bool:
    """A word or phrase that happens to parse: it does nothing, or asks for a name that there is not
    before it does anything.
    """
    import ast

    if isinstance(node, ast.AnnAssign):
        return node.value is None
    if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Constant):
        return False
    parts = list(ast.walk(node.value))
    idle = (ast.Name, ast.Constant, ast.Tuple, ast.BoolOp, ast.expr_context, ast.boolop)
    if all(isinstance(part, idle) for part in parts):
        return True
    missing = any(isinstance(part, ast.Name) and part.id not in known for part in parts)
    if not any(
        isinstance(part, (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
        for part in parts
    ):
        return missing
    first = node.value
    while isinstance(
        first, (ast.Call, ast.Attribute, ast.Subscript)
    ):  # what these stand on is looked up before all else
        first = first.func if isinstance(first, ast.Call) else first.value
    return isinstance(first, ast.Name) and first.id not in known and "*" not in known


def require_body(tree: Any, name: str) -> None:
    """NameError if the program does not bind the name, or binds it to a function that does nothing
    but define and import.
    """
    import ast

    if not {name, "*"} & names_bound(tree):
        raise NameError(f"the program defines no function {name!r}")
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    binding = [node for node in tree.body if {name, "*"} & names_bound(node, inside=False)]
    for node in binding[-1:]:
        if isinstance(node, functions) and all(is_idle(part) for part in node.body):
            raise NameError(f"the program gives {name!r} no body")


def is_idle(node: Any) -> bool:
    """A definition, an import or a text: what a body may begin with, but not all that it consists
    of.
    """
    import ast

    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(
        node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    )

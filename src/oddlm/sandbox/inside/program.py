"""Choose the program that an answer means: the first whole reading, without prose.

This runs on the untrusted side.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

MODULE = "candidate"
CUTS = 40  # how often a broken tail may be cut


def choose(sources: tuple[str, ...], names: tuple[str, ...]) -> CodeType:
    """Return the code of the most plausible source.

    That is the first that is whole and defines all names it uses; failing that, the first that is
    whole; failing that, the first that is whole once its broken tail is cut off.
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
    """Return the names that this code binds, "*" for all names of a module.

    Without `inside`, only names of the module itself count, not those inside its definitions.
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
        elif not isinstance(node, ast.keyword):
            # Definitions, parameters, caught exceptions, patterns.
            bound |= {
                found
                for field in ("name", "arg", "rest")
                if isinstance(found := getattr(node, field, None), str)
            }
        own = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda))
        left += ast.iter_child_nodes(node) if inside or not own else ()
    return bound


def is_complete(tree: Any) -> bool:
    """Return whether the code binds every name that it uses, somewhere."""
    import ast

    known = names_bound(tree) | set(dir(builtins)) | {"__name__", "__file__"}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return used <= known or "*" in known


def is_prose(node: Any, known: set[str]) -> bool:
    """Return whether a statement is prose that happens to parse.

    Prose does nothing, or needs an undefined name before it does anything.
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
    # The object that these apply to is evaluated first.
    while isinstance(first, (ast.Call, ast.Attribute, ast.Subscript)):
        first = first.func if isinstance(first, ast.Call) else first.value
    return isinstance(first, ast.Name) and first.id not in known and "*" not in known


def require_body(tree: Any, name: str) -> None:
    """Raise NameError if the program does not bind the name, or binds it to an empty function.

    An empty function contains only definitions, imports and texts.
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
    """Return whether a statement is a definition, an import or a text.

    A body may begin with these, but must not consist of them.
    """
    import ast

    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(
        node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    )

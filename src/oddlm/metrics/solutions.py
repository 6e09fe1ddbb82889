"""How many correct and different solutions a batch holds.

Solutions are hostile text: they are parsed, never run.
"""

import ast
import textwrap
import warnings
from collections.abc import Iterator, Sequence

from ..syntax import parse
from .words import split_words, word_distances

THRESHOLD = 0.2  # share of the words that must change before two solutions count as different
LONGEST_PROGRAM = 20_000  # characters; longer ones are compared as words
NAME_FIELDS: dict[type[ast.AST], str] = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.alias: "asname",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


def solution_classes(
    solutions: Sequence[str], *, code: bool = False, threshold: float = THRESHOLD
) -> list[int]:
    """Return the class of each solution: 0, 1, ... in order of first appearance.

    A solution is compared with the first member of each class. It joins the first class that it
    does not differ from, or else starts a new one. Two solutions differ if more than `threshold` of
    the words of the longer one would have to change. Two programs differ if their normal forms do
    (`normal_form`); a program that cannot be parsed is compared by its words.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be at least 0 and below 1, not {threshold}")
    forms = [normal_form(solution) if code else None for solution in solutions]
    if None not in forms:
        numbers: dict[str | None, int] = {}
        return [numbers.setdefault(form, len(numbers)) for form in forms]
    words = [split_words(solution) for solution in solutions]
    differ = word_distances(words, words) > threshold  # [n, n]
    firsts: list[int] = []
    classes: list[int] = []
    for i, form in enumerate(forms):
        different = (
            differ[i, j] if form is None or forms[j] is None else form != forms[j] for j in firsts
        )
        number = next((number for number, apart in enumerate(different) if not apart), len(firsts))
        if number == len(firsts):
            firsts.append(i)
        classes.append(number)
    return classes


def normal_form(program: str) -> str | None:
    """Return a form of a Python program that does not depend on layout or choice of names.

    The program may be a whole program or the body of a function; the result is None if it cannot be
    parsed. Formatting, comments, docstrings and annotations of arguments and results are dropped.
    Names that the program itself binds are numbered; names with a meaning elsewhere stay: builtins,
    attributes, class members, keyword arguments. Two programs with equal forms differ in names
    alone. The reverse does not hold: using one name for two things and using two names give
    different forms.
    """
    if len(program) > LONGEST_PROGRAM:
        return None
    for read in (_whole, _body):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as "\d" in a string of the program
                tree = read(program)
            _strip(tree)
            _rename(tree)
            return ast.dump(tree)
        except UNREADABLE:
            continue
    return None


def _whole(program: str) -> ast.Module:
    return parse(textwrap.dedent(program))


def _body(program: str) -> ast.Module:
    """Parse the body of a function whose first line has lost its indentation, and what follows."""
    tree = parse("def _():\n    " + program.lstrip())
    function, *rest = tree.body
    return ast.Module([*getattr(function, "body", ()), *rest], tree.type_ignores)


def _strip(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = [statement for statement in node.body if not _is_bare_string(statement)]


def _is_bare_string(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _rename(tree: ast.AST) -> None:
    """Number the names that the program binds, in the order of `ast.walk`."""
    nodes = list(ast.walk(tree))
    bound = {name for node in nodes for name in _bound(node)} - {
        name for node in nodes for name in _seen_outside(node)
    }
    new: dict[str, str] = {}
    for node in nodes:
        field = NAME_FIELDS.get(type(node), "")
        name = getattr(node, field, None)
        if name in bound:
            setattr(node, field, new.setdefault(name, f"${len(new)}"))
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [
                new.setdefault(name, f"${len(new)}") if name in bound else name
                for name in node.names
            ]


def _bound(node: ast.AST) -> Iterator[str]:
    name = getattr(node, NAME_FIELDS.get(type(node), ""), None)
    if name is not None and not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
        yield name


def _seen_outside(node: ast.AST) -> Iterator[str]:
    """Yield names with a meaning beyond their own scope: keywords, modules, class members."""
    if isinstance(node, ast.keyword) and node.arg:
        yield node.arg
    if isinstance(node, ast.alias) and not node.asname:
        yield node.name.partition(".")[0]
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in [statement] if function else ast.walk(statement):
                yield from _bound(inner)

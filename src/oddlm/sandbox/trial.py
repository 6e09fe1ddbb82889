"""Tests, read before they run: what they want of a program, and what no program could give them.

The tests are trusted, but this side only parses them. The judge runs a compiled form in which every
`except` and `with` reports that it has seen an exception, and in which calls for an effect are marked.
"""

import ast
import builtins
import datetime
import marshal
import symtable
import sys
import types
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeVar
from uuid import UUID

TESTS = "tests"
SINGLETONS = (None, True, False, ...)
VALUES: tuple[type, ...] = (
    *(int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, slice),
    *(Counter, OrderedDict, defaultdict, deque, Decimal, Fraction, PurePosixPath, UUID),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    *(types.GeneratorType, types.FunctionType, types.CoroutineType),
)
ATTRIBUTES = {name for kind in VALUES for name in dir(kind)} | {"_fields", "_asdict", "_replace"}
CATCHING = {"assertRaises": 1, "assertRaisesRegex": 2}  # where the function to call stands among the arguments
Block = TypeVar("Block", ast.With, ast.AsyncWith)


class TestsError(ValueError):
    """Tests that no program could pass; the message begins with the line that is to blame."""

    __test__ = False  # pytest


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests, and what they want of a program (see `read_tests`)."""

    tests: str
    setup: str
    modules: tuple[str, ...]  # of the standard library, used without being imported
    names: tuple[str, ...]  # what the program has to define
    exceptions: tuple[str, ...]  # exception classes of the program
    by_reference: tuple[str, ...]  # those of `names` whose arguments and results are objects


def read_tests(
    tests: str,
    *,
    setup: str = "",
    names: tuple[str, ...] | None = None,
    by_reference: tuple[str, ...] = (),
    defined: tuple[str, ...] = (),
) -> Trial:
    """Find out what tests want of a program. TestsError if they are not Python, or if no program could pass them.

    names: what the program has to define; None is whatever the tests use without defining it.
    by_reference: names whose results the tests use as objects (docs/sandbox.md).
    defined: names that the program is known to define, even if they are built in.
    """
    before, tree = parsed(setup, "setup"), parsed(tests, TESTS)
    objects = tuple(name for name in by_reference if names is None or name in names)
    if names is not None:
        trial = Trial(tests, setup, modules=(), names=names, exceptions=(), by_reference=objects)
        compiled(trial)
        return trial
    wanted = _unbound(tests, setup, (*defined, *objects))
    modules = tuple(name for name in wanted if name not in defined and _is_module(name, tree))
    caught = set(_caught(tree)) - set(objects)
    functions = tuple(name for name in wanted if name not in modules and name not in caught)
    objects = tuple(name for name in functions if name in objects)
    _check(before, tree, functions, objects)
    exceptions = tuple(name for name in wanted if name in caught)
    trial = Trial(tests, setup, modules=modules, names=functions, exceptions=exceptions, by_reference=objects)
    compiled(trial)
    return trial


@lru_cache(maxsize=64)
def compiled(trial: Trial) -> tuple[bytes, bytes]:
    """Setup and tests as marshalled code for the judge, which runs the same Python."""
    return _compiled(trial.setup, "setup"), _compiled(trial.tests, TESTS)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Without warnings (about an invalid escape, say); TestsError for what is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SyntaxError as error:
        raise TestsError(f"line {error.lineno or 1}: {name} cannot be compiled: SyntaxError: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nested too deeply
        raise TestsError(f"line 1: {name} cannot be compiled: {type(error).__name__}: {error}") from None


def parsed(code: str, name: str) -> ast.Module:
    with _reading(name):
        return ast.parse(code, name)


def _compiled(code: str, name: str) -> bytes:
    tree = parsed(code, name)
    with _reading(name):
        watched = ast.fix_missing_locations(_Watched().visit(tree))
        return marshal.dumps(compile(watched, name, "exec", dont_inherit=True))


def _unbound(tests: str, setup: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """The global names that the code uses and does not bind, in order; built-in ones only if they are `wanted`."""
    bound: set[str] = set()
    used: set[str] = set()
    order: list[str] = []
    for code in (setup, tests):
        order += [node.id for node in ast.walk(parsed(code, TESTS)) if isinstance(node, ast.Name)]
        with _reading(TESTS):
            top = symtable.symtable(code, TESTS, "exec")
        for table in _tables(top):
            for symbol in table.get_symbols():
                if table is top or symbol.is_global():
                    changed = symbol.is_assigned() or symbol.is_imported()
                    (bound if changed else used).add(symbol.get_name())
    given = set(dir(builtins)) - set(wanted) | {"__name__"}
    return tuple(dict.fromkeys(name for name in order if name in used - bound - given))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _is_module(name: str, tree: ast.Module) -> bool:
    """Is this a module of the standard library, used as one? Where tests run beside a program, its imports serve them."""
    held = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return name in sys.stdlib_module_names and all(id(node) in held for node in uses)


def _caught(tree: ast.Module) -> Iterator[str]:
    """Names of exception classes: those after `except`, and the first argument of assertRaises() and the like."""
    for node in ast.walk(tree):
        classes: ast.expr | None = None
        if isinstance(node, ast.ExceptHandler):
            classes = node.type
        elif isinstance(node, ast.Call) and node.args and _last_name(node.func) in (*CATCHING, "raises", "suppress"):
            classes = node.args[0]
        if classes is not None:
            yield from (part.id for part in ast.walk(classes) if isinstance(part, ast.Name))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Watched(ast.NodeTransformer):
    """Inserts calls of the judge's own functions (inside/judge.py)."""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_call("__caught__")))
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        return self._watch_body(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AsyncWith:
        return self._watch_body(node)

    def _watch_body(self, node: Block) -> Block:
        self.generic_visit(node)
        handler = ast.ExceptHandler(type=None, name=None, body=[ast.Expr(_call("__caught__")), ast.Raise()])
        node.body = [ast.Try(body=node.body, handlers=[handler], orelse=[], finalbody=[])]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        self.generic_visit(node)
        _share(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None:
            _share(node.left)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        name = _last_name(node.func)
        if isinstance(node.func, ast.Name) and name == "next" and len(node.args) == 2:
            node.func.id = "__next_or__"
        elif name in CATCHING and len(node.args) > CATCHING[name]:
            node.args[CATCHING[name]] = _call("__catching__", node.args[CATCHING[name]])
        return node


def _share(node: ast.expr) -> None:
    """Mark a call whose value is not used: it is made for its effect."""
    if isinstance(node, ast.Call):
        node.func = _call("__shared__", node.func)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def _check(setup: ast.Module, tests: ast.Module, functions: Sequence[str], objects: Sequence[str]) -> None:
    """TestsError for what can be seen, without a program, to fail every program."""
    if not functions:
        raise TestsError("line 1: the tests call no function that a program could define")
    nodes = [*ast.walk(setup), *ast.walk(tests)]
    known = _Known(
        functions=set(functions),
        values=set(functions) - set(objects),
        classes={node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.bases},
        results=_results(nodes),
    )
    for node in nodes:
        objection = known.objection(node)
        if objection:
            raise TestsError(f"line {getattr(node, 'lineno', 1)}: {objection}")


def _results(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Variables that hold nothing but results of one function: their names, and the function's."""
    made: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    made.setdefault(target.id, []).append(_called(node.value))
    stores = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {
        name: calls[0]
        for name, calls in made.items()
        if len(set(calls)) == 1 and len(calls) == stores[name] and name not in parameters
    }


def _called(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _is_single(node: ast.AST) -> bool:
    """Is this the same object on both sides? None, True and the like, and built-in types are."""
    if isinstance(node, ast.Name):
        return isinstance(getattr(builtins, node.id, None), type)
    return isinstance(node, ast.Constant) and node.value in SINGLETONS


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the names in the tests."""

    functions: set[str]  # of the program
    values: set[str]  # those of them that return values
    classes: set[str]  # that the tests define
    results: dict[str, str]

    def objection(self, node: ast.AST) -> str:
        """Why no program can pass this; empty if nothing speaks against it."""
        match node:
            case ast.Import() | ast.ImportFrom():
                return self._import(node)
            case ast.ClassDef(bases=bases):
                found = [base.id for base in bases if isinstance(base, ast.Name) and base.id in self.functions]
                return f"derives a class from {found[0]}, which is the program's" if found else ""
            case ast.Compare(ops=[ast.Is() | ast.IsNot()], left=left, comparators=[right]):
                if {_called(left), _called(right)} & self.values and not (_is_single(left) or _is_single(right)):
                    return "asks for the identity of a result, which is a copy"
            case ast.Attribute(value=value, attr=name) if name not in ATTRIBUTES and self._source(value) in self.values:
                function = self._source(value)
                return f'uses .{name} of what {function}() returns: give "by_reference": ["{function}"] if that is an object'
            case ast.Call(func=ast.Name(id=name), args=args) if name in self.functions:
                found = [self._source(part) for part in args if self._source(part) in self.classes]
                return f"gives {name}() an instance of {found[0]}, which is a class of the tests" if found else ""
            case ast.Call(func=ast.Attribute(value=ast.Name(id="unittest"), attr="main")):
                return "calls unittest.main(), which finds no tests here: call the tests themselves"
        return ""

    def _import(self, node: ast.Import | ast.ImportFrom) -> str:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
        found = [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]
        return f"imports {found[0]}, but the sandbox has only the standard library" if found else ""

    def _source(self, node: ast.AST) -> str:
        """The function or class that this is a result of."""
        return self.results.get(node.id, "") if isinstance(node, ast.Name) else _called(node)

"""Analyse tests before they run: what they need from a program, and whether any could pass.

The tests are trusted, but this side only parses them. The judge runs a compiled form, with calls of
its own functions inserted wherever an `except` or a `with` may catch an exception and wherever a
call is made for its effect.
"""

import ast
import builtins
import marshal
import symtable
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TypeVar

from ..syntax import parse

TESTS = "tests"
# The position of the function to call among the arguments.
CATCHING = {"assertRaises": 1, "assertRaisesRegex": 2}
# Modules of which all names may be imported, because importing them has no side effects.
_STARRED = """
    abc bisect cmath collections contextlib copy dataclasses datetime decimal enum fractions
    functools heapq itertools math numbers operator random re statistics string textwrap time typing
    unittest
"""
STARRED = frozenset(_STARRED.split())
# A program's output, input and imports are in its own process: tests cannot capture or patch them.
APART = {"patch", "redirect_stdout", "redirect_stderr"}
# Classes whose instances cannot be passed to a program.
STAYING = {"StringIO", "BytesIO", "memoryview", "MappingProxyType", "UserList", "ChainMap"}
Block = TypeVar("Block", ast.With, ast.AsyncWith)
Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class TestsError(ValueError):
    """Tests that no program could pass; the message begins with the line at fault."""

    __test__ = False  # tells pytest that this is not a test class


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests, and what they need from a program (see `read_tests`)."""

    tests: str
    setup: str
    modules: tuple[str, ...]  # of the standard library, used without being imported
    names: tuple[str, ...]  # what the program must define
    by_reference: tuple[str, ...]  # those of `names` that are used as objects
    waiting: tuple[str, ...]  # test functions and classes that the tests do not run themselves


def read_tests(
    tests: str,
    *,
    setup: str = "",
    names: tuple[str, ...] | None = None,
    by_reference: tuple[str, ...] = (),
    defined: tuple[str, ...] = (),
) -> Trial:
    """Find out what tests need from a program.

    Raise TestsError if they are not Python, or if no program could pass them.

    names: what the program must define; None is whatever the tests use without defining it.
    by_reference: names whose results the tests use as objects (docs/sandbox.md).
    defined: names that the program is known to define, even if they are builtins.
    """
    before, tree = parsed(setup, "setup"), parsed(tests, TESTS)
    if names is not None:
        objects = tuple(name for name in by_reference if name in names)
        return _checked(Trial(tests, setup, (), names, objects, _waiting(tree)))
    wanted = _unbound((setup, before), (tests, tree), {*defined, *by_reference})
    held = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    loose = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in held
    }
    # Tests that run in the program's process could use its imports; here they get their own.
    modules = tuple(
        n for n in wanted if n in sys.stdlib_module_names and n not in loose and n not in defined
    )
    functions = tuple(name for name in wanted if name not in modules)
    objects = tuple(name for name in functions if name in by_reference)
    _check(before, tree, functions, objects)
    return _checked(Trial(tests, setup, modules, functions, objects, _waiting(tree)))


def _checked(trial: Trial) -> Trial:
    compiled(trial)
    return trial


@lru_cache(maxsize=64)
def compiled(trial: Trial) -> tuple[bytes, bytes]:
    """Return setup and tests as marshalled code for the judge, which runs the same Python."""
    return _compiled(trial.setup, "setup", trial.names), _compiled(trial.tests, TESTS, trial.names)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Suppress warnings (such as invalid escapes); raise TestsError for code that is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SyntaxError as error:
        raise TestsError(
            f"line {error.lineno or 1}: {name} cannot be compiled: SyntaxError: {error.msg}"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nested too deeply
        raise TestsError(
            f"line 1: {name} cannot be compiled: {type(error).__name__}: {error}"
        ) from None


def parsed(code: str, name: str) -> ast.Module:
    with _reading(name):
        return parse(code, name)


def _compiled(code: str, name: str, wanted: Sequence[str]) -> bytes:
    tree = parsed(code, name)
    own = {
        *wanted,
        *(
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ),
    }
    own |= {node.name for node in ast.walk(tree) if isinstance(node, Definition)}
    with _reading(name):
        watched = ast.fix_missing_locations(_Watched(own).visit(tree))
        return marshal.dumps(compile(watched, name, "exec", dont_inherit=True))


def _unbound(
    setup: tuple[str, ast.Module], tests: tuple[str, ast.Module], wanted: set[str]
) -> tuple[str, ...]:
    """Return the global names that the code uses and does not bind, in order.

    Builtins are included only if they are `wanted`.
    """
    bound: set[str] = set()
    used: set[str] = set()
    order: list[str] = []
    for code, tree in (setup, tests):
        before = set(bound)
        order += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        with _reading(TESTS):
            top = symtable.symtable(code, TESTS, "exec")
        for table in _tables(top):
            for symbol in table.get_symbols():
                if table is top or symbol.is_global():
                    changed = symbol.is_assigned() or symbol.is_imported()
                    (bound if changed else used).add(symbol.get_name())
        bound |= _starred(tree)
        early = _used_first(tree) - before
        bound, used = bound - early, used | early
    missing = used - bound - (set(dir(builtins)) - wanted) - {"__name__"}
    return tuple(dict.fromkeys(name for name in order if name in missing))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _starred(tree: ast.Module) -> set[str]:
    """Return the names that `from module import *` binds."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.names[0].name == "*"
            and node.module in STARRED
        ):
            module = import_module(node.module)
            found |= set(
                getattr(module, "__all__", None)
                or [name for name in dir(module) if not name.startswith("_")]
            )
    return found


def _used_first(tree: ast.Module) -> set[str]:
    """Return the names that the module uses before it binds them, as in `f = cache(f)`."""
    early: set[str] = set()
    bound: set[str] = set()
    for statement in tree.body:
        if isinstance(
            statement,
            ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete | ast.Expr | ast.Assert,
        ):
            within = {part.id for node in ast.walk(statement) for part in _targets(node)}
            names = [
                node
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and node.id not in within
            ]
            early |= {node.id for node in names if _reads(node, statement)} - bound
        if isinstance(statement, Definition):
            bound.add(statement.name)
        else:
            bound |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            imported = [node for node in ast.walk(statement) if isinstance(node, ast.alias)]
            bound |= {(node.asname or node.name).partition(".")[0] for node in imported}
    return early - _starred(tree)


def _reads(node: ast.Name, statement: ast.stmt) -> bool:
    return not isinstance(node.ctx, ast.Store) or (
        isinstance(statement, ast.AugAssign) and statement.target is node
    )


def _targets(node: ast.AST) -> list[ast.Name]:
    """Return the names that an expression binds within itself."""
    if isinstance(node, ast.comprehension | ast.NamedExpr):
        return [part for part in ast.walk(node.target) if isinstance(part, ast.Name)]
    if isinstance(node, ast.Lambda):
        return [
            ast.Name(part.arg, ast.Store())
            for part in ast.walk(node.args)
            if isinstance(part, ast.arg)
        ]
    return []


def _waiting(tree: ast.Module) -> tuple[str, ...]:
    """Return the functions test_... and the classes with tests that nothing in the module uses."""
    used = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    main = any(isinstance(node, ast.Attribute) and node.attr == "main" for node in ast.walk(tree))
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            required = len(node.args.posonlyargs + node.args.args) - len(node.args.defaults)
            found += [] if required or node.name in used else [node.name]
        elif isinstance(node, ast.ClassDef) and node.name not in used and not main:
            tests = any(
                isinstance(part, ast.FunctionDef) and part.name.startswith("test")
                for part in node.body
            )
            found += [node.name] if tests else []
    return tuple(found)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


class _Watched(ast.NodeTransformer):
    """Inserts calls of the judge's own functions (inside/judge.py).

    `own`: names that the tests or the program define.
    """

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.watches = 0

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        node.body = [ast.With([ast.withitem(_call("__handling__"))], node.body)]
        return node

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        return self._watch_body(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> list[ast.stmt]:
        return self._watch_body(node)

    def _watch_body(self, node: Block) -> list[ast.stmt]:
        self.generic_visit(node)
        self.watches += 1
        name = f"__watch{self.watches}__"
        node.body = [ast.With([ast.withitem(ast.Name(name, ast.Load()))], node.body)]
        watch = ast.Assign([ast.Name(name, ast.Store())], _call("__watching__"))
        done = ast.Expr(
            ast.Call(ast.Attribute(ast.Name(name, ast.Load()), "done", ast.Load()), [], [])
        )
        return [ast.copy_location(part, node) for part in (watch, node, done)]

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call):
            node.value.func = _call("__effect__", node.value.func)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        name = _last_name(node.func)
        if (
            isinstance(node.func, ast.Name)
            and name == "next"
            and len(node.args) == 2
            and name not in self.own
        ):
            node.func.id = "__next_or__"
        elif (
            name in CATCHING
            and len(node.args) > CATCHING[name]
            and not any(isinstance(a, ast.Starred) for a in node.args)
        ):
            node.args = [node.func, ast.Constant(CATCHING[name]), *node.args]
            node.func = ast.Name("__asserting__", ast.Load())
        return node


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def _check(
    setup: ast.Module, tests: ast.Module, functions: Sequence[str], objects: Sequence[str]
) -> None:
    """Raise TestsError for tests that can be seen to fail every program."""
    if not functions:
        raise TestsError("line 1: the tests use nothing that a program could define")
    nodes = [*ast.walk(setup), *ast.walk(tests)]
    guarded = {id(part) for node in nodes if isinstance(node, ast.Try) for part in ast.walk(node)}
    known = _Known(
        functions=set(functions),
        values=set(functions) - set(objects),
        classes={node.name for node in nodes if isinstance(node, ast.ClassDef) and _stays(node)},
        results=_results(nodes),
    )
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        objection = (
            ""
            if id(node) in guarded and isinstance(node, ast.Import | ast.ImportFrom)
            else known.objection(node, called)
        )
        if objection:
            raise TestsError(f"line {getattr(node, 'lineno', 1)}: {objection}")


def _stays(node: ast.ClassDef) -> bool:
    """Return whether instances of this class cannot be passed to a program."""
    methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return not node.bases and not methods & {"__call__", "__next__"}


def _results(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """Return {variable: function} for variables that hold only results of one function."""
    made: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    made.setdefault(target.id, []).append(_called(node.value))
    stores = Counter(
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {
        name: calls[0]
        for name, calls in made.items()
        if len(set(calls)) == 1 and len(calls) == stores[name] and name not in parameters
    }


def _called(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


_VALUE_TYPES = (
    *(int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range),
    type(iter("")),
)
VALUE_METHODS = {name for kind in _VALUE_TYPES for name in dir(kind)}
FUNCTION_ATTRIBUTES = {"__name__", "__doc__", "__call__"}


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known about the names in the tests."""

    functions: set[str]  # of the program
    values: set[str]  # those of them that return values
    classes: set[str]  # of the tests, whose instances cannot be passed to a program
    results: dict[str, str]  # variable: the function that its values come from

    def objection(self, node: ast.AST, called: set[int]) -> str:
        """Return why no program can pass this; empty if there is no objection."""
        match node:
            case ast.Import() | ast.ImportFrom():
                return self._import(node)
            case ast.ClassDef(bases=bases):
                found = [
                    base.id
                    for base in bases
                    if isinstance(base, ast.Name) and base.id in self.functions
                ]
                return f"derives a class from {found[0]}, which is the program's" if found else ""
            case ast.Compare(ops=[ast.Is()], left=left, comparators=[right]):
                for result, other in ((left, right), (right, left)):
                    if (
                        _called(result) in self.values
                        and isinstance(other, ast.Name)
                        and other.id in _arguments(result)
                    ):
                        return "asks whether a result is an argument, but results are copies"
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in self.values:
                if name not in FUNCTION_ATTRIBUTES and (
                    name.startswith("__") or not _is_value_method(name)
                ):
                    return f"uses .{name} of {owner}: give {_hint(owner)} if that is an object"
            case ast.Attribute(value=value, attr=name, ctx=use) if (
                owner := self._source(value)
            ) in self.values:
                if (id(node) in called and not _is_value_method(name)) or isinstance(
                    use, ast.Store
                ):
                    hint = _hint(owner)
                    return (
                        f"uses .{name} of what {owner}() returns: give {hint} if that is an object"
                    )
            case ast.withitem(context_expr=value) if (owner := self._source(value)) in self.values:
                return f"enters what {owner}() returns: give {_hint(owner)}"
            case ast.AsyncFor(iter=value) if self._source(value) in self.functions:
                return "iterates asynchronously over something of the program, which stays there"
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if (
                name in self.functions
            ):
                given = [*args, *(keyword.value for keyword in keywords)]
                inside = [
                    part
                    for one in given
                    for part in ([one] if not isinstance(one, ast.List | ast.Tuple) else one.elts)
                ]
                found = [
                    made for part in inside if (made := self._made(part)) in self.classes | STAYING
                ]
                return (
                    f"gives {name}() an instance of {found[0]}, which stays with the tests"
                    if found
                    else ""
                )
            case ast.Call(func=func) if _last_name(func) in APART:
                name = _last_name(func)
                return f"uses {name}(), but a program's output, input and imports are its own"
        return ""

    def _import(self, node: ast.Import | ast.ImportFrom) -> str:
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
        )
        found = [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]
        if (
            not found
            and isinstance(node, ast.ImportFrom)
            and node.names[0].name == "*"
            and node.module not in STARRED
        ):
            return f"imports all names of {node.module}: name those that are used"
        return f"imports {found[0]}, but the sandbox has only the standard library" if found else ""

    def _made(self, node: ast.AST) -> str:
        """Return the class that this is an instance of, as far as the text shows it."""
        return self._source(node) or (_last_name(node.func) if isinstance(node, ast.Call) else "")

    def _source(self, node: ast.AST) -> str:
        """Return the function or class that this is a result of, or an empty string."""
        return self.results.get(node.id, "") if isinstance(node, ast.Name) else _called(node)


def _hint(name: str) -> str:
    return f'"by_reference": ["{name}"]'


def _arguments(call: ast.AST) -> set[str]:
    return (
        {arg.id for arg in call.args if isinstance(arg, ast.Name)}
        if isinstance(call, ast.Call)
        else set()
    )


@lru_cache(maxsize=1)
def _library_methods() -> set[str]:
    kinds = {
        "array": ("array",),
        "collections": ("Counter", "OrderedDict", "defaultdict", "deque"),
        "datetime": ("datetime", "date", "time", "timedelta"),
        "decimal": ("Decimal",),
        "fractions": ("Fraction",),
        "pathlib": ("PurePosixPath",),
        "types": ("GeneratorType", "FunctionType", "CoroutineType"),
        "uuid": ("UUID",),
    }
    found = {
        name
        for module, names in kinds.items()
        for kind in names
        for name in dir(getattr(import_module(module), kind))
    }
    return found | {"_asdict", "_replace"}


def _is_value_method(name: str) -> bool:
    return name in VALUE_METHODS or name in _library_methods()

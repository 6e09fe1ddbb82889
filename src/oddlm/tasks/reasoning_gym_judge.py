"""reasoning-gym in a process of its own (judges.py): makes problems, and scores answers.

Some of its scorers evaluate an answer as Python, by eval() or by SymPy. An audit hook, through
which Python announces all that it is about to compile or run, lets only arithmetic pass while a
scorer runs: numbers, texts, lists, and calls of mathematical functions.
"""

import ast
import base64
import itertools
import json
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .jsonl import in_half

TRIES = 50  # entries to look at for one that is wanted
_NODES = (
    *(ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Name, ast.Load, ast.Call),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
)
# SymPy reads x**2/3 as Symbol('x')**Integer(2)/Integer(3).
_NAMES = """
    Symbol Integer Float Rational exp log ln sqrt cbrt Abs factorial sin cos tan cot sec csc asin
    acos atan acot asec acsc sinh cosh tanh coth sech csch asinh acosh atanh acoth asech acsch
"""
_FUNCTIONS = frozenset(_NAMES.split())
_OWN = (b"from sympy import *", "from sympy import *")  # what SymPy itself runs before it reads
# The standard library makes classes of text, too, when a module is first imported.
_MAKING_CLASSES = ("collections", "dataclasses")
_HARMLESS = ("os.listdir", "os.scandir")  # what an import needs
_TOUCHING = ("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pty.")


class RefusedError(Exception):
    """An answer would have run as a program."""


class _Doors:
    """Whether a scorer runs, and what was compiled meanwhile."""

    closed = False

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.closed:
            return
        if event == "compile":
            source, file = arguments
            if file == "<string>" and source not in (None, *_OWN) and not _in_library():
                self.check(source)
        elif event == "exec":
            file = arguments[0].co_filename
            if file.startswith("<") and not file.startswith("<frozen") and file != "<string>":
                raise RefusedError(file)
        elif event.startswith(_TOUCHING) and event not in _HARMLESS:
            raise RefusedError(event)

    def check(self, source: Any) -> None:
        self.closed = False  # reading the text is compiling, too
        try:
            nodes = list(ast.walk(ast.parse(source, mode="eval")))
        finally:
            self.closed = True
        for node in nodes:
            if not isinstance(node, _NODES) or (isinstance(node, ast.Call) and not _known(node)):
                raise RefusedError(type(node).__name__)


def _known(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in _FUNCTIONS and not call.keywords


def _in_library() -> bool:
    # The hook's own two frames, then the one that compiles.
    return sys._getframe(2).f_globals.get("__name__") in _MAKING_CLASSES


def judge() -> Callable[..., Any]:
    import reasoning_gym
    import sympy

    sympy.simplify("x")  # imports what it needs
    doors = _Doors()
    sys.addaudithook(doors.watch)
    known = reasoning_gym.factory.DATASETS

    @lru_cache(maxsize=8)
    def dataset(name: str, options: str) -> Any:
        return reasoning_gym.create_dataset(name, **json.loads(options))

    def make(
        name: str, options: str, split: str | None, count: int
    ) -> list[tuple[int, str, str | None, str]]:
        """Return (index, question, answer, the whole entry) of the first entries of a half.

        The dataset is new: some depend on which entries were asked for before.
        """
        fresh = dataset.__wrapped__(name, options)
        found = ((i, fresh[i]) for i in range(TRIES * count + TRIES))
        wanted = ((i, entry) for i, entry in found if in_half(entry["question"], split))
        return [
            (i, entry["question"], entry["answer"], base64.b64encode(pickle.dumps(entry)).decode())
            for i, entry in itertools.islice(wanted, count)
        ]

    def score(name: str, options: str, entry: str, answer: str) -> float:
        own = dataset(name, options)
        of_answer = pickle.loads(base64.b64decode(entry))
        doors.closed = True
        try:
            return float(own.score_answer(answer, of_answer))
        finally:
            doors.closed = False

    def answer(do: str, *request: Any) -> Any:
        if do == "names":
            return {name: _fields(config) for name, (_, config) in known.items()}
        try:
            return {"done": make(*request) if do == "make" else score(*request)}
        except Exception as error:  # whatever a generator raises
            return {"error": f"{type(error).__name__}: {error}"}

    return answer


def _fields(config: Any) -> list[str]:
    return [name for name in config.__dataclass_fields__ if name not in ("seed", "size")]

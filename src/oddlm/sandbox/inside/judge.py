"""The trusted side: runs the tests; what the program defines is a stand-in that asks the candidate's process.

What the tests expect never leaves this process, and only values come in. An exception of the program
has to be caught by an `except` or a `with` of the tests themselves: Python swallows some on its own
(StopIteration ends a map(), IndexError an iteration by index, AttributeError a getattr() with a
default), and one that no line of the tests has seen fails the trial, whatever came of it.
"""

from __future__ import annotations

import os
import sys

from . import errors
from .confine import confine, leave_if_alone
from .peer import Peer
from .proxies import Function, Iterable, Iterator, Object, Proxy, object_class
from .wire import WireError, decode, encode, send

TYPE_CHECKING = False  # importing `typing` would add a third to the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TESTS = "tests"
SHOWN = 160  # characters of a value in a reason
CHAIN = 100  # exceptions that one may consist of or come from
KINDS: dict[str, type[Proxy]] = {"function": Function, "iterable": Iterable, "iterator": Iterator, "opaque": Proxy}
# By these exceptions of an object Python itself learns that there is no such attribute or item.
EXPECTED: dict[str, tuple[type[BaseException], ...]] = {
    "get": (AttributeError,),
    "__getitem__": (IndexError, KeyError),
}


class CandidateError(Exception):
    """The candidate failed in a way that no test may excuse."""


class Candidate(Peer):
    """The other process, as the tests see it."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__(incoming, outgoing)
        self.calls = 0
        self.last = ""  # the latest call and what came of it, for a person
        self.broken = ""  # why the trial has failed for good
        self.uncaught: list[BaseException] = []  # raised by the program, not yet seen by a line of the tests
        self._classes: dict[str, type[BaseException]] = {}  # exceptions of the program that the tests name
        self._thrown: list[BaseException] = []  # raised by functions of the tests that the program called
        self._proxies: dict[tuple[int, str, bool], Proxy] = {}
        self._objects = False  # may what is being received hold objects?

    def start(self, names: tuple[str, ...], exceptions: tuple[str, ...], by_reference: tuple[str, ...]) -> dict[str, Any]:
        """Load the program; what it gives the tests, by name."""
        doing = "loading the program"
        values = tuple(name for name in names if name not in by_reference)
        match self._ask(doing, False, "load", values, by_reference, exceptions):
            case ("loaded", tuple(found), tuple(bases)) if len(found) == len(values) and len(bases) == len(exceptions):
                pass
            case ("raised", (tuple((str(name), *_)), _, str(text), *_), *_):
                raise self.broke(f"the program does not load: {cut(name)}: {cut(text)}")
            case _:
                raise self.broke(f"the program broke the protocol in {doing}")
        self.calls = sum(not isinstance(value, Proxy) for value in found)  # to read a constant is to call
        self._classes = {name: self._exception(name, of) for name, of in zip(exceptions, bases, strict=True)}
        given = dict(zip(values, found, strict=True)) | self._classes
        for name in by_reference:
            match self._ask(doing, True, "name", name):
                case ("value", value):
                    given[name] = value
                case _:
                    raise self.broke(f"the program broke the protocol in {doing}")
        return given

    def _exception(self, name: str, bases: Any) -> type[BaseException]:
        """A class of ours for one of the program's, derived from the nearest built-in one."""
        kind = type(self._rebuilt((bases, None, "", {}, ())))
        return type(name, (next(one for one in kind.__mro__ if one.__module__ == "builtins"),), {})

    # What the stand-ins ask for

    def call(self, target: Proxy, args: tuple[Any, ...], kwargs: dict[str, Any], *, shared: bool) -> Any:
        self.calls += 1
        shown = [*map(show, args), *(f"{name}={show(value)}" for name, value in kwargs.items())]
        self.last = f"{target._odd_about}({', '.join(shown)})"
        match self._ask(self.last, target._odd_by_reference, "call", target._odd_number, args, kwargs, shared):
            case ("value", value):
                pass
            case ("changed", value, tuple(after), dict(named)) if len(after) == len(args) and shared:
                for old, new in (*zip(args, after, strict=True), *((kwargs[k], named.get(k)) for k in kwargs)):
                    change(old, new)
            case other:
                return self._no_value(other)
        self.last += f" returned {show(value)}"
        return value

    def request(self, target: Proxy, kind: str, name: str, *rest: Any) -> Any:
        """An attribute or a special method of an object by reference."""
        self.calls += 1
        self.last = f"{name} of {target._odd_about}"
        match self._ask(self.last, True, kind, target._odd_number, name, *rest):
            case ("value", value):
                return value
            case other:
                return self._no_value(other, EXPECTED.get(name if kind == "special" else kind, ()))

    def iterate(self, target: Proxy) -> Iterator:
        self.last = f"iter() of {target._odd_about}"
        match self._ask(self.last, target._odd_by_reference, "iter", target._odd_number):
            case ("value", Iterator() as value):
                return value
            case other:
                raise self._no_value(other)

    def advance(self, target: Proxy, sent: Any = None) -> tuple[Any] | None:
        """The next item, alone in a tuple; None at the end."""
        self.last = f"next() of {target._odd_about}"
        match self._ask(self.last, target._odd_by_reference, "next", target._odd_number, sent):
            case ("value", value):
                return (value,)
            case ("end",):
                return None
            case other:
                raise self._no_value(other)

    async def _coroutine(self, number: int, about: str) -> Any:
        self.last = f"await of {about}"
        match self._ask(self.last, False, "await", number):
            case ("value", value):
                return value
            case other:
                return self._no_value(other)

    def _ask(self, doing: str, by_reference: bool, *request: Any) -> tuple[Any, ...]:
        if self.broken:
            raise CandidateError(self.broken)
        try:
            question = self.question(*request)
        except WireError as error:
            raise self.broke(f"the tests hand a program {error}; {doing}") from None
        before, self._objects = self._objects, by_reference
        try:
            return self.ask(question)
        except (EOFError, BrokenPipeError):
            raise self.broke(f"the program ended in {doing}") from None
        except WireError as error:
            raise self.broke(f"the program broke the protocol in {doing}: {error}") from None
        except (MemoryError, RecursionError) as error:
            raise self.broke(f"{type(error).__name__} at what the program says in {doing}") from None
        finally:
            self._objects = before

    def _no_value(self, answer: Any, expected: tuple[type[BaseException], ...] = ()) -> Any:
        """Raise what an answer without a value means."""
        match answer:
            case ("raised", (tuple((str(name), *_)), _, str(text), *_) as told, again):
                self.last += f" raised {cut(name)}: {cut(text)}"
                mine = type(again) is int and 0 <= again < len(self._thrown)
                error = self._thrown[again] if mine else self._rebuilt(told)
                raise error if isinstance(error, expected) else self.raised(error)
            case ("not plain", str(what)):
                raise self.broke(f"{self.last} returned {cut(what)}")
        raise self.broke(f"the program broke the protocol in {self.last}")

    def _rebuilt(self, told: Any) -> BaseException:
        try:
            return errors.rebuild(told, self._classes)
        except WireError as error:
            raise self.broke(f"the program broke the protocol in {self.last}: {error}") from None

    def broke(self, reason: str) -> CandidateError:
        self.broken = self.broken or reason
        return CandidateError(self.broken)

    # Exceptions of the program

    def raised(self, error: BaseException) -> BaseException:
        self.uncaught.append(error)
        return error

    def caught(self) -> None:
        """A line of the tests has seen the exception that is being handled (called in every `except` and `with`).

        Seen with it are the exceptions that it came from, and the group that `except*` took it out of.
        """
        seen = {id(one) for one in family(sys.exception(), history=True)}
        self.uncaught = [error for error in self.uncaught if not any(id(one) in seen for one in family(error))]

    def catching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for a caller that is there to catch what it raises, such as assertRaises(ValueError, f)."""

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except BaseException:
                self.caught()
                raise

        return call

    # What the program may ask while it is being asked: to call functions and advance iterators of the tests

    def reply(self, asked: int, request: list[Any]) -> bytes:
        try:
            answer = self._serve(request)
        except WireError:
            raise
        except BaseException as error:
            self.caught()
            self._thrown.append(error)
            answer = ("raised", errors.tell(error), len(self._thrown) - 1)
        if self.broken:
            raise CandidateError(self.broken)
        try:
            return encode(("reply", asked, *answer), ends=self)
        except WireError as error:
            raise WireError(f"a function of the tests returned {error}") from None

    def _serve(self, request: list[Any]) -> tuple[Any, ...]:
        match request:
            case ["call", int(number), tuple(args), dict(kwargs)] if callable(function := self.take_own(number)):
                return ("value", function(*args, **kwargs))
            case ["next", int(number)] if hasattr(iterator := self.take_own(number), "__next__"):
                for item in iterator:
                    return ("value", item)
                return ("end",)
        raise WireError("a question out of turn")

    # Objects on the wire

    def give(self, value: Any) -> tuple[str, Any]:
        if isinstance(value, Proxy):
            return "back", value._odd_number
        path = library_path(value)
        if path is not None:
            return "own", ("library", *path)
        if hasattr(type(value), "__next__"):
            return "own", ("iterator", self.lend(value))
        if callable(value):
            return "own", ("function", self.lend(value), getattr(value, "__name__", "function"))
        raise WireError(f"a value of type {type(value).__name__}, which cannot leave the tests")

    def take_other(self, about: Any) -> Any:
        make: Callable[..., Proxy]
        match about:
            case (int(number), "coroutine", str(name), bool()):
                return self._coroutine(number, cut(name))
            case (int(number), str(kind), str(name), bool(truth)) if kind in KINDS:
                make = KINDS[kind]
            case (int(number), "object" as kind, str(name), tuple(dunders)) if self._objects:
                make, truth = object_class(frozenset(one for one in dunders if isinstance(one, str))), True
            case _:
                raise WireError("an object where only values are allowed")
        key = number, kind, self._objects
        if key not in self._proxies:
            self._proxies[key] = make(self, number, cut(name), truth, self._objects)
        return self._proxies[key]


def family(error: BaseException | None, *, history: bool = False) -> list[BaseException]:
    """An exception, the members of it if it is a group, and what it was raised from."""
    found: list[BaseException] = []
    left = [error]
    while left and len(found) < CHAIN:
        one = left.pop()
        if one is not None:
            found.append(one)
            left += [*getattr(one, "exceptions", ()), *((one.__cause__, one.__context__) if history else ())]
    return found


def library_path(value: Any) -> tuple[str, str] | None:
    """(module, name) of a function or class of the standard library: the program uses its own."""
    owner = getattr(value, "__objclass__", None)  # of str.upper
    name = getattr(value, "__qualname__", "") if owner is None else f"{owner.__qualname__}.{value.__name__}"
    module = getattr(value if owner is None else owner, "__module__", None)
    if not isinstance(module, str) or module.partition(".")[0] not in sys.stdlib_module_names:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (module, name) if found is value else None


def change(old: Any, new: Any) -> None:
    """Give an argument of the tests the content that the program left in its copy."""
    if isinstance(old, (dict, set)) and isinstance(new, (dict, set)):
        old.clear()
        old.update(new)
    elif isinstance(old, (list, bytearray)) and isinstance(new, (list, bytearray)):
        old[:] = new
    elif hasattr(old, "appendleft") and hasattr(new, "appendleft"):  # deque
        old.clear()
        old.extend(new)


def shared(function: Any) -> Any:
    """A function that is called for its effect."""
    return function._odd_shared if isinstance(function, Function) else function


def next_or(iterator: Any, default: Any) -> Any:
    """next() with a default: the end of the program's iterator is no exception here."""
    if not isinstance(iterator, Iterator):
        return next(iterator, default)
    found = iterator._odd_peer.advance(iterator)
    return default if found is None else found[0]


def main(argv: list[str]) -> None:
    requests, replies, verdict, *limits = map(int, argv)
    confine(*limits)
    leave_if_alone(verdict)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        trial = decode(stdin.read())
    send(verdict, judge(Candidate(replies, requests), *trial))


def judge(
    candidate: Candidate,
    setup: bytes,
    code: bytes,
    tests: str,
    modules: tuple[str, ...],
    names: tuple[str, ...],
    exceptions: tuple[str, ...],
    by_reference: tuple[str, ...],
) -> tuple[bool, str]:
    """Run the tests. `setup` and `code` are marshalled, with calls of the four functions below (see trial.py)."""
    import marshal

    namespace: dict[str, Any] = {
        "__name__": TESTS,
        "__caught__": candidate.caught,
        "__catching__": candidate.catching,
        "__next_or__": next_or,
        "__shared__": shared,
    }
    try:
        given = candidate.start(names, exceptions, by_reference)
        namespace |= {name: __import__(name) for name in modules}
        exec(marshal.loads(setup), namespace)
        namespace |= given
        exec(marshal.loads(code), namespace)
    except BaseException as error:
        return False, candidate.broken or reason(error, tests, candidate.last)
    if candidate.broken:
        return False, candidate.broken
    if not candidate.calls:
        return False, "the tests never called the program"
    if candidate.uncaught:
        return False, f"the program raised {type(candidate.uncaught[0]).__name__}, which no line of the tests caught"
    return True, f"passed in {candidate.calls} call{'' if candidate.calls == 1 else 's'}"


def reason(error: BaseException, tests: str, last: str) -> str:
    what = failed_assertion(error, tests) if isinstance(error, AssertionError) else f"{type(error).__name__}: {cut(str(error))}"
    if " raised " in last and not isinstance(error, AssertionError):
        return last
    return f"{what}; {last}" if last else f"the tests fail by themselves: {what}"


def failed_assertion(error: BaseException, tests: str) -> str:
    import ast

    line, step = 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == TESTS:
            line = step.tb_lineno
        step = step.tb_next
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or node.lineno):
            return f"not so: {cut(ast.unparse(node.test))}"
    return f"AssertionError: {cut(str(error))}"


def show(value: Any) -> str:
    try:
        text = f"<{value._odd_about}>" if isinstance(value, Object) else repr(value)
    except (ValueError, RecursionError):  # an int with more digits than Python prints
        text = f"<{type(value).__name__} too large to show>"
    return cut(text)


def cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."

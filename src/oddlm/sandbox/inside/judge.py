"""The trusted side: runs the tests, with stand-ins for what the program defines.

A stand-in asks the candidate's process. The expected results never leave this process, and only
values come in. An exception of the program must be caught by an `except` or a `with` of the tests
themselves: Python silently swallows some (StopIteration ends a map(), IndexError an iteration by
index, AttributeError a getattr() with a default). An exception that no statement of the tests has
caught fails the trial, whatever the outcome.
"""

from __future__ import annotations

import os
import sys

from . import errors
from .confine import confine, leave_if_alone
from .heap import Heap
from .peer import Peer
from .proxies import Function, Iterable, Iterator, Object, Proxy, object_class
from .wire import WireError, decode, send

TYPE_CHECKING = False  # importing `typing` would add a third to the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

TESTS = "tests"
SHOWN = 160  # characters of a value in a reason
MEMBERS = 100  # of a group of exceptions to consider
KINDS: dict[str, type[Proxy]] = {
    "function": Function,
    "iterable": Iterable,
    "iterator": Iterator,
    "opaque": Proxy,
}
# Exceptions by which an object tells Python itself that it has no such attribute or item.
EXPECTED: dict[str, tuple[type[BaseException], ...]] = {
    "get": (AttributeError,),
    "__getitem__": (IndexError, KeyError),
}
COPIES, SHARED = b"c", b"s"  # how containers cross in a question: copied, or shared permanently


class CandidateError(Exception):
    """The candidate failed in a way that no test may excuse."""


class Candidate(Peer):
    """The other process, as the tests see it.

    With `plain`, containers keep their identity as in plain Python. Otherwise they are copied, so
    that a program cannot change the values that the tests compare with. `differs` means that a call
    has changed or returned its arguments, so that the two modes might differ.
    """

    def __init__(self, incoming: int, outgoing: int, *, plain: bool) -> None:
        super().__init__(incoming, outgoing, Heap(0))
        self.plain, self.differs = plain, False
        self.calls = 0
        self.last = ""  # the latest call and its outcome, for a person
        self.broken = ""  # why the trial has failed for good
        self.uncaught: list[BaseException] = []  # raised by the program, not yet caught by tests
        # id of an exception: the exception itself, and the one that it replaced.
        self.replaced: dict[int, tuple[BaseException, BaseException]] = {}
        self.classes: dict[str, type[BaseException]] = {}  # exception classes of the program
        # Raised by functions of the tests that the program called.
        self._thrown: list[BaseException] = []
        self._proxies: dict[tuple[int, str, bool], Proxy] = {}
        self._objects = False  # whether the value being received may hold objects
        # Raised by objects that lack the attribute or item they were asked for.
        self._missing: list[BaseException] = []
        self._showing = False

    def start(self, names: tuple[str, ...], by_reference: tuple[str, ...]) -> dict[str, Any]:
        """Load the program and return what it defines for the tests, by name."""
        doing = "loading the program"
        values = tuple(name for name in names if name not in by_reference)
        match self._ask(doing, False, "load", values, by_reference):
            case ("loaded", tuple(found), tuple(kinds)) if len(found) == len(values) and len(
                kinds
            ) == len(names):
                pass
            case ("raised", about, *_):
                raise self.broke(f"the program does not load: {self._summary(about)}")
            case _:
                raise self.broke(f"the program broke the protocol in {doing}")
        self.calls = sum(
            not isinstance(value, Proxy) for value in found
        )  # constants count as calls
        given = dict(zip(values, found, strict=True))
        classes = [
            (name, kind)
            for name, kind in zip((*values, *by_reference), kinds, strict=True)
            if isinstance(kind, tuple)
        ]
        given |= {
            name: self._exception(name, kind)
            for name, kind in sorted(classes, key=lambda pair: len(pair[1]))
        }
        for name in (name for name in by_reference if name not in given):
            match self._ask(doing, True, "name", name):
                case ("value", value, *_):
                    given[name] = value
                case _:
                    raise self.broke(f"the program broke the protocol in {doing}")
        return given

    def _exception(self, name: str, bases: tuple[Any, ...]) -> type[BaseException]:
        """Make our own class for an exception class of the program, derived from known classes."""
        kind = type(self._rebuilt({"names": bases, "args": (), "text": ""}))
        parents = kind.__bases__ if kind.__module__ != "builtins" else (kind,)
        self.classes[name] = type(name, tuple(parents), {})
        return self.classes[name]

    # Requests of the stand-ins

    def call(
        self, target: Proxy, args: tuple[Any, ...], kwargs: dict[str, Any], *, effect: bool
    ) -> Any:
        self.calls += 1
        shown = [
            *map(self.show, args),
            *(f"{name}={self.show(value)}" for name, value in kwargs.items()),
        ]
        self.last = f"{target._odd_about}({', '.join(shown)})"
        request = ("call", target._odd_number, args, kwargs)
        value = self._value(self._ask(self.last, target._odd_by_reference, *request, effect=effect))
        self.last += f" returned {self.show(value)}"
        return value

    def request(self, target: Proxy, kind: str, name: str, *rest: Any) -> Any:
        """Use an attribute or a special method of an object by reference."""
        self.calls += 1
        self.last = f"{name} of {target._odd_about}"
        answer = self._ask(self.last, True, kind, target._odd_number, name, *rest)
        return self._value(answer, EXPECTED.get(name if kind == "special" else kind, ()))

    def leave(self, target: Proxy, error: Any) -> Any:
        """Call __exit__ of an object by reference.

        It may swallow exceptions, but not the tests' own verdict.
        """
        about = None
        if error is not None:
            about = errors.describe(error, secret=isinstance(error, AssertionError))
        swallowed = self.request(target, "leave", "__exit__", about)
        own = isinstance(error, (AssertionError, CandidateError)) or error in self._missing
        return swallowed and not own

    def iterate(self, target: Proxy) -> Iterator:
        self.last = f"iter() of {target._odd_about}"
        value = self._value(
            self._ask(self.last, target._odd_by_reference, "iter", target._odd_number)
        )
        if not isinstance(value, Iterator):
            raise self.broke(f"the program broke the protocol in {self.last}")
        return value

    def advance(self, target: Proxy, sent: Any = None) -> tuple[bool, Any]:
        """Return (True, the next item), or (False, the iterator's return value at its end)."""
        self.last = f"next() of {target._odd_about}"
        return self._item(
            self._ask(self.last, target._odd_by_reference, "next", target._odd_number, sent)
        )

    def throw(self, target: Proxy, error: BaseException) -> tuple[bool, Any]:
        self.last = f"throw() of {target._odd_about}"
        request = ("throw", target._odd_number, errors.describe(error))
        return self._item(self._ask(self.last, target._odd_by_reference, *request))

    def _item(self, answer: tuple[Any, ...]) -> tuple[bool, Any]:
        match answer:
            case ("end", value):
                return False, value
        return True, self._value(answer)

    def end_iterator(self, target: Proxy) -> None:
        doing = f"close() of {target._odd_about}"
        self._value(self._ask(doing, target._odd_by_reference, "close", target._odd_number))

    async def wait(self, target: Any) -> Any:
        """Await a coroutine, or an object by reference that can be awaited."""
        number, about, by_reference = (
            (target._odd_number, target._odd_about, True)
            if isinstance(target, Object)
            else (*target, False)
        )
        self.last = f"await of {about}"
        return self._value(self._ask(self.last, by_reference, "await", number))

    def shown(self, target: Object) -> str:
        """Return the repr() that the tests see; for a reason the program is not asked."""
        if self._showing:
            return f"<{target._odd_about}>"
        return str(self.request(target, "special", "__repr__", ()))

    def _ask(
        self, doing: str, by_reference: bool, *request: Any, effect: bool = False
    ) -> tuple[Any, ...]:
        if self.broken:
            raise CandidateError(self.broken)
        shared = by_reference or self.plain
        heap = self.heap if shared else Heap(0)
        before, self._objects = self._objects, by_reference
        try:
            if not shared:
                self._sync()
            try:
                question = self.pack("ask", self.next, *request, heap=heap)
            except WireError as error:
                raise self.broke(f"the tests hand a program {error}; {doing}") from None
            answer = self.ask((SHARED if shared else COPIES) + question, heap if shared else None)
            if not shared:
                answer = self._applied(answer, heap, effect)
                self._sync()
            return answer
        except (EOFError, BrokenPipeError):
            raise self.broke(f"the program ended in {doing}") from None
        except WireError as error:
            raise self.broke(f"the program broke the protocol in {doing}: {error}") from None
        except (MemoryError, RecursionError) as error:
            raise self.broke(
                f"{type(error).__name__} at what the program says in {doing}"
            ) from None
        finally:
            self._objects = before

    def _sync(self) -> None:
        """Exchange the changes of shared containers, which a question by value does not carry."""
        if self.heap:
            self.ask(SHARED + self.pack("ask", self.next, "sync", heap=self.heap), self.heap)

    def _applied(self, answer: tuple[Any, ...], heap: Heap, effect: bool) -> tuple[Any, ...]:
        """Apply the changes of the arguments that an answer by value ends with; return the rest.

        Its last two parts are whether the call changed or returned its arguments, and the changes.
        They are applied to the tests' own containers only if the call was made for its effect or
        returned None.
        """
        match answer:
            case (*rest, bool(differs), bytes(changes)):
                if changes and (effect or rest == ["value", None]):
                    heap.apply(decode(changes, heap=heap))
                else:
                    self.differs |= differs
                return tuple(rest)
        raise WireError("a malformed answer")

    def _value(
        self, answer: tuple[Any, ...], expected: tuple[type[BaseException], ...] = ()
    ) -> Any:
        """Return the value of an answer, or raise what an answer without a value stands for."""
        match answer:
            case ("value", value):
                return value
            case ("raised", about, again):
                self.last += f" raised {self._summary(about)}"
                mine = type(again) is int and 0 <= again < len(self._thrown)
                error = self._thrown[again] if mine else self._rebuilt(about)
                if isinstance(error, expected):
                    self._missing.append(error)
                    raise error
                raise self.raised(error)
            case ("not plain", str(what)):
                raise self.broke(f"{self.last} returned {cut(what)}")
        raise self.broke(f"the program broke the protocol in {self.last}")

    def _summary(self, about: Any) -> str:
        match about:
            case {"names": ((str(), str(name)), *_), "text": str(text)}:
                return f"{cut(name)}: {cut(text)}"
        raise self.broke(f"the program broke the protocol in {self.last or 'loading'}")

    def _rebuilt(self, about: Any) -> BaseException:
        try:
            return errors.rebuild(about, self.classes)
        except WireError as error:
            raise self.broke(f"the program broke the protocol in {self.last}: {error}") from None

    def broke(self, reason: str) -> CandidateError:
        self.broken = self.broken or reason
        return CandidateError(self.broken)

    def show(self, value: Any) -> str:
        """Return a value as text for a reason."""
        self._showing = True
        try:
            text = repr(value)
        except Exception:  # an int with too many digits, an invalid value of the library
            text = f"<{type(value).__name__} that cannot be shown>"
        finally:
            self._showing = False
        return cut(text)

    # Exceptions of the program

    def raised(self, error: BaseException) -> BaseException:
        self.uncaught.append(error)
        return error

    def ended(self, error: BaseException | None) -> None:
        """Note that a statement of the tests has caught this exception and those it replaced."""
        while error is not None:
            seen = {id(one) for one in members(error)}
            place = next(
                (
                    i
                    for i, one in enumerate(self.uncaught)
                    if seen & {id(each) for each in members(one)}
                ),
                None,
            )
            if place is not None:
                del self.uncaught[place]
            error = self.replaced.pop(id(error), (None, None))[1]

    def handling(self) -> _Handling:
        return _Handling(self)

    def watching(self) -> _Watching:
        return _Watching(self)

    def asserting(self, check: Callable[..., Any], place: int, *args: Any, **kwargs: Any) -> Any:
        """Run assertRaises(ValueError, f, ...): the exception is caught if that returns."""
        watch = _Watching(self)

        def function(*given: Any, **named: Any) -> Any:
            with watch:
                return args[place](*given, **named)

        value = check(*args[:place], function, *args[place + 1 :], **kwargs)
        watch.done()
        return value

    # Requests of the program while it serves a question: it may call functions and advance
    # iterators of the tests.

    def reply(self, asked: int, request: list[Any], heap: Heap | None) -> bytes:
        try:
            answer = self._serve(request)
        except WireError:
            raise
        except BaseException as error:
            if isinstance(error, AssertionError):
                self.broke(
                    "an assertion failed in a function of the tests that the program called; "
                    f"{self.last}"
                )
            self.ended(error)
            self._thrown.append(error)
            answer = ("raised", errors.describe(error), len(self._thrown) - 1)
        if self.broken:
            raise CandidateError(self.broken)
        try:
            return (SHARED if heap is self.heap else COPIES) + self.pack(
                "reply", asked, *answer, heap=heap
            )
        except WireError as error:
            raise WireError(f"a function of the tests returned {error}") from None

    def _serve(self, request: list[Any]) -> tuple[Any, ...]:
        match request:
            case ["call", int(number), tuple(args), dict(kwargs)] if callable(
                function := self.take_own(number)
            ):
                return ("value", function(*args, **kwargs))
            case ["next", int(number)] if hasattr(iterator := self.take_own(number), "__next__"):
                for item in iterator:
                    return ("value", item)
                return ("end", None)
        raise WireError("a question out of turn")

    # Objects on the wire

    def give(self, value: Any) -> tuple[str, Any]:
        if isinstance(value, Proxy):
            return "back", value._odd_number
        if isinstance(value, type) and issubclass(value, BaseException):
            names = tuple((str(kind.__module__), str(kind.__name__)) for kind in value.__mro__[:-1])
            return "own", ("exception", self.lend(value), names)
        path = library_path(value)
        if path is not None:
            return "own", ("library", *path)
        if hasattr(type(value), "__next__"):
            return "own", ("iterator", self.lend(value))
        if callable(value):
            name, doc = getattr(value, "__name__", "function"), getattr(value, "__doc__", None)
            return "own", (
                "function",
                self.lend(value),
                str(name),
                doc if isinstance(doc, str) else None,
            )
        return "own", ("opaque", self.lend(value), type(value).__name__)

    def take_other(self, about: Any) -> Any:
        make: Callable[..., Proxy]
        match about:
            case (int(number), "coroutine", str(name), bool()):
                return self.wait((number, cut(name)))
            case (int(number), str(kind), str(name), bool(truth)) if kind in KINDS:
                make = KINDS[kind]
            case (int(number), "function" as kind, str(name), bool(truth), str(doc)):
                make = Function
            case (int(number), "object" as kind, str(name), tuple(dunders)) if self._objects:
                make, truth = (
                    object_class(frozenset(one for one in dunders if isinstance(one, str))),
                    True,
                )
            case _:
                raise WireError("an object where only values are allowed")
        key = number, kind, self._objects
        if key not in self._proxies:
            self._proxies[key] = made = make(self, number, cut(name), truth, self._objects)
            if isinstance(made, Function) and len(about) == 5:
                made._odd_doc = doc
        return self._proxies[key]


class _Handling:
    """Wraps the body of an `except` of the tests: its exception is caught if the body completes."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate

    def __enter__(self) -> None:
        self.error = sys.exception()

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.candidate.ended(self.error)
        elif error is not self.error and self.error is not None:
            self.candidate.replaced[id(error)] = error, self.error


class _Watching:
    """Wraps the body of a `with` of the tests.

    An exception that leaves the body is caught if the statement completes nevertheless.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        self.error = error

    def done(self) -> None:
        self.candidate.ended(self.error)


def members(error: BaseException) -> list[BaseException]:
    """Return an exception and, if it is a group, its members."""
    found: list[BaseException] = []
    left = [error]
    while left and len(found) < MEMBERS:
        found.append(left.pop())
        left += found[-1].exceptions if isinstance(found[-1], BaseExceptionGroup) else ()
    return found


def library_path(value: Any) -> tuple[str, str] | None:
    """Return (module, name) of a function or class of the standard library, else None.

    The program uses its own.
    """
    try:
        owner = (
            value.__objclass__
            if type(value).__module__ == "builtins" and hasattr(value, "__objclass__")
            else None
        )
        name = value.__qualname__ if owner is None else f"{owner.__qualname__}.{value.__name__}"
        module = (value if owner is None else owner).__module__
        if module.partition(".")[0] not in sys.stdlib_module_names:
            return None
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
    except Exception:  # an object that is neither function nor class
        return None
    return (module, name) if found is value else None


def effect(function: Any) -> Any:
    """Return a function in the form that is called for its effect."""
    return function._odd_effect if isinstance(function, Function) else function


def next_or(iterator: Any, default: Any) -> Any:
    """Run next() with a default: the end of the program's iterator is not an exception here."""
    if not isinstance(iterator, Iterator):
        return next(iterator, default)
    found, value = iterator._odd_peer.advance(iterator)
    return value if found else default


def main(argv: list[str]) -> None:
    requests, replies, verdict, *limits = map(int, argv)
    confine(*limits)
    leave_if_alone(verdict)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        plain, *trial = decode(stdin.read())
    candidate = Candidate(replies, requests, plain=plain)
    send(verdict, (*judge(candidate, *trial), candidate.differs))


def judge(
    candidate: Candidate,
    setup: bytes,
    code: bytes,
    tests: str,
    modules: tuple[str, ...],
    names: tuple[str, ...],
    by_reference: tuple[str, ...],
    waiting: tuple[str, ...],
) -> tuple[bool, str]:
    """Run the tests; return whether the program passed, and why.

    `setup` and `code` are marshalled, with calls of the functions below (see trial.py).
    waiting: test functions and classes that the tests do not run themselves, as they are written
    for pytest or unittest.
    """
    import marshal

    module = type(sys)("__main__")
    namespace = module.__dict__
    namespace |= {
        "__asserting__": candidate.asserting,
        "__effect__": effect,
        "__handling__": candidate.handling,
        "__next_or__": next_or,
        "__watching__": candidate.watching,
    }
    sys.modules["__main__"], sys.argv = module, [TESTS]
    try:
        given = candidate.start(names, by_reference)
        namespace |= {name: __import__(name) for name in modules}
        exec(marshal.loads(setup), namespace)
        namespace |= given
        watch_unittest(candidate, tests)
        exec(marshal.loads(code), namespace)
        run_waiting(namespace, waiting)
    except BaseException as error:
        # unittest.main() ends with SystemExit.
        over = isinstance(error, SystemExit) and not error.code and error not in candidate.uncaught
        if candidate.broken or not over:
            return False, candidate.broken or reason(error, tests, candidate)
    if candidate.broken:
        return False, candidate.broken
    if not candidate.calls:
        return False, "the tests never called the program"
    if candidate.uncaught:
        name = type(candidate.uncaught[0]).__name__
        return False, f"the program raised {name}, which no line of the tests caught"
    return True, f"passed in {candidate.calls} call{'' if candidate.calls == 1 else 's'}"


def run_waiting(namespace: dict[str, Any], waiting: tuple[str, ...]) -> None:
    for name in waiting:
        found = namespace.get(name)
        if isinstance(found, type):
            import unittest

            if issubclass(found, unittest.TestCase):
                unittest.defaultTestLoader.loadTestsFromTestCase(found).run(unittest.TestResult())
            else:
                for method in [method for method in dir(found) if method.startswith("test")]:
                    getattr(found(), method)()
        elif callable(found):
            found()


def watch_unittest(candidate: Candidate, tests: str) -> None:
    """Make every failure that unittest notes count, even if the tests ignore its result."""
    if "unittest" not in tests:
        return
    import unittest

    def note(*args: Any) -> None:
        failure = args[-1]
        if failure is not None:
            candidate.ended(failure[1])
            candidate.broke(reason(failure[1], tests, candidate))

    for name in ("addFailure", "addError", "addSubTest"):
        setattr(unittest.TestResult, name, note)


def reason(error: BaseException, tests: str, candidate: Candidate) -> str:
    last = candidate.last
    if isinstance(error, AssertionError):
        what = failed_assertion(error, tests)
    else:
        what = f"{type(error).__name__}: {cut(str(error))}"
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


def cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."

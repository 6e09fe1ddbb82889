"""The untrusted side: runs a program, then serves requests for its functions and objects.

Nothing here protects anything. The program shares this process and may rewrite all of it; the judge
trusts only values.
"""

from __future__ import annotations

import os
import sys

from . import errors
from .confine import confine, leave_if_alone
from .heap import Heap
from .peer import Peer
from .program import MODULE, choose
from .proxies import DUNDERS
from .wire import MAX_BYTES, Ends, WireError, Writer, decode, encode, receive_bytes, send_bytes

TYPE_CHECKING = False  # importing `typing` would add a third to the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SHARED = b"s"
TESTS = "tests"
REMEMBERED = 10_000  # containers
# Results by value that are not values: a method that they have, and the kind of their stand-in.
KINDS = (
    ("__next__", "iterator"),
    ("__await__", "coroutine"),
    ("__call__", "function"),
    ("__iter__", "iterable"),
)


class Program(Peer):
    """The judge, as the program sees it."""

    def __init__(self, incoming: int, outgoing: int, sources: tuple[str, ...], tidy: bool) -> None:
        super().__init__(incoming, outgoing, Heap(1))
        self.sources, self.tidy = sources, tidy
        self.module = type(sys)(MODULE)  # not "__main__": a program's demonstration does not run
        self._values = Lending(self, by_reference=False)
        self._objects = Lending(self, by_reference=True)
        # id of a stand-in: the stand-in itself, and the judge's number for it.
        self._theirs: dict[int, tuple[Any, int]] = {}
        self._exceptions: dict[str, type[BaseException]] = {}  # exception classes of the tests
        self._shared = False  # whether the question being served shares containers
        # Containers by id: in plain Python, one that is returned twice is the same object.
        self._returned: dict[int, Any] = {}
        self._arguments = self.heap  # the heap of the containers of that question

    def run(self) -> None:
        while True:
            match self.unpack(receive_bytes(self.incoming)):
                case ("ask", int(asked), *request):
                    send_bytes(self.outgoing, self.reply(asked, request))

    def unpack(self, data: bytes, _: Heap | None = None) -> tuple[Any, ...]:
        """Decode a message of the judge, whose first byte says how its containers cross."""
        self._shared = data[:1] == SHARED
        self._arguments = self.heap if self._shared else Heap(1)
        return super().unpack(data[1:], self._arguments)

    def reply(self, asked: int, request: list[Any], _: Heap | None = None) -> bytes:
        shared, arguments = self._shared, self._arguments
        ends: Ends = self._values
        try:
            answer, ends = self._serve(*request)
        except BaseException as error:
            answer = ("raised", errors.describe(error), getattr(error, "_odd_thrown", None))
        self._shared, self._arguments = shared, arguments
        try:
            if shared:
                return self.pack("reply", asked, *answer, ends=ends, heap=self.heap)
            return self._by_value(asked, answer, ends, arguments)
        except WireError as error:
            what = str(error)
        except BaseException as error:
            what = "a value that raised {}: {}".format(*_name_and_text(error))
        rest = () if shared else (False, b"")
        return self.pack(
            "reply", asked, "not plain", what, *rest, heap=self.heap if shared else None
        )

    def _by_value(self, asked: int, answer: tuple[Any, ...], ends: Ends, arguments: Heap) -> bytes:
        """Encode the answer, whether the call changed or returned its arguments, and how."""
        changes = arguments.changes()
        writer = Writer(MAX_BYTES, ends, None)
        message = ((), "reply", asked, *answer)
        writer.out += b"u%d:" % (len(message) + 2)
        for part in message:
            writer.write(part, 1)
        returned = any(
            container in arguments or id(container) in self._returned
            for container in writer.containers
        )
        if len(self._returned) < REMEMBERED:
            self._returned |= {id(container): container for container in writer.containers}
        writer.write(bool(changes) or returned, 1)
        writer.write(encode(changes, heap=arguments) if changes else b"", 1)
        return bytes(writer.out)

    def _serve(self, kind: str, *rest: Any) -> tuple[tuple[Any, ...], Ends]:
        if kind == "load":
            return self._load(*rest), self._values
        if kind == "sync":
            return ("value", None), self._values
        if kind == "name":
            return ("value", self.module.__dict__[rest[0]]), self._objects
        number, *arguments = rest
        target = self.take_own(number)
        ends = self._objects if self.by_reference[number] else self._values
        if kind == "call":
            args, kwargs = arguments
            return ("value", target(*args, **kwargs)), ends
        if kind in ("next", "throw"):
            try:
                return ("value", self._step(target, kind, *arguments)), ends
            except StopIteration as end:
                return ("end", end.value), ends
        return ("value", getattr(self, f"_{kind}")(target, *arguments)), ends

    def _load(self, names: tuple[str, ...], objects: tuple[str, ...]) -> tuple[Any, ...]:
        """Run the program; return the values of `names`, and the bases of exception classes."""
        if self.tidy:
            code = choose(self.sources, names + objects)
        else:
            code = compile(self.sources[0], MODULE, "exec")
        sys.modules[MODULE] = self.module
        space = self.module.__dict__
        exec(code, space)
        for name in (*names, *objects):
            if name not in space:
                raise NameError(f"the program defines no function {name!r}")
        kinds = tuple(_bases(space[name]) for name in (*names, *objects))
        return "loaded", tuple(space[name] for name in names), kinds

    def _step(self, target: Any, kind: str, given: Any) -> Any:
        if kind == "throw":
            return target.throw(errors.rebuild(given, self._classes()))
        return next(target) if given is None else target.send(given)

    def _iter(self, target: Any) -> Any:
        return (item for item in target)  # a generator, whatever the program's own iterators are

    def _close(self, target: Any) -> None:
        target.close()

    def _await(self, target: Any) -> Any:
        import asyncio

        async def wait() -> Any:
            return await target

        return asyncio.run(wait())

    def _get(self, target: Any, name: str) -> Any:
        return getattr(target, name)

    def _set(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)

    def _delete(self, target: Any, name: str) -> None:
        delattr(target, name)

    def _dir(self, target: Any, _: str) -> list[str]:
        return dir(target)

    def _copy(self, target: Any, how: str) -> Any:
        import copy

        return getattr(copy, how)(target)

    def _leave(self, target: Any, name: str, about: Any) -> Any:
        error = None if about is None else errors.rebuild(about, self._classes())
        return getattr(type(target), name)(
            target, None if error is None else type(error), error, None
        )

    def _special(self, target: Any, name: str, args: tuple[Any, ...]) -> Any:
        return getattr(type(target), name)(target, *args)

    # Functions, iterators and exceptions of the tests

    def take_other(self, about: Any) -> Any:
        match about:
            case ("library", str(module), str(name)):
                found: Any = __import__(module, fromlist=["_"])
                for part in name.split("."):
                    found = getattr(found, part)
                return found
            case ("exception", int(number), tuple(names)):
                return self._exception_class(number, names)
            case ("function", int(number), str(name), doc):
                stand_in: Any = self._function(number, name, doc)
            case ("iterator", int(number)):
                stand_in = self._iterator(number)
            case ("opaque", int(number), str(name)):
                stand_in = type(name, (), {"__module__": TESTS})()
            case _:
                raise WireError("an unknown kind of object")
        return self._stand_in(stand_in, number)

    def _stand_in(self, value: Any, number: int) -> Any:
        self._theirs[id(value)] = value, number
        return value

    def _function(self, number: int, name: str, doc: str | None) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._result(self._back("call", number, args, kwargs))

        function.__name__, function.__qualname__, function.__doc__ = name, name, doc
        return function

    def _iterator(self, number: int) -> Iterator[Any]:
        while (answer := self._back("next", number)) != ("end", None):
            yield self._result(answer)

    def _back(self, *request: Any) -> tuple[Any, ...]:
        """Ask the judge; containers cross as they do in the question being served."""
        shared, arguments = self._shared, self._arguments
        question = self.pack("ask", self.next, *request, heap=self.heap if shared else None)
        try:
            return self.ask(question, None)
        finally:
            self._shared, self._arguments = shared, arguments

    def _exception_class(self, number: int, names: tuple[Any, ...]) -> type[BaseException]:
        name = names[0][1]
        known = self._classes()
        if name not in self._exceptions:
            found = known.get(name)
            kind = found or type(
                errors.rebuild({"names": names[1:], "args": (), "text": ""}, known)
            )
            self._exceptions[name] = found or type(name, (kind,), {})
        self._stand_in(self._exceptions[name], number)
        return self._exceptions[name]

    def _classes(self) -> dict[str, type[BaseException]]:
        own = {name: found for name, found in vars(self.module).items() if _bases(found)}
        return own | self._exceptions

    def _result(self, answer: tuple[Any, ...]) -> Any:
        match answer:
            case ("value", value):
                return value
            case ("raised", about, thrown):
                error = errors.rebuild(about, self._classes())
                error._odd_thrown = thrown  # type: ignore[attr-defined]
                raise error
        raise WireError("an unknown answer")

    def give(self, value: Any) -> tuple[str, Any]:
        return self._values.give(value)

    def number_of(self, value: Any) -> int | None:
        """Return the judge's number of the object behind a stand-in; None for other objects."""
        return self._theirs.get(id(value), (None, None))[1]


class Lending(Ends):
    """Describes objects of the program to the judge: only their kind, or as full objects."""

    def __init__(self, program: Program, *, by_reference: bool) -> None:
        self.program, self.by_reference = program, by_reference

    def keeps(self, value: Any) -> bool:
        return self.by_reference and type(value).__module__ == MODULE

    def give(self, value: Any) -> tuple[str, Any]:
        back = self.program.number_of(value)
        if back is not None:
            return "back", back
        kind = type(value)
        name = str(getattr(value, "__name__", kind.__name__))
        methods = {
            method
            for one in kind.__mro__
            for method, found in vars(one).items()
            if found is not None
        }
        stand_in = next((stand_in for method, stand_in in KINDS if method in methods), "opaque")
        if self.by_reference and not (
            stand_in in ("iterator", "coroutine") and kind.__module__ != MODULE
        ):
            about = name if "__call__" in methods else f"{name} object"
            return "own", (self._lend(value), "object", about, tuple(methods & DUNDERS))
        truth = bool(value) if stand_in in ("iterable", "opaque") else True
        doc = getattr(value, "__doc__", None)
        described = (doc,) if stand_in == "function" and isinstance(doc, str) else ()
        return "own", (self._lend(value), stand_in, name, truth, *described)

    def _lend(self, value: Any) -> int:
        return self.program.lend(value, by_reference=self.by_reference)


def _bases(value: Any) -> tuple[Any, ...] | None:
    """Return (module, name) of an exception class and of its bases; None for anything else."""
    if not isinstance(value, type) or not issubclass(value, BaseException):
        return None
    return tuple((str(kind.__module__), str(kind.__name__)) for kind in value.__mro__[:-1])


def _name_and_text(error: BaseException) -> tuple[str, str]:
    about = errors.describe(error)
    return about["names"][0][1], about["text"]


def main(argv: list[str]) -> None:
    requests, replies, *limits = map(int, argv)
    confine(*limits)
    leave_if_alone(1)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        sources, tidy = decode(stdin.read())
    Program(requests, replies, sources, tidy).run()

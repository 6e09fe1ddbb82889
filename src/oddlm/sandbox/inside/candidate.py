"""The untrusted side: runs a program, then answers for its functions and objects.

Nothing here is a guard. The program shares this process and may rewrite all of it; the judge believes
only values.
"""

from __future__ import annotations

import os
import sys

from . import errors
from .confine import confine, leave_if_alone
from .peer import Peer
from .program import MODULE, choose
from .proxies import DUNDERS
from .wire import Ends, WireError, decode, encode, receive, send_bytes

TYPE_CHECKING = False  # importing `typing` would add a third to the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# What by-value results may be besides values: a method of theirs, and the kind of stand-in for it.
KINDS = (("__next__", "iterator"), ("__await__", "coroutine"), ("__call__", "function"), ("__iter__", "iterable"))


class Program(Peer):
    """The judge, as the program sees it."""

    def __init__(self, incoming: int, outgoing: int, sources: tuple[str, ...], tidy: bool) -> None:
        super().__init__(incoming, outgoing)
        self.sources, self.tidy = sources, tidy
        self.module = type(sys)(MODULE)  # not "__main__": a program's demonstration does not run
        self._values, self._objects = Lending(self, by_reference=False), Lending(self, by_reference=True)
        self._theirs: dict[int, tuple[Any, int]] = {}  # id of a stand-in: itself, and the judge's number for it

    def run(self) -> None:
        while True:
            match receive(self.incoming, self):
                case ("ask", int(asked), *request):
                    send_bytes(self.outgoing, self.reply(asked, request))

    def reply(self, asked: int, request: list[Any]) -> bytes:
        ends: Ends = self._values
        try:
            answer, ends = self._serve(*request)
        except BaseException as error:
            answer = ("raised", errors.tell(error), getattr(error, "_odd_thrown", None))
        try:
            return encode(("reply", asked, *answer), ends=ends)
        except WireError as error:
            what = str(error)
        except BaseException as error:
            names, _, text, *_ = errors.tell(error)
            what = f"a value that raised {names[0]}: {text}"
        return encode(("reply", asked, "not plain", what))

    def _serve(self, kind: str, *rest: Any) -> tuple[tuple[Any, ...], Ends]:
        if kind == "load":
            return self._load(*rest), self._values
        if kind == "name":
            return ("value", self.module.__dict__[rest[0]]), self._objects
        number, *arguments = rest
        target = self.take_own(number)
        ends = self._objects if self.by_reference[number] else self._values
        if kind == "call":
            args, kwargs, shared = arguments
            value = target(*args, **kwargs)
            return ("changed", value, args, kwargs) if shared else ("value", value), ends
        if kind == "next":
            try:
                return ("value", target.send(*arguments) if arguments[0] is not None else next(target)), ends
            except StopIteration:
                return ("end",), ends
        return ("value", getattr(self, f"_{kind}")(target, *arguments)), ends

    def _load(self, names: tuple[str, ...], objects: tuple[str, ...], exceptions: tuple[str, ...]) -> tuple[Any, ...]:
        """Run the program: what the tests want of it by value, and the class names of its exceptions."""
        code = choose(self.sources, names + objects) if self.tidy else compile(self.sources[0], MODULE, "exec")
        sys.modules[MODULE] = self.module
        space = self.module.__dict__
        exec(code, space)
        for name in (*names, *objects, *exceptions):
            if name not in space:
                raise NameError(f"the program defines no function {name!r}")
        bases = tuple(tuple(kind.__name__ for kind in space[name].__mro__) for name in exceptions)
        return "loaded", tuple(space[name] for name in names), bases

    def _iter(self, target: Any) -> Any:
        return (item for item in target)  # a generator, whatever the program's own iterators are

    def _await(self, target: Any) -> Any:
        import asyncio

        return asyncio.run(target)

    def _get(self, target: Any, name: str) -> Any:
        return getattr(target, name)

    def _set(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)

    def _delete(self, target: Any, name: str) -> None:
        delattr(target, name)

    def _special(self, target: Any, name: str, args: tuple[Any, ...]) -> Any:
        return getattr(type(target), name)(target, *args)

    # Functions and iterators of the tests

    def take_other(self, about: Any) -> Any:
        match about:
            case ("library", str(module), str(name)):
                found: Any = __import__(module, fromlist=["_"])
                for part in name.split("."):
                    found = getattr(found, part)
                return found
            case ("function", int(number), str(name)):
                stand_in: Any = self._function(number, name)
            case ("iterator", int(number)):
                stand_in = self._iterator(number)
            case _:
                raise WireError("an unknown kind of object")
        self._theirs[id(stand_in)] = stand_in, number
        return stand_in

    def _function(self, number: int, name: str) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._result(self.ask(self.question("call", number, args, kwargs)))

        function.__name__ = function.__qualname__ = name
        return function

    def _iterator(self, number: int) -> Iterator[Any]:
        while (answer := self.ask(self.question("next", number))) != ("end",):
            yield self._result(answer)

    def _result(self, answer: tuple[Any, ...]) -> Any:
        match answer:
            case ("value", value):
                return value
            case ("raised", told, thrown):
                error = errors.rebuild(told, {})
                error._odd_thrown = thrown  # type: ignore[attr-defined]
                raise error
        raise WireError("an unknown answer")

    def give(self, value: Any) -> tuple[str, Any]:
        return self._values.give(value)

    def number_of(self, value: Any) -> int | None:
        """The judge's number for what this stands for; None for an object of the program."""
        return self._theirs.get(id(value), (None, None))[1]


class Lending(Ends):
    """How objects of the program are described to the judge: by kind alone, or as the objects they are."""

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
        methods = {method for one in kind.__mro__ for method, found in vars(one).items() if found is not None}
        stand_in = next((stand_in for method, stand_in in KINDS if method in methods), "opaque")
        if self.by_reference and not (stand_in == "iterator" and kind.__module__ != MODULE):
            about = name if "__call__" in methods else f"{name} object"
            return "own", (self._lend(value), "object", about, tuple(methods & DUNDERS))
        truth = bool(value) if stand_in in ("iterable", "opaque") else True
        return "own", (self._lend(value), stand_in, name, truth)

    def _lend(self, value: Any) -> int:
        return self.program.lend(value, by_reference=self.by_reference)


def main(argv: list[str]) -> None:
    requests, replies, *limits = map(int, argv)
    confine(*limits)
    leave_if_alone(1)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        sources, tidy = decode(stdin.read())
    Program(requests, replies, sources, tidy).run()

"""The trusted side: runs the tests; the functions under test are stand-ins that ask the candidate's process.

What the tests expect never leaves this process.
"""

from __future__ import annotations

import builtins
import os

from .confine import confine, leave_if_alone
from .wire import WireError, decode, receive, send

TYPE_CHECKING = False  # `typing` would add a third to the start of the process
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TESTS = "tests"
SHOWN = 160


class CandidateError(Exception):
    """The candidate failed in a way no test may excuse, or raised what is no ordinary exception."""


class Candidate:
    """The other process, as the tests see it."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        self.calls = 0
        self.last = ""  # the latest call and what came of it, for a person
        self.broken = ""

    def start(self) -> None:
        match self._receive("loading the program"):
            case ("ready",):
                return
            case ("error", str(name), str(message)):
                raise self._broken(f"the program does not load: {cut(name)}: {cut(message)}")
        raise self._broken("the program broke the protocol while loading")

    def stand_in(self, name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        function.__name__ = name
        return function

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.broken:
            raise CandidateError(self.broken)
        self.calls += 1
        self.last = f"{name}({', '.join([*map(show, args), *(f'{k}={show(v)}' for k, v in kwargs.items())])})"
        try:
            send(self.requests, (self.calls, name, args, kwargs))
        except BrokenPipeError:
            raise self._broken(f"the program ended before {self.last}") from None
        match self._receive(self.last):
            case (self.calls, "returned", value):
                self.last += f" returned {show(value)}"
                return value
            case (self.calls, "raised", str(error), str(message)):
                self.last += f" raised {cut(error)}: {cut(message)}"
                raise exception(error, message)
            case (self.calls, "not plain", str(what)):
                raise self._broken(f"{self.last} returned {cut(what)}")
        raise self._broken(f"the program broke the protocol in {self.last}")

    def _receive(self, doing: str) -> Any:
        try:
            return receive(self.replies)
        except EOFError:
            raise self._broken(f"the program ended in {doing}") from None
        except WireError as error:
            raise self._broken(f"the program broke the protocol in {doing}: {error}") from None

    def _broken(self, reason: str) -> CandidateError:
        self.broken = reason
        return CandidateError(reason)


def exception(name: str, message: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:  # UnicodeDecodeError and its like want more than a message
            pass
    return CandidateError(f"{name}: {message}")


def show(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int with more digits than Python prints
        text = f"<{type(value).__name__} too large to show>"
    return cut(text)


def cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def main(argv: list[str]) -> None:
    requests, replies, verdict, *limits = map(int, argv)
    confine(*limits)
    leave_if_alone(verdict)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        setup, tests, functions = decode(stdin.read())
    send(verdict, judge(Candidate(requests, replies), setup, tests, functions))


def judge(candidate: Candidate, setup: str, tests: str, functions: tuple[str, ...]) -> tuple[bool, str]:
    namespace: dict[str, Any] = {"__name__": TESTS}
    try:
        candidate.start()
        exec(compile(setup, "setup", "exec"), namespace)
        namespace |= {name: candidate.stand_in(name) for name in functions}
        exec(compile(tests, TESTS, "exec"), namespace)
    except BaseException as error:
        return False, candidate.broken or reason(error, tests, candidate.last)
    if candidate.broken:
        return False, candidate.broken
    if not candidate.calls:
        return False, "the tests never called the program"
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

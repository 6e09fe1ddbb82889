"""run_python(): a program of unknown intent against tests of ours, in two processes that share only
plain data.
"""

import functools
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from .inside.wire import WireError, encode, receive
from .jail import Jailed, Limits, require_sandbox, spawn, warn_unsafe
from .trial import TestsError, Trial, compiled, read_tests

MAX_SOURCE_BYTES = 8_000_000
DETAIL = 600


@dataclass(frozen=True, slots=True)
class Verdict:
    passed: bool
    detail: str  # why, for a person
    seconds: float


def run_python(
    source: str | Sequence[str],
    tests: str | Trial,
    *,
    functions: Sequence[str] | None = None,
    setup: str = "",
    by_reference: Sequence[str] = (),
    tidy: bool = False,
    limits: Limits | None = None,
    unsafe: bool = False,
) -> Verdict:
    """Run `tests`, which call the `functions` of an untrusted program (None: whatever they use and
    do not define).

    setup runs on the trusted side before the tests, which see the program's functions in place of
    its own.
    by_reference: functions and classes whose results the tests use as objects, at the price of
    trusting those. With tidy, source may be several readings of the same answer: the first that is
    a whole program counts, and a broken tail or prose that parses is cut off.
    A verdict of any program is a Verdict; SandboxError means that this machine has no working
    sandbox. Tests that no program could pass fail every program; `read_tests` says so beforehand,
    and what it gives may stand in place of `tests`.
    """
    limits = limits or Limits()
    if unsafe:
        warn_unsafe()
    require_sandbox(unsafe=unsafe)
    sources = (source,) if isinstance(source, str) else tuple(source)
    started = time.monotonic()
    try:
        program = encode((sources, tidy), MAX_SOURCE_BYTES)
    except WireError:
        return Verdict(False, f"the program is longer than {MAX_SOURCE_BYTES} bytes", 0.0)
    try:
        trial = tests if isinstance(tests, Trial) else _read(tests, functions, setup, by_reference)
        told = (
            *compiled(trial),
            trial.tests,
            trial.modules,
            trial.names,
            trial.by_reference,
            trial.waiting,
        )
    except TestsError as error:
        return Verdict(False, _readable(f"the tests fail by themselves: {error}"), 0.0)
    passed, detail, differs = _try(
        program, encode((False, *told), MAX_SOURCE_BYTES), limits, unsafe
    )
    if passed and differs:  # it has to pass as in plain Python, too
        passed, detail, _ = _try(program, encode((True, *told), MAX_SOURCE_BYTES), limits, unsafe)
        detail = detail if passed else f"the program changes or returns its arguments: {detail}"
    return Verdict(passed, _readable(detail), time.monotonic() - started)


def _read(
    tests: str, functions: Sequence[str] | None, setup: str, by_reference: Sequence[str]
) -> Trial:
    names = None if functions is None else (*functions, *by_reference)
    return read_tests(tests, setup=setup, names=names, by_reference=tuple(by_reference))


def _try(program: bytes, trial: bytes, limits: Limits, unsafe: bool) -> tuple[bool, str, bool]:
    """Passed or not, why, and whether a call has changed or returned its arguments
    (inside/judge.py).
    """
    deadline = time.monotonic() + limits.timeout_s
    with ExitStack() as stack:
        with ExitStack() as given:  # an end kept here would hide that the other side is gone
            asked, ask = _pipe(given, given)
            answers, answer = _pipe(given, given)
            verdict, say = _pipe(stack, given)
            printed, prints = _pipe(stack, given)
            start = functools.partial(spawn, limits=limits, unsafe=unsafe, stack=stack)
            candidate = start(
                "candidate",
                _argv((asked, answer), limits),
                stdin=program,
                output=prints,
                fds=(asked, answer),
            )
            start(
                "judge",
                _argv((ask, answers, say), limits),
                stdin=trial,
                output=None,
                fds=(ask, answers, say),
            )
        return _await(candidate, verdict, printed, limits, deadline)


def _argv(fds: tuple[int, ...], limits: Limits) -> list[str]:
    cpu_s = math.ceil(limits.timeout_s) + 1
    return [str(n) for n in (*fds, limits.memory_bytes, cpu_s, limits.file_bytes)]


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _await(
    candidate: Jailed, verdict: int, printed: int, limits: Limits, deadline: float
) -> tuple[bool, str, bool]:
    poll = select.poll()
    poll.register(verdict, select.POLLIN)
    poll.register(printed, select.POLLIN)
    seen = 0
    while True:
        left = deadline - time.monotonic()
        ready = {fd for fd, _ in poll.poll(max(left, 0) * 1000)} if left > 0 else set()
        if not ready:
            return False, f"took longer than {limits.timeout_s:g} s", False
        if verdict in ready:
            return _verdict(verdict, candidate)
        chunk = os.read(printed, 65536)
        seen += len(chunk)
        if seen > limits.output_bytes:
            return False, f"printed more than {limits.output_bytes} bytes", False
        if not chunk:
            poll.unregister(printed)


def _verdict(fd: int, candidate: Jailed) -> tuple[bool, str, bool]:
    try:
        passed, detail, differs = receive(fd)
    except EOFError:
        return (
            False,
            "the tests ended without a verdict (out of memory or time on what the program returned)",
            False,
        )
    if not passed and "the program ended" in detail:
        with suppress(subprocess.TimeoutExpired):
            detail += _cause(candidate.process.wait(timeout=1.0))
    return bool(passed), str(detail), bool(differs)


def _cause(status: int) -> str:
    number = (
        -status if status < 0 else status - 128
    )  # bubblewrap reports a signal as 128 + its number
    try:
        return f" (killed by {signal.Signals(number).name})"
    except ValueError:
        return f" (exit status {status})"


def _readable(detail: str) -> str:
    """One line without control characters: part of it was written by the program."""
    line = "".join(c if c.isprintable() else " " for c in detail[: 2 * DETAIL])
    return line if len(line) <= DETAIL else line[:DETAIL] + "..."

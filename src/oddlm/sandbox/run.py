"""run_python(): test an untrusted program in two processes that share only plain data."""

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
DETAIL = 600  # characters of a verdict's detail


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
    """Run `tests` against an untrusted program and return the verdict.

    functions: what the tests call; None is whatever they use and do not define.
    setup: runs on the trusted side before the tests. The program's functions replace its own.
    by_reference: functions and classes whose results the tests use as objects, and therefore trust.
    tidy: `source` may be several readings of the same answer. The first that is a whole program
    counts; a broken tail, and prose that happens to parse, is cut off.

    Every program gets a Verdict; SandboxError means that this machine has no working sandbox, or
    that the sandbox was stopped. Tests that no program could pass fail every program; `read_tests`
    detects them beforehand, and its result can be given as `tests`.
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
        code = compiled(trial)
        wanted = (trial.modules, trial.names, trial.by_reference, trial.waiting)
        request = (*code, trial.tests, *wanted)
    except TestsError as error:
        return Verdict(False, _readable(f"the tests fail by themselves: {error}"), 0.0)
    copying = encode((False, *request), MAX_SOURCE_BYTES)
    passed, detail, differs = _try(program, copying, limits, unsafe)
    if passed and differs:  # it must pass as in plain Python, too
        plain = encode((True, *request), MAX_SOURCE_BYTES)
        passed, detail, _ = _try(program, plain, limits, unsafe)
        detail = detail if passed else f"the program changes or returns its arguments: {detail}"
    return Verdict(passed, _readable(detail), time.monotonic() - started)


def _read(
    tests: str, functions: Sequence[str] | None, setup: str, by_reference: Sequence[str]
) -> Trial:
    names = None if functions is None else (*functions, *by_reference)
    return read_tests(tests, setup=setup, names=names, by_reference=tuple(by_reference))


def _try(program: bytes, trial: bytes, limits: Limits, unsafe: bool) -> tuple[bool, str, bool]:
    """Return whether the program passed, why, and whether a call changed or returned its arguments.

    See inside/judge.py for the last.
    """
    deadline = time.monotonic() + limits.timeout_s
    with ExitStack() as stack:
        with ExitStack() as given:  # an end kept open here would hide that the other side is gone
            request_in, request_out = _pipe(given, given)
            reply_in, reply_out = _pipe(given, given)
            verdict_in, verdict_out = _pipe(stack, given)
            printed_in, printed_out = _pipe(stack, given)
            start = functools.partial(spawn, limits=limits, unsafe=unsafe, stack=stack)
            fds: tuple[int, ...] = (request_in, reply_out)
            argv = _argv(fds, limits)
            candidate = start("candidate", argv, stdin=program, output=printed_out, fds=fds)
            fds = (request_out, reply_in, verdict_out)
            start("judge", _argv(fds, limits), stdin=trial, output=None, fds=fds)
        return _await(candidate, verdict_in, printed_in, limits, deadline)


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
        detail = (
            "the tests ended without a verdict (out of memory or time on what the program returned)"
        )
        return False, detail, False
    if not passed and "the program ended" in detail:
        with suppress(subprocess.TimeoutExpired):
            detail += _cause(candidate.process.wait(timeout=1.0))
    return bool(passed), str(detail), bool(differs)


def _cause(status: int) -> str:
    # bubblewrap reports a signal as 128 + its number.
    number = -status if status < 0 else status - 128
    try:
        return f" (killed by {signal.Signals(number).name})"
    except ValueError:
        return f" (exit status {status})"


def _readable(detail: str) -> str:
    """Return one line without control characters: the program wrote part of it."""
    line = "".join(c if c.isprintable() else " " for c in detail[: 2 * DETAIL])
    return line if len(line) <= DETAIL else line[:DETAIL] + "..."

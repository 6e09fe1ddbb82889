"""Whether two answers in LaTeX are the same: by their spelling, or else by math-verify.

math-verify computes with what a model wrote, and 9^{9^{9}} takes forever. So it runs in processes
of its own that have limits, are used again, and are ended when they do not answer. Only its reading
of LaTeX is used: its reading of plain expressions evaluates them as Python.
"""

import atexit
import json
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from queue import Empty, LifoQueue

TIMEOUT_S, START_S = 5, 120
MEMORY_BYTES = 2 << 30
LONGEST = 1000  # characters of an answer

_SPELLINGS = (
    (re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"), ""),
    (re.compile(r"(?<=\d),(?:\\!|\s|\{\})*(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\[!,;: ]|\\\$|\\%|[$~\s]"), ""),
)


def spelled(answer: str) -> str:
    """Return an answer without what does not change its meaning."""
    for pattern, plain in _SPELLINGS:
        answer = pattern.sub(plain, answer)
    return answer.rstrip(".")


def boxed(text: str) -> str | None:
    """Return the content of the last complete \\boxed{...} of a text."""
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text[-100_000:]))[-3:]):
        rest, depth = text[-100_000:][match.end() :], 1
        for i, character in enumerate(rest):
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return rest[:i].strip()
    return None


def require_math_verify() -> None:
    if find_spec("math_verify") is None:
        raise ValueError(
            "answers in LaTeX are compared by math-verify, which is not installed: "
            "pip install 'oddlm[tasks]'"
        )


def same(gold: str, answer: str) -> tuple[bool, str]:
    """Return whether two answers are the same, and why that is or is not known."""
    if len(answer) > LONGEST:
        return False, f"more than {LONGEST} characters"
    if spelled(gold) == spelled(answer):
        return True, "the same answer"
    try:
        judge = _idle.get_nowait()
    except Empty:
        judge = _Judge()
    try:
        verdict = judge.ask(gold, answer)
    except BaseException as error:
        judge.end()
        if isinstance(error, _NoAnswerError):
            return False, str(error)
        raise
    _idle.put(judge)
    return verdict, "the same value" if verdict else f"not {gold}"


class _NoAnswerError(Exception):
    pass


class _Judge:
    """A process that compares one pair of answers after the other."""

    def __init__(self) -> None:
        require_math_verify()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        try:
            self._read(START_S)
        except BaseException as error:
            self.end()
            if isinstance(error, _NoAnswerError):
                raise RuntimeError("a process with math-verify did not start") from None
            raise

    def ask(self, gold: str, answer: str) -> bool:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
            self._process.stdin.flush()
        return self._read(TIMEOUT_S) == b"1\n"

    def _read(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        end, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            left = max(0.0, end - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise _NoAnswerError(f"math-verify did not compare it within {seconds} s")
            got = self._process.stdout.read1(64)  # type: ignore[attr-defined]
            if not got:
                raise _NoAnswerError("math-verify needed too much memory to compare it, or crashed")
            line += got
        return line

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


_idle: LifoQueue[_Judge] = LifoQueue()


@atexit.register
def _end_all() -> None:
    with suppress(Empty):
        while True:
            _idle.get_nowait().end()


def _serve() -> None:
    """Compare the pairs that come in; end with the input, or with the first that takes too long."""
    import resource

    from math_verify import LatexExtractionConfig, parse, verify

    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    out = sys.stdout.buffer
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin.buffer:
        signal.alarm(TIMEOUT_S + 1)  # in case nobody is left to end this process
        try:
            read = [
                parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=0)
                for text in json.loads(line)
            ]
            verdict = verify(*read, timeout_seconds=None)
        except Exception:
            verdict = False
        signal.alarm(0)
        out.write(b"1\n" if verdict else b"0\n")
        out.flush()

"""Processes with limits, for scorers that compute with what a model wrote.

9^{9^{9}} takes forever, and other answers need all memory. So such a scorer runs in processes of
its own, which are used again, and are ended when they do not answer.
"""

import atexit
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from queue import Empty, LifoQueue
from typing import Any

START_S = 120.0
MEMORY_BYTES = 2 << 30
# The order of a set is the same everywhere, and no thread takes address space for its buffers.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class NoAnswerError(Exception):
    """A judge did not answer in time, or has ended."""


class Judges:
    """Judges of one kind. `module` has a function `judge()` that returns what answers requests."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self.idle: LifoQueue[Judge] = LifoQueue()
        atexit.register(self.end)

    def ask(self, *request: Any, timeout_s: float) -> Any:
        """Return what a judge answers; request and answer cross as JSON.

        Raise NoAnswerError if it does not answer in time.
        """
        try:
            judge = self.idle.get_nowait()
        except Empty:
            judge = Judge(self.module, self.name)
        try:
            answer = judge.ask(request, timeout_s)
        except BaseException:
            judge.end()
            raise
        self.idle.put(judge)
        return answer

    def end(self) -> None:
        with suppress(Empty):
            while True:
                self.idle.get_nowait().end()


class Judge:
    """A process that answers one request after the other."""

    def __init__(self, module: str, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({module!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        try:
            self._read(START_S)
        except BaseException as error:
            self.end()
            if isinstance(error, NoAnswerError):
                raise RuntimeError(f"a process with {name} did not start") from None
            raise

    def ask(self, request: Any, timeout_s: float) -> Any:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([timeout_s, request]).encode() + b"\n")
            self.process.stdin.flush()
        return json.loads(self._read(timeout_s))

    def _read(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        end, line = time.monotonic() + seconds, bytearray()
        while not line.endswith(b"\n"):
            left = max(0.0, end - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                raise NoAnswerError(f"{self.name} did not answer within {seconds:g} s")
            got = self.process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            if not got:
                raise NoAnswerError(f"{self.name} needed too much memory, or crashed")
            line += got
        return bytes(line)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def serve(module: str) -> None:
    """Answer the requests that come in; end with the input, or with the first that takes too long.

    Nothing but answers is written: a scorer may print.
    """
    import resource

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    answer: Callable[..., Any] = import_module(module).judge()
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    answers.write(b"0\n")
    answers.flush()
    for line in sys.stdin.buffer:
        timeout_s, request = json.loads(line)
        signal.alarm(math.ceil(timeout_s) + 1)  # in case nobody is left to end this process
        reply = answer(*request)
        signal.alarm(0)
        answers.write(json.dumps(reply).encode() + b"\n")
        answers.flush()

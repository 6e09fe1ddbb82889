"""Runs the code of tasks in worker processes, which can be killed and cannot block the server.

Threads would not do: a regular expression that takes minutes blocks all other threads, and cannot
be interrupted.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from .engine import ClosedError
from .scoring_process import MOST_REPLY, command
from .settings import Limits

WORKERS = 2  # texts scored at the same time
FAREWELL_S = 0.5  # for a process to end after SIGTERM
LOOK_S = 0.01  # between checks whether a process has ended
SECRETS = ("ODDLM_API_KEY",)  # environment variables that tasks must not see


class ScoringError(Exception):
    """A text could not be scored; `kind` and the message say why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """A process that answers one request after the other."""

    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        self.loaded: set[str] = set()  # tasks
        self.usable = True
        self._near, far = socket.socketpair()
        with far:
            self.process = subprocess.Popen(
                command(far.fileno(), memory_mb << 20, os.getpid()),
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # output of a task goes to the log
                env={name: value for name, value in os.environ.items() if name not in SECRETS},
                start_new_session=True,  # Ctrl-C must only reach the server
            )
        self._lines: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, limit_s: float, **request: str) -> dict[str, Any]:
        """Return its reply; raise ScoringError if that is an error, or does not come in time."""
        self.usable = False  # until it has replied
        try:
            async with asyncio.timeout(limit_s):
                if self._lines is None:
                    self._lines = await asyncio.open_connection(
                        sock=self._near, limit=2 * MOST_REPLY
                    )
                reader, writer = self._lines
                writer.write(json.dumps(request).encode() + b"\n")
                line = await reader.readline()
        except TimeoutError:
            raise ScoringError("time", f"the task took longer than {limit_s:g} s") from None
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise ScoringError("died", f"the task's process ended ({await self._cause()})")
        reply: dict[str, Any] = json.loads(line)
        if reply.get("error") == "memory":
            raise ScoringError("memory", f"the task needed more than {self.memory_mb} MB")
        self.usable = True
        if "error" in reply:
            raise ScoringError(reply["error"], reply["message"])
        return reply

    async def _cause(self) -> str:
        await self._ended(FAREWELL_S)
        status = self.process.returncode
        return (
            signal.Signals(-status).name
            if status is not None and status < 0
            else f"exit status {status}"
        )

    def signal(self, number: int) -> None:
        """Send a signal; SIGKILL goes to the whole process group.

        Sandboxes are not in that group, but end by themselves.
        """
        with suppress(ProcessLookupError):
            if self.process.poll() is None:
                (os.killpg if number == signal.SIGKILL else os.kill)(self.process.pid, number)

    async def end(self) -> None:
        self.signal(signal.SIGTERM)
        await self._ended(FAREWELL_S)
        self.signal(signal.SIGKILL)
        await self._ended(None)
        if self._lines is not None:
            self._lines[1].close()
            with suppress(OSError):
                await self._lines[1].wait_closed()
        self._near.close()

    async def _ended(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while self.process.poll() is None and (end is None or loop.time() < end):
            await asyncio.sleep(LOOK_S)


class Scorers:
    """A few workers, started when they are first needed and replaced when they are ended."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._room = asyncio.Semaphore(WORKERS)
        self._kept: dict[str, str | None] = {}  # problems by task, for new workers
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._closing = False

    async def load(self, task: str) -> list[dict[str, str]]:
        """Return a card for each of the task's problems."""
        async with self._room, self._worker() as worker:
            found = await worker.ask(self.limits.timeout_s, do="load", task=task)
            worker.loaded.add(task)
        self._kept[task] = found["kept"]
        cards: list[dict[str, str]] = found["cards"]
        return cards

    async def score(self, task: str, problem: str, text: str) -> dict[str, Any]:
        """Return the verdict on an answer to a problem; the task must be loaded."""
        async with self._room, self._worker() as worker:
            if task not in worker.loaded:
                known = (
                    {"do": "load"}
                    if self._kept[task] is None
                    else {"do": "keep", "kept": self._kept[task]}
                )
                await worker.ask(self.limits.timeout_s, task=task, **known)
                worker.loaded.add(task)
            return await worker.ask(
                self.limits.score_timeout_s, do="score", task=task, problem=problem, text=text
            )

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Worker]:
        if self._closing:
            raise ClosedError
        worker = self._idle.pop() if self._idle else Worker(self.limits.score_memory_mb)
        self._all.add(worker)
        try:
            yield worker
        except ScoringError:
            if self._closing:
                raise ClosedError from None
            raise
        finally:  # also if the request was cancelled
            if worker.usable:
                self._idle.append(worker)
            else:
                await asyncio.shield(self._end(worker))

    async def _end(self, worker: Worker) -> None:
        await worker.end()
        self._all.discard(worker)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Start no more workers, and send a signal to those that run."""
        self._closing = True
        for worker in self._all:
            worker.signal(number)

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*map(self._end, tuple(self._all)))

"""Starts the server, and stops it gracefully."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, cast

import torch
import uvicorn

from ..core.model import ModelInfo
from ..lm import LM
from .api import create_app
from .connection import Connection
from .settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

LOOK_S = 0.02  # between checks during shutdown
FAREWELL_S = 0.5  # for sending clients a 503; then they are disconnected
LAST_S = 0.2  # for the rest of the cleanup


class GentleServer(uvicorn.Server):
    """A server that shuts down in bounded time, whatever its clients do.

    After a signal, it accepts nothing new, and running requests have `grace_s` seconds. Those still
    running then, or at a second signal, get a 503; clients that do not read it are disconnected.
    `leave` is then called with the exit status, and need not return: threads may still be computing
    for requests that have ended.
    """

    def __init__(
        self, config: uvicorn.Config, app: "FastAPI", grace_s: float, leave: Callable[[int], object]
    ) -> None:
        super().__init__(config)
        self.app, self.grace_s, self.leave = app, grace_s, leave
        self._second: int | None = None  # signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Record the signal.

        uvicorn's handler would raise the signal again at the end, and exit at once at a second
        Ctrl-C.
        """
        if self.should_exit:
            self._second = sig
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Print the address once the server answers; with --port 0 it is not known before."""
        await super().startup(sockets)
        for one in sockets or ():
            host, port = one.getsockname()[:2]
            print(
                f"oddlm: serving on http://{f'[{host}]' if ':' in host else host}:{port}",
                flush=True,
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        gentle = asyncio.create_task(super().shutdown(sockets))
        await self._wait(gentle, self.grace_s, hurried=True)
        if not gentle.done():
            self.app.state.halt(signal.SIGTERM)
            await self._wait(gentle, FAREWELL_S)
            self.app.state.halt(signal.SIGKILL)
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            self.force_exit = True
            await self._wait(gentle, LAST_S)
            self.leave(0 if self._second is None else 128 + self._second)
        await gentle

    async def _wait(
        self, task: "asyncio.Task[None]", seconds: float, *, hurried: bool = False
    ) -> None:
        """Wait until the task is done, the time is over, or, if `hurried`, a second signal came."""
        end = asyncio.get_running_loop().time() + seconds
        while (
            not task.done()
            and asyncio.get_running_loop().time() < end
            and not (hurried and self._second)
        ):
            await asyncio.sleep(LOOK_S)


def listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host} port {port} ({error.strerror}): "
            "choose another with --port or --host"
        ) from None


def server_of(
    lm: LM,
    settings: ServeSettings,
    *,
    grace_s: float,
    leave: Callable[[int], object] = lambda _: None,
) -> GentleServer:
    return gentle_server(create_app(lm, settings), settings, grace_s=grace_s, leave=leave)


def gentle_server(
    app: "FastAPI",
    settings: ServeSettings,
    *,
    grace_s: float,
    leave: Callable[[int], object] = lambda _: None,
) -> GentleServer:
    """Return a server of an application whose `state.halt` ends all its requests."""
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(Connection, settings.limits)),
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
    )
    return GentleServer(config, app, grace_s, leave)


def serve(lm: LM, settings: ServeSettings, listening: socket.socket, *, grace_s: float) -> None:
    """Serve until SIGTERM or Ctrl-C. GentleServer describes the shutdown."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    run(server_of(lm, settings, grace_s=grace_s, leave=_leave), listening)


def run(server: GentleServer, listening: socket.socket) -> None:
    """Run in the main thread, and ignore signals from then on.

    The server handles them while it runs. One after that must not interrupt the exit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    server.run([listening])


def workers_for(info: ModelInfo) -> int:
    """Return one worker per CPU thread and give each pass a single thread, or one on a GPU.

    Passes of a few samples gain little from several threads.
    """
    if info.device.type != "cpu":
        return 1
    workers = torch.get_num_threads()
    torch.set_num_threads(1)
    return workers


def _leave(status: int) -> None:
    """End the process without waiting for threads.

    Python would wait for them, and abort if one of them is inside the network.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

"""Start the server and stop it gently."""

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

import uvicorn

from ..lm import LM
from .api import create_app
from .connection import Connection
from .settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

LOOK_S = 0.02  # between looks at what has ended
FAREWELL_S = 0.5  # for telling clients that the server ends; then they are cut off
LAST_S = 0.2  # for the rest, which nobody waits for any more


class GentleServer(uvicorn.Server):
    """Ends in a known time, whatever its clients do.

    A signal ends it gently: nothing new is taken, and what runs has `grace_s` seconds. What is left
    when they are over, or at a second signal, gets a 503; whoever does not read it is cut off.
    `leave` is then called with the exit status, and need not return: threads may still be at work
    for requests that are gone.
    """

    def __init__(
        self, config: uvicorn.Config, app: "FastAPI", grace_s: float, leave: Callable[[int], object]
    ) -> None:
        super().__init__(config)
        self.app, self.grace_s, self.leave = app, grace_s, leave
        self._second: int | None = None  # signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """uvicorn's own would send itself the signal again in the end, and end at once at a second
        Ctrl-C.
        """
        if self.should_exit:
            self._second = sig
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says where it listens once it answers: with port 0 nobody else knows."""
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
            self.app.state.engine.stop()
            self.app.state.scorers.stop()
            await self._wait(gentle, FAREWELL_S)
            self.app.state.scorers.stop(signal.SIGKILL)
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            self.force_exit = True
            await self._wait(gentle, LAST_S)
            self.leave(0 if self._second is None else 128 + self._second)
        await gentle

    async def _wait(
        self, task: "asyncio.Task[None]", seconds: float, *, hurried: bool = False
    ) -> None:
        """Until the task is done, the time is over, or somebody is in a hurry."""
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
            f"cannot listen on {host} port {port} ({error.strerror}): --port and --host take others"
        ) from None


def server_of(
    lm: LM,
    settings: ServeSettings,
    *,
    grace_s: float,
    leave: Callable[[int], object] = lambda _: None,
) -> GentleServer:
    app = create_app(lm, settings)
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
    """Serve until SIGTERM or Ctrl-C; see GentleServer."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    server = server_of(lm, settings, grace_s=grace_s, leave=_leave)
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            one, signal.SIG_IGN
        )  # the server takes them while it runs; one that comes later must not spoil the end
    server.run([listening])


def _leave(status: int) -> None:
    """End the process without waiting for threads: Python would, and abort where the network is in
    one of them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

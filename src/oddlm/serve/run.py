"""Start the server and stop it gently."""

import asyncio
import logging
import math
import socket
from contextlib import suppress

import uvicorn

from ..generate import LM
from .api import create_app
from .engine import Engine
from .settings import ServeSettings

FAREWELL_S = 30  # for the pass that runs when the grace ends, and for telling clients; uvicorn then cuts them off


class GentleServer(uvicorn.Server):
    """Says where it listens once it answers (with port 0 nobody else knows), and tells requests that outlast the grace."""

    def __init__(self, config: uvicorn.Config, engine: Engine, grace_s: float) -> None:
        super().__init__(config)
        self.engine, self.grace_s = engine, grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            host, port = one.getsockname()[:2]
            print(f"oddlm: serving on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end = asyncio.get_running_loop().call_later(self.grace_s, self.engine.stop)
        await super().shutdown(sockets)
        end.cancel()


def listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    except OSError as error:
        raise ValueError(f"cannot listen on {host} port {port} ({error.strerror}): --port and --host take others") from None


def serve(lm: LM, settings: ServeSettings, listening: socket.socket, *, grace_s: float) -> None:
    """Serve until SIGTERM or Ctrl-C: nothing new is taken then, and what runs has `grace_s` seconds before it gets a 503."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    app = create_app(lm, settings)
    config = uvicorn.Config(
        app,
        timeout_graceful_shutdown=math.ceil(grace_s) + FAREWELL_S,
        access_log=False,
        log_level="warning",
        server_header=False,
    )
    with suppress(KeyboardInterrupt):  # raised again by uvicorn when all is shut down
        GentleServer(config, app.state.engine, grace_s).run([listening])

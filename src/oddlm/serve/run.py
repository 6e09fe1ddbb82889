"""Start the server and stop it gently."""

import logging
import socket
from contextlib import suppress

import uvicorn

from ..generate import LM
from .api import create_app
from .settings import ServeSettings


class AnnouncedServer(uvicorn.Server):
    """Says where it listens once it does; with port 0 nobody else knows."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for one in server.sockets:
                host, port = one.getsockname()[:2]
                name = f"[{host}]" if ":" in host else host
                print(f"oddlm: serving on http://{name}:{port}", flush=True)


def serve(lm: LM, settings: ServeSettings, *, host: str, port: int, grace_s: float) -> None:
    """Serve until SIGTERM or Ctrl-C: then nothing new is taken, and what runs has `grace_s` seconds to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    config = uvicorn.Config(
        create_app(lm, settings),
        host=host,
        port=port,
        timeout_graceful_shutdown=max(1, round(grace_s)),
        access_log=False,
        log_level="warning",
        server_header=False,
    )
    server = AnnouncedServer(config)
    with suppress(KeyboardInterrupt):  # raised again by uvicorn when all is shut down
        server.run()
    if not server.started:
        raise ValueError(f"cannot listen on {host} port {port}: is something else there? --port takes another")

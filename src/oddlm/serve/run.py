"""Start the server and stop it gently."""

import logging
import socket
from contextlib import suppress

import uvicorn

from ..generate import LM
from .api import create_app
from .settings import ServeSettings


class AnnouncedServer(uvicorn.Server):
    """Says where it listens once it answers; with port 0 nobody else knows."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            host, port = one.getsockname()[:2]
            print(f"oddlm: serving on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    except OSError as error:
        raise ValueError(f"cannot listen on {host} port {port} ({error.strerror}): --port and --host take others") from None


def serve(lm: LM, settings: ServeSettings, listening: socket.socket, *, grace_s: float) -> None:
    """Serve until SIGTERM or Ctrl-C: then nothing new is taken, and what runs has `grace_s` seconds to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    config = uvicorn.Config(
        create_app(lm, settings),
        timeout_graceful_shutdown=max(1, round(grace_s)),
        access_log=False,
        log_level="warning",
        server_header=False,
    )
    with suppress(KeyboardInterrupt):  # raised again by uvicorn when all is shut down
        AnnouncedServer(config).run([listening])

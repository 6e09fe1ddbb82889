"""Middleware that checks the host name, API key and body size, and counts answers."""

import hmac
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .connection import GONE
from .errors import ApiError
from .settings import ServeSettings

Count = Callable[[str, int, float], None]  # path, status, seconds
GUARDED = ("/v1", "/metrics")
HOST = re.compile(r"(\[(?P<address>[0-9a-fA-F:.]+)\]|(?P<name>[\w.-]+))(:[0-9]{0,5})?", re.ASCII)


class Guard:
    """Middleware in pure ASGI, so that disconnects and streams pass through untouched."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, count: Count) -> None:
        self.app, self.settings, self.count = app, settings, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), GONE

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, self._limited(receive), counted)
        except ApiError as error:
            await error.response()(scope, receive, counted)
        finally:
            self.count(scope["path"], status, time.perf_counter() - began)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        names = self.settings.host_names
        if names is not None and host_name(headers.get("host", "")) not in {
            name.lower() for name in names
        }:
            raise ApiError(
                403,
                f"this server only accepts these host names: {', '.join(names)}",
                code="unknown_host",
            )
        if self.settings.api_key is not None and scope["path"].startswith(GUARDED):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            known = hmac.compare_digest(
                given.strip().encode("latin-1"), self.settings.api_key.encode()
            )
            if scheme.lower() != "bearer" or not known:
                raise ApiError(
                    401,
                    "a valid API key is required: send the header Authorization: Bearer KEY",
                    code="invalid_api_key",
                )
        length = headers.get("content-length", "0")
        if (
            not (length.isascii() and length.isdecimal())
            or int(length[:20]) > self.settings.limits.max_body
        ):
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self.settings.limits.max_body} bytes",
            code="body_too_large",
        )

    def _limited(self, receive: Receive) -> Callable[[], Awaitable[Any]]:
        """Count the bytes received, because a client need not announce the length."""
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.settings.limits.max_body:
                raise self._too_large()
            return message

        return limited


def host_name(host: str) -> str | None:
    """Return the name in a Host header without port and brackets; None if it is malformed."""
    found = HOST.fullmatch(host)
    return None if found is None else (found["address"] or found["name"]).lower()

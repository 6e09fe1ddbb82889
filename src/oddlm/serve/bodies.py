"""Bodies of requests, bounded before anything looks at what is in them.

A body within its bytes may still hold half a million numbers. Parsing them takes a second where
they are nested; complaining of each one takes several, and hundreds of megabytes. So the values of
a body are counted in its bytes, whatever field they are in and however they are nested.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from .errors import ApiError

MOST_VALUES = 4096


class BoundedRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if (count := values_in(body)) > MOST_VALUES:
            message = f"the body has {count} values in its lists and objects; this server reads at most {MOST_VALUES}"
            raise ApiError(400, message, code="body_too_large")
        return json.loads(
            body.decode()
        )  # in UTF-8 alone: in other encodings, which json knows too, the count would be wrong


class BoundedRoute(APIRoute):
    """A route that reads bodies as a BoundedRequest does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(BoundedRequest(request.scope, request.receive))

        return bounded


def values_in(body: bytes) -> int:
    """At least as many as JSON in UTF-8 holds: each is the first of a list or object, or comes
    after a comma.
    """
    if (count := _marks(body)) <= MOST_VALUES:
        return count
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _marks(b"".join(unescaped.split(b'"')[::2]))  # what is outside of texts


def _marks(body: bytes) -> int:
    return sum(map(body.count, (b",", b"[", b"{")))

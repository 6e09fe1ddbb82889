"""Request bodies, whose number of values is bounded before they are parsed.

A body within the byte limit may still hold half a million numbers. Parsing them takes a second if
they are nested; reporting a validation error for each takes several seconds and hundreds of
megabytes. So the values are counted in the raw bytes, whatever their field or nesting.
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
            message = (
                f"the body has {count} values in its lists and objects; "
                f"this server accepts at most {MOST_VALUES}"
            )
            raise ApiError(400, message, code="body_too_large")
        # UTF-8 only: json also accepts other encodings, for which the count would be wrong.
        return json.loads(body.decode())


class BoundedRoute(APIRoute):
    """A route that reads its body as a BoundedRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(BoundedRequest(request.scope, request.receive))

        return bounded


def values_in(body: bytes) -> int:
    """Return an upper bound on the number of values in a JSON body (UTF-8).

    Every value is the first of a list or object, or follows a comma.
    """
    if (count := _marks(body)) <= MOST_VALUES:
        return count
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _marks(b"".join(unescaped.split(b'"')[::2]))  # outside of strings


def _marks(body: bytes) -> int:
    return sum(map(body.count, (b",", b"[", b"{")))

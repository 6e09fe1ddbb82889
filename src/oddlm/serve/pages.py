"""The pages for people: the explorer at `/`, stored runs at `/runs`.

Nothing in them loads or runs anything from elsewhere.
"""

from fastapi import FastAPI, Response

from ..explorer.assets import INDEX, RUNS, asset, media_type
from .errors import ApiError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def explorer() -> Response:
        return _served(INDEX)

    @app.get("/runs", include_in_schema=False)
    async def runs() -> Response:
        return _served(RUNS)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _served(name)


def _served(name: str) -> Response:
    try:
        content = asset(name)
    except KeyError:
        raise ApiError(404, f"there is no file {name!r:.100}") from None
    return Response(content, media_type=f"{media_type(name)}; charset=utf-8", headers=HEADERS)

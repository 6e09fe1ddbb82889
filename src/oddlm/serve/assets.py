"""The files of the pages, as the package ships them."""

from functools import cache
from importlib.resources import files

INDEX, RUNS = "index.html", "runs.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


@cache
def _assets() -> dict[str, bytes]:
    folder = files(__package__) / "static"
    return {
        one.name: one.read_bytes() for one in folder.iterdir() if one.name.endswith(tuple(TYPES))
    }


def asset_names() -> list[str]:
    return sorted(_assets())


def asset(name: str) -> bytes:
    """KeyError for a name that is none of them."""
    return _assets()[name]


def media_type(name: str) -> str:
    return TYPES["." + name.rpartition(".")[2]]

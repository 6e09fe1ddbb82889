"""The files of the pages, as the package ships them. Imports no torch."""

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..files import write_whole

INDEX, RUNS, REPORT = "index.html", "runs.html", "report.html"
STATIC = "static"  # the folder beside a page that holds its scripts and styles
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


@cache
def _assets() -> dict[str, bytes]:
    folder = files(__package__) / STATIC
    return {
        one.name: one.read_bytes() for one in folder.iterdir() if one.name.endswith(tuple(TYPES))
    }


def asset_names() -> list[str]:
    return sorted(_assets())


def asset(name: str) -> bytes:
    """Raises KeyError for an unknown name."""
    return _assets()[name]


def media_type(name: str) -> str:
    return TYPES["." + name.rpartition(".")[2]]


def page_files(page: str) -> list[str]:
    """The scripts and styles that a page loads, in its order."""
    return re.findall(rf'(?:src|href)="{STATIC}/([\w.-]+)"', asset(page).decode())


def write_static(page: str, folder: Path) -> None:
    """Write the scripts and styles of a page to the folder that it will be in."""
    (folder / STATIC).mkdir(parents=True, exist_ok=True)
    for name in page_files(page):
        write_whole(folder / STATIC / name, asset(name))


def embedded(content: Any) -> str:
    """JSON for inside of a script: ASCII without `<`, `>` and `&`, so that no text can end the
    script.
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")

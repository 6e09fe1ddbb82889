"""How docstrings of this project read on a page: `name: what it is` becomes an item of a list."""

import re
from typing import Any

import griffe

ITEM = re.compile(r"^(?P<names>[\w., ]+): (?P<text>.*)$")


class Items(griffe.Extension):
    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        _itemize(func, {parameter.name.lstrip("*") for parameter in func.parameters})

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        _itemize(cls, set(cls.members))


def _itemize(of: griffe.Object, names: set[str]) -> None:
    if of.docstring is not None:
        of.docstring.value = itemized(of.docstring.value, names)


def itemized(text: str, names: set[str]) -> str:
    """The text with an item for every line that begins with one of the names and a colon."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        found = ITEM.match(line)
        parts = [] if found is None else re.split(r",\s*| and ", found["names"])
        if found and all(part.partition(".")[0] in names for part in parts):
            lines += [] if inside else [""]
            lines.append(f"- {', '.join(f'`{part}`' for part in parts)}: {found['text']}")
            inside = True
            continue
        inside = inside and line != ""
        lines.append(f"  {line}" if inside else line)
    return "\n".join(lines)

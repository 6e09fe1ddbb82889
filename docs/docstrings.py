"""How the docstrings and comments of this project read on a page of the API reference."""

import ast
import re
from typing import Any

import griffe

ITEM = re.compile(r"^(?P<names>[\w., ]+): (?P<text>.*)$")
COMMENT = re.compile(r"\s#\s+(?P<text>(?!type:|noqa).+)$")


class Readable(griffe.Extension):
    """`name: what it is` becomes a list item; comments behind fields become their descriptions."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        _itemize(func, {parameter.name.lstrip("*") for parameter in func.parameters})

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        _itemize(cls, {*cls.members, *(parameter.name.lstrip("*") for parameter in cls.parameters)})

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is not None:
            return
        described = _field(str(attr.value)) if attr.value is not None else None
        comment = COMMENT.search(attr.source.split("\n")[0])
        if described is not None:
            attr.value, text = described
            attr.docstring = griffe.Docstring(text, parent=attr)
        elif comment is not None:
            attr.docstring = griffe.Docstring(comment["text"], parent=attr)


def _field(value: str) -> tuple[str | None, str] | None:
    """The default and the description of pydantic's `Field(default, description=...)`."""
    call = ast.parse(value, mode="eval").body
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Name)
        or call.func.id != "Field"
    ):
        return None
    about = next((k.value for k in call.keywords if k.arg == "description"), None)
    if not isinstance(about, ast.Constant):
        return None
    return ast.unparse(call.args[0]) if call.args else None, str(about.value)


def _itemize(of: griffe.Object, names: set[str]) -> None:
    if of.docstring is not None:
        of.docstring.value = itemized(of.docstring.value, names)


def itemized(text: str, names: set[str]) -> str:
    """The text with a list item for every `name: ` that begins a line or a sentence."""
    if names:
        known = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        text = re.sub(rf"(?<=\.) (?=(?:{known})(?:, (?:{known}))*: )", "\n", text)
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
        lines.append(f"  {line.strip()}" if inside else line)
    return "\n".join(lines)

"""Chat templates, run where they can do nothing but write text, on messages that cannot pose as control tokens."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

ROLES = ("system", "user", "assistant")
PRIVATE = range(0xF0000, 0xFFFFE)  # code points that no text uses


class ChatTemplate:
    """`special` finds the texts of control tokens, each in a group of its own."""

    def __init__(self, source: str, tokens: Mapping[str, str | None], special: "re.Pattern[str] | None") -> None:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda pattern: datetime.now().strftime(pattern)}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error
        self._tokens = {name: text for name, text in tokens.items() if text is not None}
        self._special = special

    def segments(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True) -> list[tuple[str, bool]]:
        """The rendered conversation in parts, each with whether it is a control token.

        Control tokens are those that the template itself writes: the same texts inside a message are marked before the
        template runs, and unmarked after the control tokens have been cut out. answer: end where the model's turn begins.
        """
        contents = [_message(i, message) for i, message in enumerate(messages)]
        if not contents:
            raise ValueError("messages is empty: give at least one")
        marks = self._marks([content for _, content in contents])
        shielded = [{"role": role, "content": self._shield(content, marks)} for role, content in contents]
        text = self._render(shielded, answer)
        parts = [(text, False)] if self._special is None else _cut(text, self._special)
        back = {ord(mark): char for char, mark in marks.items()}
        return [(part if control else part.translate(back), control) for part, control in parts if part]

    def _marks(self, texts: Sequence[str]) -> dict[str, str]:
        """A private character for the first character of every control token found in a message."""
        found = {text[_first(match)] for text in texts for match in self._find(text)}
        taken = set("".join(texts))
        free = (chr(code) for code in PRIVATE if chr(code) not in taken)
        return {char: next(free) for char in sorted(found)}

    def _find(self, text: str) -> "list[re.Match[str]]":
        """Overlapping ones too."""
        found, at = [], 0
        while self._special is not None and (match := self._special.search(text, at)):
            found.append(match)
            at = match.start() + 1
        return found

    def _shield(self, text: str, marks: Mapping[str, str]) -> str:
        """A control token without its first character is plain text."""
        chars = list(text)
        for match in self._find(text):
            chars[_first(match)] = marks[text[_first(match)]]
        return "".join(chars)

    def _render(self, messages: list[dict[str, str]], answer: bool) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=answer, **self._tokens)
        except Exception as error:  # whatever a template of unknown making raises
            raise ValueError(f"the chat template refused the messages: {error}") from error


def _message(i: int, message: Mapping[str, str]) -> tuple[str, str]:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES or not isinstance(content, str):
        raise ValueError(
            f"messages[{i}] needs a role ({', '.join(ROLES)}) and a content that is text, not {dict(message)!r:.100}"
        )
    return role, content


def _first(match: "re.Match[str]") -> int:
    return match.start(match.lastindex or 0)


def _cut(text: str, pattern: "re.Pattern[str]") -> list[tuple[str, bool]]:
    parts: list[tuple[str, bool]] = []
    end = 0
    for match in pattern.finditer(text):
        parts += [(text[end : match.start()], False), (match[match.lastindex or 0], True)]
        end = match.end()
    return [*parts, (text[end:], False)]


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)

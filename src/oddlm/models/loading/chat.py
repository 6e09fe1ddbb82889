"""Chat templates, rendered in a sandboxed process.

Text inside a message is never taken for a control token.
"""

import atexit
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import IO, Any

from . import rendering

ROLES = ("system", "user", "assistant")
PRIVATE = range(0xF0000, 0xFFFFE)  # code points that no text uses
WALL_S = 60.0  # for one reply of the rendering process, which limits its own CPU time
MOST_BYTES = 12 * rendering.MOST_CHARACTERS + 4096  # of a reply: JSON takes up to 12 per character
LONGEST_TOKEN = 128  # characters of a control token
_SPACE = re.compile(r"\s*")


class ChatTemplate:
    """The chat template of a checkpoint.

    Rendering never costs more than the limits in `rendering`.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str | None], special: "ControlTokens"
    ) -> None:
        if len(source) > rendering.MOST_SOURCE:
            raise ValueError(f"the chat template is longer than {rendering.MOST_SOURCE} characters")
        try:
            renderer()(source, None)
        except ValueError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error
        self.source = source
        self._tokens = {name: text for name, text in tokens.items() if text is not None}
        self._special = special

    def segments(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True
    ) -> list[tuple[str, bool]]:
        """Return the rendered conversation as (text, whether it is a control token) pairs.

        Only text written by the template itself can be a control token: the same text inside a
        message is marked before the template runs, and unmarked after the split.

        answer: add the generation prompt, so that the text ends where the model's reply begins.
        """
        contents = [_message(i, message) for i, message in enumerate(messages)]
        if not contents:
            raise ValueError("messages is empty: pass at least one message")
        places = [[place for place, _ in self._special.find(content)] for _, content in contents]
        marks = _marks([content for _, content in contents], places)
        shielded = [
            {"role": role, "content": _shielded(content, found, marks)}
            for (role, content), found in zip(contents, places, strict=True)
        ]
        text = self._render(shielded, answer)
        back = {ord(mark): char for char, mark in marks.items()}
        parts = self._special.cut(text)
        return [
            (part if control else part.translate(back), control) for part, control in parts if part
        ]

    def _render(self, messages: list[dict[str, str]], answer: bool) -> str:
        variables = {"messages": messages, "add_generation_prompt": answer, **self._tokens}
        try:
            return renderer()(self.source, variables)
        except ValueError as error:
            raise ValueError(f"the chat template rejected the messages: {error}") from error


class ControlTokens:
    """The texts of control tokens; `strips` tells whether each absorbs whitespace (left, right).

    Both the tokens and the texts are untrusted, so the tokens are not compiled into a regular
    expression: searching takes time linear in the text.
    """

    def __init__(self, strips: Mapping[str, tuple[bool, bool]]) -> None:
        lengths: dict[str, set[int]] = {}
        for text in strips:
            if not 0 < len(text) <= LONGEST_TOKEN:
                raise ValueError(
                    f"a control token must have 1 to {LONGEST_TOKEN} characters, not {len(text)}: "
                    f"{text!r:.60}"
                )
            lengths.setdefault(text[0], set()).add(len(text))
        self._strips = strips
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile(f"[{''.join(map(re.escape, lengths))}]" if lengths else "(?!)")

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield (position, token): the longest match at each position, overlaps included."""
        for match in self._first.finditer(text):
            place = match.start()
            for length in self._lengths[match[0]]:
                if (found := text[place : place + length]) in self._strips:
                    yield place, found
                    break

    def cut(self, text: str) -> list[tuple[str, bool]]:
        """Split the text into (part, whether it is a control token) pairs.

        Whitespace that a token absorbs is dropped.
        """
        parts: list[tuple[str, bool]] = []
        end = 0
        for place, token in self.find(text):
            if place < end:
                continue
            left, right = self._strips[token]
            between = text[end:place]
            parts += [(between.rstrip() if left else between, False), (token, True)]
            end = place + len(token)
            if right:
                end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        return [*parts, (text[end:], False)]


class Renderer:
    """A client of the rendering process (`rendering`), which all templates share.

    The process is started on first use, and again after it has ended.
    """

    _process: "subprocess.Popen[bytes] | None"
    _lock: Lock

    def __init__(self) -> None:
        self._forget()
        atexit.register(self._end)
        # a forked child must not use its parent's pipes
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, source: str, variables: Mapping[str, Any] | None) -> str:
        """Return the rendered template; with variables None, only check its syntax.

        Raise ValueError if the template fails.
        """
        with self._lock:
            try:
                process = self._process = self._process or _start()
                request = {"source": source, "variables": variables, "cpu_s": rendering.CPU_S}
                rendering.send(_pipe(process.stdin), request)
                answer = _receive(process)
            except (OSError, EOFError) as error:
                raise ValueError(_cause(self._end(), error)) from error
            except BaseException:
                self._end()  # or the late reply would be taken for that of the next request
                raise
        if "text" not in answer:
            raise ValueError(str(answer.get("error")))
        return str(answer["text"])

    def _forget(self) -> None:
        self._process = None
        self._lock = Lock()

    def _end(self) -> int | None:
        """Kill the process, if there is one, and return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                _pipe(pipe).close()
        return process.wait()


@cache
def renderer() -> Renderer:
    return Renderer()


def _start() -> "subprocess.Popen[bytes]":
    found = [find_spec(name) for name in ("jinja2", "markupsafe")]
    homes = {
        str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", rendering.__file__, *sorted(homes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must not reach it
    )


def _receive(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    end = time.monotonic() + WALL_S
    file = _pipe(process.stdout).fileno()
    poll = select.poll()
    poll.register(file, select.POLLIN)

    def read(size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError(f"no reply within {WALL_S:g} s")
            chunk = os.read(file, min(size - len(content), 1 << 20))
            if not chunk:
                raise EOFError
            content += chunk
        return bytes(content)

    (size,) = rendering.HEADER.unpack(read(rendering.HEADER.size))
    if size > MOST_BYTES:
        raise EOFError(f"a reply of {size} bytes")
    answer: dict[str, Any] = json.loads(read(size))
    return answer


def _pipe(pipe: IO[bytes] | None) -> Any:
    assert pipe is not None
    return pipe


def _cause(status: int | None, error: BaseException) -> str:
    if status == -signal.SIGXCPU:
        return f"it takes more than {rendering.CPU_S} s of CPU time"
    return f"its process ended ({str(error) or f'status {status}'})"


def _marks(texts: Sequence[str], places: Sequence[Sequence[int]]) -> dict[str, str]:
    """Map the first character of every control token found in a message to a private one."""
    found = {text[place] for text, own in zip(texts, places, strict=True) for place in own}
    taken = set("".join(texts))
    free = (chr(code) for code in PRIVATE if chr(code) not in taken)
    return {char: next(free) for char in sorted(found)}


def _shielded(text: str, places: Sequence[int], marks: Mapping[str, str]) -> str:
    """Replace the first characters of control tokens, which makes them plain text."""
    chars = list(text)
    for place in places:
        chars[place] = marks[text[place]]
    return "".join(chars)


def _message(i: int, message: Mapping[str, str]) -> tuple[str, str]:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES or not isinstance(content, str):
        raise ValueError(
            f"messages[{i}] must have a role ({', '.join(ROLES)}) and a string as content, "
            f"not {dict(message)!r:.100}"
        )
    return role, content

"""Chat templates, run where they can do nothing but write text, on messages that cannot pose as
control tokens.
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
WALL_S = (
    60.0  # for an answer of the process that renders; its own limit is on the time that it computes
)
MOST_BYTES = (
    12 * rendering.MOST_CHARACTERS + 4096
)  # of an answer: JSON takes up to twelve for a character
LONGEST_TOKEN = 128  # characters of a control token
_SPACE = re.compile(r"\s*")


class ChatTemplate:
    """A template as a checkpoint brings it.

    Whatever it does, it costs no more than the limits in `rendering`.
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
        self._source = source
        self._tokens = {name: text for name, text in tokens.items() if text is not None}
        self._special = special

    def segments(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True
    ) -> list[tuple[str, bool]]:
        """The rendered conversation in parts, each with whether it is a control token.

        Control tokens are those that the template itself writes: the same texts inside a message
        are marked before the template runs, and unmarked after the control tokens have been cut
        out. answer: end where the model's turn begins.
        """
        contents = [_message(i, message) for i, message in enumerate(messages)]
        if not contents:
            raise ValueError("messages is empty: give at least one")
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
            return renderer()(self._source, variables)
        except ValueError as error:
            raise ValueError(f"the chat template refused the messages: {error}") from error


class ControlTokens:
    """The texts of control tokens, each with whether it takes the white space before it and behind
    it along.

    They come from checkpoints and texts from anybody, so no pattern is made of them: finding them
    takes time that grows with the text, whatever they are.
    """

    def __init__(self, strips: Mapping[str, tuple[bool, bool]]) -> None:
        lengths: dict[str, set[int]] = {}
        for text in strips:
            if not 0 < len(text) <= LONGEST_TOKEN:
                raise ValueError(
                    f"a control token has 1 to {LONGEST_TOKEN} characters, not {len(text)}: {text!r:.60}"
                )
            lengths.setdefault(text[0], set()).add(len(text))
        self._strips = strips
        self._lengths = {first: sorted(some, reverse=True) for first, some in lengths.items()}
        self._first = re.compile(f"[{''.join(map(re.escape, lengths))}]" if lengths else "(?!)")

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """(where it begins, its text), the longest at every place; overlapping ones too."""
        for match in self._first.finditer(text):
            place = match.start()
            for length in self._lengths[match[0]]:
                if (found := text[place : place + length]) in self._strips:
                    yield place, found
                    break

    def cut(self, text: str) -> list[tuple[str, bool]]:
        """The text in parts, each with whether it is a control token; white space that belongs to
        those is left out.
        """
        parts: list[tuple[str, bool]] = []
        end = 0
        for place, token in self.find(text):
            if place < end:
                continue
            before, behind = self._strips[token]
            between = text[end:place]
            parts += [(between.rstrip() if before else between, False), (token, True)]
            end = place + len(token)
            if behind:
                end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        return [*parts, (text[end:], False)]


class Renderer:
    """The process that renders (`rendering`), one for all templates; started when first needed, and
    again when it has ended.
    """

    _process: "subprocess.Popen[bytes] | None"
    _lock: Lock

    def __init__(self) -> None:
        self._forget()
        atexit.register(self._end)
        os.register_at_fork(
            after_in_child=self._forget
        )  # a fork must not use the pipes of its parent

    def __call__(self, source: str, variables: Mapping[str, Any] | None) -> str:
        """What a template writes; without variables it is only read.

        ValueError says what is wrong with it.
        """
        with self._lock:
            try:
                process = self._process = self._process or _start()
                request = {"source": source, "variables": variables, "cpu_s": rendering.CPU_S}
                rendering.send(_pipe(process.stdin), request)
                answer = _receive(process)
            except (OSError, EOFError) as error:
                raise ValueError(_cause(self._end(), error)) from error
            except (
                BaseException
            ):  # an answer that nobody waited for would be taken for the next one
                self._end()
                raise
        if "text" not in answer:
            raise ValueError(str(answer.get("error")))
        return str(answer["text"])

    def _forget(self) -> None:
        self._process = None
        self._lock = Lock()

    def _end(self) -> int | None:
        """Kill the process, if there is one; how it ended."""
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
        start_new_session=True,  # Ctrl-C is for us
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
                raise TimeoutError(f"no answer within {WALL_S:g} s")
            chunk = os.read(file, min(size - len(content), 1 << 20))
            if not chunk:
                raise EOFError
            content += chunk
        return bytes(content)

    (size,) = rendering.HEADER.unpack(read(rendering.HEADER.size))
    if size > MOST_BYTES:
        raise EOFError(f"an answer of {size} bytes")
    answer: dict[str, Any] = json.loads(read(size))
    return answer


def _pipe(pipe: IO[bytes] | None) -> Any:
    assert pipe is not None
    return pipe


def _cause(status: int | None, error: BaseException) -> str:
    if status == -signal.SIGXCPU:
        return f"it computes for more than {rendering.CPU_S} s"
    return f"its process ended ({str(error) or f'status {status}'})"


def _marks(texts: Sequence[str], places: Sequence[Sequence[int]]) -> dict[str, str]:
    """A private character for the first character of every control token found in a message."""
    found = {text[place] for text, some in zip(texts, places, strict=True) for place in some}
    taken = set("".join(texts))
    free = (chr(code) for code in PRIVATE if chr(code) not in taken)
    return {char: next(free) for char in sorted(found)}


def _shielded(text: str, places: Sequence[int], marks: Mapping[str, str]) -> str:
    """A control token without its first character is plain text."""
    chars = list(text)
    for place in places:
        chars[place] = marks[text[place]]
    return "".join(chars)


def _message(i: int, message: Mapping[str, str]) -> tuple[str, str]:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES or not isinstance(content, str):
        raise ValueError(
            f"messages[{i}] needs a role ({', '.join(ROLES)}) and a content that is text, not {dict(message)!r:.100}"
        )
    return role, content

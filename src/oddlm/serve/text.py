"""Samples as text: stop texts, and how much of a sample can be told before it is finished."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.canvas import Template as Form
from ..core.step import Observer, Sample, StepEvent
from ..explorer.messages import FinishReason
from ..explorer.usage import cut, told, written
from ..text import text_length

IMPOSSIBLE = -9999.0  # OpenAI's number where JSON has none for minus infinity


def settled(text: str, stops: Sequence[str]) -> str:
    """What of an unfinished text will not change: no half character at its end, and nothing that
    may become a stop text.
    """
    text = text.rstrip("\ufffd")
    held = (
        size
        for stop in stops
        for size in range(1, min(len(stop), len(text)) + 1)
        if text.endswith(stop[:size])
    )
    return text[: len(text) - max(held, default=0)]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a token adds to its sample's text; half a character adds nothing until its other half
    comes.
    """

    text: str
    offset: int
    logprob: float  # of the network


def pieces(
    sample: Sample,
    stops: Sequence[str],
    decode: Callable[[Sequence[int]], str],
    end_ids: Collection[int],
    form: Form | None = None,
) -> list[Piece]:
    """The sample's text by tokens, as far as it is told."""
    text, stopped = cut(sample.text, stops)
    found, before = [], 0
    for ids, logprobs in written(sample, form, end_ids):
        whole = len(sample.text) if form is None else before + len(decode(ids))
        # Of the tokens together, as one alone may read otherwise: its space, or half of a
        # character.
        ends = [before + len(decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids))] + [
            whole
        ]
        ends = [min(end, len(text)) for end in ends]
        found += [
            Piece(text[start:end], start, max(logprob, IMPOSSIBLE))
            for start, end, logprob in zip(ends, ends[1:], logprobs, strict=False)
            if start < len(text) or not stopped
        ]
        before = whole
    return found


@dataclass(frozen=True, slots=True)
class Growth:
    """Rows whose first blocks are finished: row -> the tokens of those blocks."""

    rows: Mapping[int, tuple[int, ...]]


def grown_blocks(block_length: int) -> Callable[[Callable[[Any], None]], Observer]:
    """An observer that sends a Growth whenever a row has finished a further block from the left."""

    def watch(send: Callable[[Any], None]) -> Observer:
        told: dict[int, int] = {}

        def observe(event: StepEvent) -> None:
            still = event.step.masked & ~event.commit
            done = still.cumsum(dim=1).eq(0).sum(dim=1) // block_length * block_length
            tokens = event.prediction.tokens.where(event.commit, event.step.tokens)
            rows = {row: end for row, end in enumerate(done.tolist()) if end > told.get(row, 0)}
            if rows:
                told.update(rows)
                send(Growth({row: tuple(tokens[row, :end].tolist()) for row, end in rows.items()}))

        return observe

    return watch


@dataclass
class TextStream:
    """The text of one sample, told piece by piece; all pieces together are the text that is told at
    once.
    """

    decode: Callable[[Sequence[int]], str]
    end_ids: Collection[int]
    stops: Sequence[str]
    said: str = field(default="", init=False)

    def grow(self, tokens: Sequence[int]) -> str:
        """What is new, and sure, of the text of the first tokens."""
        text = self.decode(tokens[: text_length(tokens, self.end_ids)])
        shown, stopped = cut(text, self.stops)
        return self._new(shown if stopped else settled(shown, self.stops))

    def finish(self, sample: Sample) -> tuple[str, FinishReason]:
        text, reason = told(sample, self.stops)
        return self._new(text), reason

    def _new(self, text: str) -> str:
        fresh = text[len(self.said) :] if text.startswith(self.said) else ""
        self.said += fresh
        return fresh

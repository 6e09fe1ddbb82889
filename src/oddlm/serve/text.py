"""Samples as text: stop texts, and how much of an unfinished sample can be sent."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.canvas import Template as Form
from ..core.step import Observer, Sample, StepEvent
from ..explorer.messages import FinishReason
from ..explorer.usage import final_text, written
from ..text import cut, text_length

IMPOSSIBLE = -9999.0  # OpenAI's value for minus infinity, which JSON lacks


def settled(text: str, stops: Sequence[str]) -> str:
    """Return the part of an unfinished text that is final.

    It excludes half a character at the end, and anything that may become a stop text.
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
    """The text that a token adds to its sample.

    Half a character adds nothing until the other half follows.
    """

    text: str
    offset: int
    logprob: float  # under the network


def pieces(
    sample: Sample,
    stops: Sequence[str],
    decode: Callable[[Sequence[int]], str],
    end_ids: Collection[int],
    form: Form | None = None,
) -> list[Piece]:
    """Split the sample's text, up to the first stop text, into tokens."""
    text, stopped = cut(sample.text, stops)
    found, before = [], 0
    for ids, logprobs in written(sample, form, end_ids):
        whole = len(sample.text) if form is None else before + len(decode(ids))
        # Decoded together, because a token alone may lose its space or be half a character.
        ends = [before + len(decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids))]
        ends = [min(end, len(text)) for end in (*ends, whole)]
        found += [
            Piece(text[start:end], start, max(logprob, IMPOSSIBLE))
            for start, end, logprob in zip(ends, ends[1:], logprobs, strict=False)
            if start < len(text) or not stopped
        ]
        before = whole
    return found


@dataclass(frozen=True, slots=True)
class Growth:
    """Samples with newly finished blocks: index -> all tokens finished from the left."""

    samples: Mapping[int, tuple[int, ...]]


def grown_blocks(send: Callable[[Any], None]) -> Observer:
    """Return an observer that sends a Growth when samples finish further blocks from the left."""
    sent: dict[int, int] = {}  # index -> tokens

    def observe(event: StepEvent) -> None:
        after = event.after
        done = (after.ids < after.current[:, None]).sum(dim=1)
        tokens = event.prediction.tokens.where(event.commit, event.step.tokens)
        grown = {i: end for i, end in enumerate(done.tolist()) if end > sent.get(i, 0)}
        if grown:
            sent.update(grown)
            send(Growth({i: tuple(tokens[i, :end].tolist()) for i, end in grown.items()}))

    return observe


@dataclass
class TextStream:
    """The text of one sample, sent in pieces that add up to the text of a complete answer."""

    decode: Callable[[Sequence[int]], str]
    end_ids: Collection[int]
    stops: Sequence[str]
    sent: str = field(default="", init=False)

    def grow(self, tokens: Sequence[int]) -> str:
        """Return the new and final part of the text of the first tokens."""
        text = self.decode(tokens[: text_length(tokens, self.end_ids)])
        shown, stopped = cut(text, self.stops)
        return self._new(shown if stopped else settled(shown, self.stops))

    def finish(self, sample: Sample) -> tuple[str, FinishReason]:
        text, reason = final_text(sample, self.stops)
        return self._new(text), reason

    def _new(self, text: str) -> str:
        fresh = text[len(self.sent) :] if text.startswith(self.sent) else ""
        self.sent += fresh
        return fresh

"""The two shapes of OpenAI's answers, whole and in chunks."""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from ..explorer.messages import Extra, FinishReason, Usage
from .schema import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    TokenLogprob,
)
from .text import Piece

Told = tuple[str, FinishReason, Sequence[Piece] | None]


@dataclass(frozen=True)
class Completions:
    """`/v1/completions`."""

    model: str
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def head(self) -> dict[str, Any]:
        return {"id": self.id, "created": self.created, "model": self.model}

    def answer(self, told: Sequence[Told], usage: Usage, extra: Extra) -> BaseModel:
        choices = [
            CompletionChoice(
                index=i,
                text=text,
                finish_reason=reason,
                logprobs=None if pieces is None else self._likely(pieces),
            )
            for i, (text, reason, pieces) in enumerate(told)
        ]
        return CompletionAnswer(**self.head, choices=choices, usage=usage, oddlm=extra)

    def _likely(self, pieces: Sequence[Piece]) -> Any:
        return CompletionLogprobs(
            tokens=[piece.text for piece in pieces],
            token_logprobs=[piece.logprob for piece in pieces],
            text_offset=[piece.offset for piece in pieces],
        )

    def opening(self, _rows: int) -> Iterator[BaseModel]:
        """Chunks before any text."""
        yield from ()

    def chunk(self, index: int, text: str, reason: FinishReason | None) -> BaseModel:
        return CompletionAnswer(
            **self.head, choices=[CompletionChoice(index=index, text=text, finish_reason=reason)]
        )

    def closing(self, usage: Usage | None, extra: Extra) -> BaseModel:
        """The chunk after all text."""
        return CompletionAnswer(**self.head, choices=[], usage=usage, oddlm=extra)


@dataclass(frozen=True)
class Chat(Completions):
    """`/v1/chat/completions`."""

    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")

    def answer(self, told: Sequence[Told], usage: Usage, extra: Extra) -> BaseModel:
        choices = [
            ChatChoice(
                index=i,
                message=ChatMessage(role="assistant", content=text),
                finish_reason=reason,
                logprobs=None if pieces is None else self._likely(pieces),
            )
            for i, (text, reason, pieces) in enumerate(told)
        ]
        return ChatAnswer(**self.head, choices=choices, usage=usage, oddlm=extra)

    def _likely(self, pieces: Sequence[Piece]) -> Any:
        tokens = [
            TokenLogprob(token=one.text, logprob=one.logprob, bytes=list(one.text.encode()))
            for one in pieces
        ]
        return ChatLogprobs(content=tokens)

    def opening(self, _rows: int) -> Iterator[BaseModel]:
        for index in range(_rows):
            yield self._delta(index, ChatMessage(role="assistant", content=""), None)

    def chunk(self, index: int, text: str, reason: FinishReason | None) -> BaseModel:
        return self._delta(index, ChatMessage(content=text), reason)

    def closing(self, usage: Usage | None, extra: Extra) -> BaseModel:
        return ChatChunk(**self.head, choices=[], usage=usage, oddlm=extra)

    def _delta(self, index: int, delta: ChatMessage, reason: FinishReason | None) -> BaseModel:
        return ChatChunk(
            **self.head, choices=[ChatDelta(index=index, delta=delta, finish_reason=reason)]
        )

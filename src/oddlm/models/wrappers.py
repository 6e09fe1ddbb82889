"""Models around models. The sampler sees one model and does not know."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..checks import finite, whole
from ..core.model import Model, ModelInfo, Query, Session, info_of, open_session


class Wrapper:
    """Everything the wrapped model says of itself, said again."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def info(self) -> ModelInfo:
        return info_of(self.model)

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet, as while unpickling
            raise AttributeError(name)
        return getattr(self.model, name)


class MicroBatch(Wrapper):
    """Show the network at most `max_batch` samples at a time; a guide still sees the whole batch."""

    def __init__(self, model: Model, max_batch: int) -> None:
        super().__init__(model)
        self.max_batch = whole("max_batch", max_batch)

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, max_batch=self.max_batch)

    def __call__(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, **aside: Tensor
    ) -> Tensor:
        by_row = (x.split(self.max_batch) for x in (tokens, prompt_lengths, *aside.values()))
        parts = zip(*by_row, strict=True)
        return torch.cat(
            [
                self.model(some, start, lengths, **dict(zip(aside, rest, strict=True)))
                for some, lengths, *rest in parts
            ]
        )

    def session(self, query: Query) -> Session:
        """Each part of the samples is a run of its own; so it stays where some of them are done."""
        query = _numbered(query)
        parts = [
            query.take(slice(i, i + self.max_batch))
            for i in range(0, len(query.tokens), self.max_batch)
        ]
        first = torch.stack([part.samples[0] for part in parts if part.samples is not None])
        return _Parts([open_session(self.model, part) for part in parts], first)


def _numbered(query: Query) -> Query:
    if query.samples is not None:
        return query
    return replace(query, samples=torch.arange(len(query.tokens), device=query.tokens.device))


@dataclass(frozen=True, slots=True)
class _Parts:
    sessions: Sequence[Session]
    first: Tensor  # [parts]: the first sample of each

    def __call__(self, query: Query) -> Tensor:
        query = _numbered(query)
        assert query.samples is not None
        begins = torch.searchsorted(query.samples, self.first).tolist()
        parts = []
        for session, first, last in zip(
            self.sessions, begins, [*begins[1:], len(query.tokens)], strict=True
        ):
            if first < last:
                parts.append(session(query.take(slice(first, last))))
        return torch.cat(parts)


class ClassifierFree(Wrapper):
    """Classifier-free guidance: extrapolate from the logits without the prompt to those with it, by
    1 + scale.
    """

    def __init__(self, model: Model, scale: float) -> None:
        super().__init__(model)
        self.scale = finite("scale", scale)
        mask_id = info_of(model).mask_id
        if mask_id is None:
            raise ValueError(
                "classifier-free guidance hides the prompt behind MASK, and this model has none"
            )
        self._mask_id = mask_id

    @property
    def info(self) -> ModelInfo:
        own = super().info
        return replace(own, name=f"{own.name} with cfg_scale {self.scale:g}", passes=2 * own.passes)

    def __call__(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, **aside: Tensor
    ) -> Tensor:
        given = self.model(tokens, start, prompt_lengths, **aside)
        return self.extrapolate(
            given, self.model(self._hidden(tokens, start), start, prompt_lengths)
        )

    def session(self, query: Query) -> Session:
        """With the prompt and without are two runs."""
        return _Twice(
            self, open_session(self.model, query), open_session(self.model, self.blind(query))
        )

    def blind(self, query: Query) -> Query:
        """The same question without the prompt."""
        return replace(query, tokens=self._hidden(query.tokens, query.start), nudge=None)

    def _hidden(self, tokens: Tensor, start: int) -> Tensor:
        return torch.cat(
            [torch.full_like(tokens[:, :start], self._mask_id), tokens[:, start:]], dim=1
        )

    def extrapolate(self, given: Tensor, without: Tensor) -> Tensor:
        """The guided logits, from those with the prompt and those without."""
        guided = without + (1 + self.scale) * (given - without)
        return torch.where(
            guided.isfinite(), guided, given
        )  # where one of the two is -inf there is nothing to extrapolate


@dataclass(frozen=True, slots=True)
class _Twice:
    model: ClassifierFree
    seeing: Session
    blind: Session

    def __call__(self, query: Query) -> Tensor:
        return self.model.extrapolate(self.seeing(query), self.blind(self.model.blind(query)))

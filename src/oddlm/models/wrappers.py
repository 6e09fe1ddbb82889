"""Wrappers that add batching or guidance to a model; the sampler sees an ordinary model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import finite, whole
from ..core.model import Model, ModelInfo, Query, Session, info_of, open_session


def network_of(model: Any) -> nn.Module | None:
    """Return the module that a model computes with: itself, or its `network` or `model`."""
    while model is not None and not isinstance(model, nn.Module):
        model = getattr(model, "network", getattr(model, "model", None))
    return model


class Wrapper:
    """Forwards every attribute of the wrapped model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def info(self) -> ModelInfo:
        return info_of(self.model)

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet, e.g. while unpickling
            raise AttributeError(name)
        return getattr(self.model, name)


class MicroBatch(Wrapper):
    """Run the network on at most `max_batch` samples at a time; a guide still sees all of them."""

    def __init__(self, model: Model, max_batch: int) -> None:
        super().__init__(model)
        self.max_batch = whole("max_batch", max_batch)

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, max_batch=self.max_batch)

    def __call__(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, **options: Tensor
    ) -> Tensor:
        split = (x.split(self.max_batch) for x in (tokens, prompt_lengths, *options.values()))
        parts = zip(*split, strict=True)
        return torch.cat(
            [
                self.model(part, start, lengths, **dict(zip(options, rest, strict=True)))
                for part, lengths, *rest in parts
            ]
        )

    def session(self, query: Query) -> Session:
        """Open one session per part; samples stay in their part when others are done."""
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
    """Classifier-free guidance: extrapolate from the logits without the prompt to those with it.

    The factor is 1 + scale.
    """

    def __init__(self, model: Model, scale: float) -> None:
        super().__init__(model)
        self.scale = finite("scale", scale)
        mask_id = info_of(model).mask_id
        if mask_id is None:
            raise ValueError(
                "classifier-free guidance replaces the prompt by MASK tokens, but this model has "
                "none"
            )
        self._mask_id = mask_id

    @property
    def info(self) -> ModelInfo:
        own = super().info
        return replace(own, name=f"{own.name} with cfg_scale {self.scale:g}", passes=2 * own.passes)

    def __call__(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, **options: Tensor
    ) -> Tensor:
        conditional = self.model(tokens, start, prompt_lengths, **options)
        unconditional = self.model(self._hide_prompt(tokens, start), start, prompt_lengths)
        return self.extrapolate(conditional, unconditional)

    def session(self, query: Query) -> Session:
        """Open two sessions, one with the prompt and one without."""
        return _GuidedSession(
            self,
            open_session(self.model, query),
            open_session(self.model, self.unconditional(query)),
        )

    def unconditional(self, query: Query) -> Query:
        """Return the same query without the prompt."""
        return replace(query, tokens=self._hide_prompt(query.tokens, query.start), nudge=None)

    def _hide_prompt(self, tokens: Tensor, start: int) -> Tensor:
        return torch.cat(
            [torch.full_like(tokens[:, :start], self._mask_id), tokens[:, start:]], dim=1
        )

    def extrapolate(self, conditional: Tensor, unconditional: Tensor) -> Tensor:
        """Return the guided logits, from those with the prompt and those without."""
        guided = unconditional + (1 + self.scale) * (conditional - unconditional)
        return torch.where(guided.isfinite(), guided, conditional)  # either of them may be -inf


@dataclass(frozen=True, slots=True)
class _GuidedSession:
    model: ClassifierFree
    conditional: Session
    unconditional: Session

    def __call__(self, query: Query) -> Tensor:
        return self.model.extrapolate(
            self.conditional(query), self.unconditional(self.model.unconditional(query))
        )

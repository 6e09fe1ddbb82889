"""Wrappers that add batching or guidance to a model; the sampler sees an ordinary model."""

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
        return _Parts(self.model, query, self.max_batch)


class _Parts:
    """A session for every `size` samples of the first query."""

    def __init__(self, model: Model, first: Query, size: int) -> None:
        samples = _samples(first)
        self.first = samples[::size].contiguous()
        self.samples = first.samples
        self.parts = [
            (slice(i, i + size), own)
            for i, own in zip(range(0, len(samples), size), samples.split(size), strict=True)
        ]
        """Where the samples of each session are in a query with `self.samples`, and which."""
        self.sessions = [open_session(model, _part(first, *part)) for part in self.parts]

    def __call__(self, query: Query) -> Tensor:
        if query.samples is not self.samples:
            self._divide(query)
        return torch.cat(
            [
                session(_part(query, where, own))
                for session, (where, own) in zip(self.sessions, self.parts, strict=True)
                if len(own)
            ]
        )

    def _divide(self, query: Query) -> None:
        """Find the samples of each session, once while they are the same: it waits for a GPU."""
        samples = _samples(query)
        begins = torch.searchsorted(samples, self.first).tolist()
        ends = [*begins[1:], len(samples)]
        where = [slice(*pair) for pair in zip(begins, ends, strict=True)]
        self.samples, self.parts = query.samples, [(some, samples[some]) for some in where]


def _samples(query: Query) -> Tensor:
    if query.samples is not None:
        return query.samples
    return torch.arange(len(query.tokens), device=query.tokens.device)


def _part(query: Query, where: slice, samples: Tensor) -> Query:
    return replace(query.take(where), samples=samples)


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

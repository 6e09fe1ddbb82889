"""Models around models. The sampler sees one callable and does not know."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..checks import finite, whole
from ..types import Model, Network, identity, open_session


class Wrapper:
    """Everything the wrapped model says of itself, said again."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = identity(model)

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet, as while unpickling
            raise AttributeError(name)
        return getattr(self.model, name)


class MicroBatch(Wrapper):
    """Show the network at most `max_batch` rows at a time; a guide still sees the whole batch."""

    def __init__(self, model: Model, max_batch: int) -> None:
        super().__init__(model)
        self.max_batch = whole("max_batch", max_batch)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor, nudge: Tensor | None = None) -> Tensor:
        return self._cut([self.model] * -(-len(tokens) // self.max_batch), tokens, start, prompt_lengths, nudge)

    def session(self, start: int, prompt_lengths: Tensor, length: int, block_length: int) -> Network:
        parts = prompt_lengths.split(self.max_batch)
        return partial(self._cut, [open_session(self.model, start, part, length, block_length) for part in parts])

    def _cut(
        self, models: list[Network], tokens: Tensor, start: int, prompt_lengths: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        """Each model its rows."""
        nudges = [None] * len(models) if nudge is None else nudge.split(self.max_batch)
        parts = zip(models, tokens.split(self.max_batch), prompt_lengths.split(self.max_batch), nudges, strict=True)
        return torch.cat([model(part, start, lengths, **_given(push)) for model, part, lengths, push in parts])


class ClassifierFree(Wrapper):
    """Classifier-free guidance: extrapolate from the logits without the prompt to those with it, by 1 + scale."""

    def __init__(self, model: Model, scale: float) -> None:
        super().__init__(model)
        self.scale = finite("scale", scale)
        self.name += f" with guidance {scale:g}"
        self.passes = 2 * getattr(model, "passes", 1)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor, nudge: Tensor | None = None) -> Tensor:
        return self._guide(self.model, self.model, tokens, start, prompt_lengths, nudge)

    def session(self, start: int, prompt_lengths: Tensor, length: int, block_length: int) -> Network:
        """With the prompt and without are two runs."""
        seeing, blind = (open_session(self.model, start, prompt_lengths, length, block_length) for _ in range(2))
        return partial(self._guide, seeing, blind)

    def _guide(
        self,
        seeing: Network,
        blind: Network,
        tokens: Tensor,
        start: int,
        prompt_lengths: Tensor,
        nudge: Tensor | None = None,
    ) -> Tensor:
        hidden = torch.cat([torch.full_like(tokens[:, :start], self.mask_id), tokens[:, start:]], dim=1)
        given, without = seeing(tokens, start, prompt_lengths, **_given(nudge)), blind(hidden, start, prompt_lengths)
        guided = without + (1 + self.scale) * (given - without)
        return torch.where(guided.isfinite(), guided, given)  # where one of the two is -inf there is nothing to extrapolate


def _given(nudge: Tensor | None) -> dict[str, Tensor]:
    """As a keyword; a model that takes none is not asked to."""
    return {} if nudge is None else {"nudge": nudge}

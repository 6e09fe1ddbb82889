"""Models around models. The sampler sees one callable and does not know."""

from typing import Any

import torch
from torch import Tensor

from ..checks import finite, whole
from ..types import Model, identity


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
    """Show the network at most `max_rows` rows at a time; a guide still sees the whole batch."""

    def __init__(self, model: Model, max_rows: int) -> None:
        super().__init__(model)
        self.max_rows = whole("max_rows", max_rows)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        parts = zip(tokens.split(self.max_rows), prompt_lengths.split(self.max_rows), strict=True)
        return torch.cat([self.model(part, start, lengths) for part, lengths in parts])


class ClassifierFree(Wrapper):
    """Classifier-free guidance: extrapolate from the logits without the prompt to those with it, by 1 + scale."""

    def __init__(self, model: Model, scale: float) -> None:
        super().__init__(model)
        self.scale = finite("scale", scale)
        self.name += f" with guidance {scale:g}"
        self.passes = 2 * getattr(model, "passes", 1)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        blind = torch.cat([torch.full_like(tokens[:, :start], self.mask_id), tokens[:, start:]], dim=1)
        given, without = self.model(tokens, start, prompt_lengths), self.model(blind, start, prompt_lengths)
        guided = without + (1 + self.scale) * (given - without)
        return torch.where(guided.isfinite(), guided, given)  # where one of the two is -inf there is nothing to extrapolate

"""Models around models. The sampler sees one callable and does not know."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import finite, whole
from ..types import Model, Network, called, is_selective, open_session


class Wrapper:
    """Everything the wrapped model says of itself, said again."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = called(model)

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet, as while unpickling
            raise AttributeError(name)
        return getattr(self.model, name)


@dataclass(frozen=True, slots=True)
class Joint:
    """Several sessions as one."""

    parts: Sequence[Network]
    ask: Callable[..., Tensor]  # (parts, tokens, start, prompt_lengths, ...) -> logits

    @property
    def selective(self) -> bool:
        return all(is_selective(part) for part in self.parts)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor, **aside: Tensor) -> Tensor:
        return self.ask(self.parts, tokens, start, prompt_lengths, **aside)


class MicroBatch(Wrapper):
    """Show the network at most `max_batch` rows at a time; a guide still sees the whole batch."""

    def __init__(self, model: Model, max_batch: int) -> None:
        super().__init__(model)
        self.max_batch = whole("max_batch", max_batch)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor, **aside: Tensor) -> Tensor:
        return self._cut([self.model] * -(-len(tokens) // self.max_batch), tokens, start, prompt_lengths, **aside)

    def session(self, start: int, prompt_lengths: Tensor, length: int, block_length: int) -> Network:
        parts = prompt_lengths.split(self.max_batch)
        return Joint([open_session(self.model, start, part, length, block_length) for part in parts], self._cut)

    def _cut(self, models: Sequence[Network], tokens: Tensor, start: int, prompt_lengths: Tensor, **aside: Tensor) -> Tensor:
        """Each model its rows."""
        by_row = (x.split(self.max_batch) for x in (tokens, prompt_lengths, *aside.values()))
        parts = zip(models, *by_row, strict=True)
        return torch.cat(
            [model(some, start, lengths, **dict(zip(aside, rest, strict=True))) for model, some, lengths, *rest in parts]
        )


class ClassifierFree(Wrapper):
    """Classifier-free guidance: extrapolate from the logits without the prompt to those with it, by 1 + scale."""

    def __init__(self, model: Model, scale: float) -> None:
        super().__init__(model)
        self.scale = finite("scale", scale)
        self.name += f" with guidance {scale:g}"
        self.passes = 2 * getattr(model, "passes", 1)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor, **aside: Tensor) -> Tensor:
        return self._guide((self.model, self.model), tokens, start, prompt_lengths, **aside)

    def session(self, start: int, prompt_lengths: Tensor, length: int, block_length: int) -> Network:
        """With the prompt and without are two runs."""
        return Joint([open_session(self.model, start, prompt_lengths, length, block_length) for _ in range(2)], self._guide)

    def _guide(self, models: Sequence[Network], tokens: Tensor, start: int, prompt_lengths: Tensor, **aside: Tensor) -> Tensor:
        seeing, blind = models
        hidden = torch.cat([torch.full_like(tokens[:, :start], self.mask_id), tokens[:, start:]], dim=1)
        given = seeing(tokens, start, prompt_lengths, **aside)
        without = blind(hidden, start, prompt_lengths, **{name: x for name, x in aside.items() if name != "nudge"})
        guided = without + (1 + self.scale) * (given - without)
        return torch.where(guided.isfinite(), guided, given)  # where one of the two is -inf there is nothing to extrapolate

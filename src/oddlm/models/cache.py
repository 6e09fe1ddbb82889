"""A model for the steps of one run: what does not change between steps is computed once."""

from typing import Literal, get_args

import torch
from torch import Tensor

from .transformer import Transformer

Cache = Literal["prefix", "dual"]
CACHES = get_args(Cache)


class Session:
    """Called like a model, with the same prompts at every step."""

    def __init__(
        self,
        network: Transformer,
        mask_id: int,
        start: int,
        prompt_lengths: Tensor,
        block_length: int,
        cache: Cache | None = None,
        refresh: int | None = None,
    ) -> None:
        self.network = network

    @torch.no_grad()
    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        logits: Tensor = self.network(tokens, start, prompt_lengths)
        return logits

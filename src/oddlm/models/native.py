"""What all networks of our own share: a transformer, and what the sampler wants to know of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .transformer import Transformer


class Native:
    """A model around a `Transformer`."""

    def __init__(
        self,
        network: Transformer,
        *,
        name: str,
        mask_id: int,
        protected_ids: Sequence[int],
        context: int | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.network = network.eval()
        self.name = name
        self.mask_id, self.protected_ids = mask_id, tuple(protected_ids)
        self.vocab_size = network.config.vocab_size
        self.context, self.tokenizer = context, tokenizer
        self.device = network.norm.weight.device
        self.embedding = network.embed.weight.detach()

    @torch.no_grad()
    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        logits: Tensor = self.network(tokens, start, prompt_lengths)
        return logits

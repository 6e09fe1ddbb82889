"""What all networks of our own share: a transformer, and what the sampler wants to know of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import whole
from .cache import CACHES, Cache, CachedSession, Canvas, Session
from .transformer import Transformer


class Native:
    """A model around a `Transformer`.

    cache: None, "prefix" or "dual": which keys and values a run reuses between steps (`oddlm.models.cache`); an approximation.
    refresh: recompute them at least every so many steps, besides at block borders.
    """

    def __init__(
        self,
        network: Transformer,
        *,
        name: str,
        mask_id: int,
        protected_ids: Sequence[int],
        context: int | None = None,
        tokenizer: Any = None,
        cache: Cache | None = None,
        refresh: int | None = None,
    ) -> None:
        if cache not in (None, *CACHES):
            raise ValueError(f"cache must be None or one of {', '.join(CACHES)}, not {cache!r}")
        if refresh is not None and cache is None:
            raise ValueError(f"refresh is an option of a cache: give cache one of {', '.join(CACHES)} too")
        self.network = network.eval()
        self.cache, self.refresh = cache, None if refresh is None else whole("refresh", refresh)
        self.name = name if cache is None else f"{name}, {cache} cache" + (f", refresh {refresh}" if refresh else "")
        self.mask_id, self.protected_ids = mask_id, tuple(protected_ids)
        self.vocab_size = network.config.vocab_size
        self.context, self.tokenizer = context, tokenizer
        self.device = network.device
        self.embedding = network.embed.weight.detach()

    @torch.no_grad()
    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        logits: Tensor = self.network(tokens, start, prompt_lengths)
        return logits

    def session(self, start: int, prompt_lengths: Tensor, length: int, block_length: int) -> Session:
        """The model for one run (`oddlm.types.open_session`)."""
        canvas = Canvas(self.mask_id, start, length, block_length, prompt_lengths)
        if self.cache is None:
            return Session(self.network, canvas)
        return CachedSession(self.network, canvas, self.cache, self.refresh)

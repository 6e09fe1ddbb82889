"""What all networks of our own share: a transformer, and what the sampler wants to know of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import whole
from ..core.model import ModelInfo, Query, Session
from .cache import CACHES, Cache, CachedSession
from .loading.quant import is_quantized
from .loading.weights import Weights
from .session import PlainSession
from .transformer import Transformer

COMPILED = ("fixed", "any")


class Native:
    """A model around a `Transformer`.

    cache: None, "prefix" or "dual": which keys and values a run reuses between steps
    (`oddlm.models.cache`); an approximation.
    refresh: recompute them at least every so many steps, besides at block borders.
    confidence: what a run takes confidence from unless it says so itself (`oddlm.denoise_steps`).
    compiled: torch.compile the blocks, "fixed" anew for every shape, which is fastest (torch gives
    up after some shapes), "any"
        once for all shapes; None does not. Not with a cache or quantised weights.
    """

    def __init__(
        self,
        network: Transformer,
        *,
        name: str,
        mask_id: int,
        end_ids: Sequence[int],
        context: int | None = None,
        tokenizer: Any = None,
        weights: Weights | None = None,
        confidence: str = "full",
        cache: Cache | None = None,
        refresh: int | None = None,
        compiled: str | None = None,
    ) -> None:
        if cache not in (None, *CACHES):
            raise ValueError(f"cache must be None or one of {', '.join(CACHES)}, not {cache!r}")
        if refresh is not None and cache is None:
            raise ValueError(
                f"refresh is an option of a cache: give cache one of {', '.join(CACHES)} too"
            )
        if compiled not in (None, *COMPILED):
            raise ValueError(
                f"compiled must be None or one of {', '.join(COMPILED)}, not {compiled!r}"
            )
        if compiled and cache is not None:
            raise ValueError(
                "compiled blocks keep no keys and values: give compiled or cache, not both"
            )
        if compiled and is_quantized(network):
            raise ValueError(
                "compiled is for weights as they are: give compiled or quantize, not both"
            )
        self.network = network.eval()
        self.compiled = compiled
        for block in network.blocks if compiled else ():  # all of them share their code
            block.compile(dynamic=compiled == "any")
        self.cache, self.refresh = cache, None if refresh is None else whole("refresh", refresh)
        self.name = (
            name
            if cache is None
            else f"{name}, {cache} cache" + (f", refresh {refresh}" if refresh else "")
        )
        self.mask_id, self.end_ids = mask_id, tuple(end_ids)
        self.vocab_size = network.config.vocab_size
        self.context, self.tokenizer, self.weights, self.confidence = (
            context,
            tokenizer,
            weights,
            confidence,
        )
        self.device = network.device
        self.embedding = network.embed.weight.detach()

    @property
    def info(self) -> ModelInfo:
        config, item = self.network.config, self.embedding.element_size()
        return ModelInfo(
            vocab_size=self.vocab_size,
            mask_id=self.mask_id,
            end_ids=tuple(self.end_ids),
            name=self.name,
            digest=None if self.weights is None else self.weights.identity,
            context=self.context,
            device=self.device,
            dtype=self.embedding.dtype,
            embedding=self.embedding,
            confidence=self.confidence,  # type: ignore[arg-type]
            nudges=self.cache is None,  # what was kept would answer to the nudge of an earlier step
            selective=True,
            position_bytes=(3 * config.hidden + 2 * config.width)
            * item,  # the feed-forward part and the stream, twice
        )

    @torch.no_grad()
    def __call__(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        logits: Tensor = self.network(tokens, start, prompt_lengths, nudge)
        return logits

    def session(self, query: Query) -> Session:
        """The model for the run that begins with this query."""
        if self.cache is None:
            return PlainSession(self.network, query)
        return CachedSession(self.network, query, self.cache, self.refresh)

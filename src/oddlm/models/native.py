"""The model class for all networks that run on our own `Transformer`."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..checks import whole
from ..core.model import ModelInfo, Query, Session
from .block_cache import BlockSession
from .cache import CACHES, Cache, CachedSession
from .graphs import recorder_for
from .loading.quant import is_quantized
from .loading.weights import Weights
from .session import PlainSession
from .transformer import Transformer

COMPILED = ("fixed", "any")


class Native:
    """A model around a `Transformer`.

    cache: which keys and values a run reuses between steps. "prefix" and "dual" are approximations
        (`oddlm.models.cache`), and None is no cache. A block-causal network has an exact one
        instead (`oddlm.models.block_cache`) unless cache is "off". The attribute is the cache in
        use: None, "prefix", "dual" or "exact".
    refresh: recompute the cached keys and values at least every `refresh` steps, in addition to
        block borders.
    confidence: the default confidence of a run (`oddlm.denoise_steps`).
    compiled: apply torch.compile to the blocks. "fixed" compiles for every new shape, which is
        fastest (torch gives up after some shapes); "any" compiles once for all shapes. With a
        cache both compile the parts of a block around attention once for all shapes (but not
        experts), and on a GPU steps that repeat are replayed as CUDA graphs
        (`oddlm.models.graphs`). Cannot be combined with quantised weights.
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
        used = _cache_of(network, cache)
        if refresh is not None and used not in CACHES:
            raise ValueError(
                f"refresh={refresh!r} needs a cache: set cache to one of {', '.join(CACHES)}"
            )
        if compiled not in (None, *COMPILED):
            raise ValueError(
                f"compiled must be None or one of {', '.join(COMPILED)}, not {compiled!r}"
            )
        if compiled and is_quantized(network):
            raise ValueError(
                f"compiled={compiled!r} cannot be combined with quantize: quantised blocks are not "
                "compiled"
            )
        self.network = network.eval()
        self.compiled = compiled
        for block in network.blocks if compiled else ():  # the blocks share compiled functions
            if used is None:
                block.compile(dynamic=compiled == "any")
            else:
                block.compile_around_attention()  # type: ignore[operator]
        self.cache, self.refresh = used, None if refresh is None else whole("refresh", refresh)
        self.name = name
        if used in CACHES:
            self.name += f", {used} cache" + (f", refresh {refresh}" if refresh else "")
        self.mask_id, self.end_ids = mask_id, tuple(end_ids)
        self.vocab_size = network.config.vocab_size
        self.context, self.tokenizer = context, tokenizer
        self.weights, self.confidence = weights, confidence
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
            block_length=config.block_length,
            align="answer" if config.block_length is None or config.causal_context else "absolute",
            causal_context=config.causal_context,
            blind=self.cache == "dual",
            nudges=self.cache is None,  # cached keys would carry the nudge of an earlier step
            selective=True,
            # keys and values, or the MLP and the residual stream twice
            position_bytes=2 * config.layers * config.key_heads * config.head * item
            if self.cache == "exact"
            else (3 * config.hidden + 2 * config.width) * item,
        )

    @torch.no_grad()
    def __call__(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        logits: Tensor = self.network(tokens, start, prompt_lengths, nudge)
        return logits

    def session(self, query: Query) -> Session:
        """Open a session for the run that begins with this query."""
        if self.cache is None:
            return PlainSession(self.network, query)
        recorder = recorder_for(self.device) if self.compiled and self.network.replayable else None
        if self.cache == "exact":
            return BlockSession(self.network, query, recorder)
        return CachedSession(self.network, query, self.cache, self.refresh, recorder)


def _cache_of(
    network: Transformer, cache: Cache | None
) -> Literal["prefix", "dual", "exact"] | None:
    """Return the cache that the option of this name means for a network."""
    if cache not in (None, *get_args(Cache)):
        known = ", ".join(get_args(Cache))
        raise ValueError(f"cache must be None or one of {known}, not {cache!r}")
    if cache == "off":
        return None
    if network.config.block_length is None:
        return cache
    if cache is not None:
        raise ValueError(
            f"cache={cache!r} is an approximation for networks without blocks: a block-causal "
            "network has an exact cache, with cache=None"
        )
    return "exact"

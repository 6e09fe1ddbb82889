"""A masked diffusion model that somebody has loaded with transformers, as a model of ours."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...checks import ids, outside
from ...core.model import ModelInfo
from ..families.published import END_TEXTS
from ..loading.checkpoint import find_architecture
from ..loading.tokenizer import NAMES, TextTokenizer
from .hearing import evaluating, find_block_length, probe


class Wrapped:
    """Networks differ in how they want padding to be masked, so they see none: rows go in by groups
    of one prompt length.

    block_length: of a network that is causal over blocks (`hearing`); None where every position
    hears all others.
    """

    def __init__(
        self, network: Any, tokenizer: Any, *, mask_id: int | None = None, shift: bool = False
    ) -> None:
        config = getattr(network, "config", None)
        self.network, self.shift = network, shift
        self.name = f"{getattr(config, 'name_or_path', '') or type(network).__name__}, wrapped"
        self.tokenizer = text_tokenizer(tokenizer)
        found = getattr(tokenizer, "mask_token_id", None) if mask_id is None else mask_id
        if found is None:
            raise ValueError(
                "the tokenizer has no mask token: say which token is the mask, wrap(..., mask_id=...)"
            )
        self.embedding: Tensor = network.get_input_embeddings().weight.detach()
        self.device = self.embedding.device
        self._keeps = "logits_to_keep" in inspect.signature(network.forward).parameters
        (self.mask_id,) = ids("mask_id", [found], len(self.embedding))
        family = find_architecture(getattr(config, "model_type", None))
        self.confidence = "full" if family is None else family.confidence
        self.context = getattr(
            config, "max_position_embeddings" if family is None else family.context, None
        )
        self.vocab_size, self.block_length = self._listen()
        ends = [
            *_listed(getattr(tokenizer, "eos_token_id", None)),
            *_listed(getattr(tokenizer, "pad_token_id", None)),
        ]
        ends += (
            [self.tokenizer.special.get(text) for text in END_TEXTS]
            if isinstance(self.tokenizer, TextTokenizer)
            else []
        )
        known = dict.fromkeys(end for end in ends if end is not None and end != self.mask_id)
        self.end_ids = ids("end tokens", list(known), self.vocab_size)

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            vocab_size=self.vocab_size,
            mask_id=self.mask_id,
            end_ids=tuple(self.end_ids),
            name=self.name,
            context=self.context,
            device=self.device,
            embedding=self.embedding,
            confidence=self.confidence,  # type: ignore[arg-type]
            block_length=self.block_length,
        )

    @torch.no_grad()
    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        parts = []
        for length in prompt_lengths.unique().tolist():
            rows = (prompt_lengths == length).nonzero().squeeze(1)
            parts.append((rows, self._logits(tokens[rows, start - length :], length)))
        result = parts[0][1].new_empty(len(tokens), *parts[0][1].shape[1:])
        for rows, logits in parts:
            result[rows] = logits
        return result

    def _logits(self, tokens: Tensor, start: int) -> Tensor:
        """Of all positions from `start` on, rows without padding."""
        if not self.shift:
            return self._outputs(tokens, start)
        logits = self._outputs(tokens, max(start - 1, 0))
        return torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if start == 0 else logits[:, :-1]

    def _outputs(self, tokens: Tensor, first: int) -> Tensor:
        """What the network says at the positions from `first` on."""
        options = {"logits_to_keep": tokens.shape[1] - first} if self._keeps else {}
        with evaluating(self.network):
            output = self.network(input_ids=tokens, **options)
        logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
        return logits if self._keeps else logits[:, first:]

    @torch.no_grad()
    def _listen(self) -> tuple[int, int | None]:
        """The size of the vocabulary, and the block length of a network that has one; one that
        hears one way is refused.
        """
        masks, text = probe(self.context, self.mask_id, len(self.embedding), self.device)
        logits = self._outputs(masks[None], 0)[0]
        block = find_block_length(
            lambda tokens: self._outputs(tokens[None], 0)[0], masks, text, logits
        )
        name = type(self.network).__name__
        if block == 1:
            raise ValueError(
                f"{name} is autoregressive: its positions do not hear those after them. A masked diffusion model listens "
                "both ways; load it with its own code (trust_remote_code) or as a masked language model"
            )
        if block is not None:
            warnings.warn(
                f"{name} is block-causal, in blocks of {block} tokens: a position hears its own block and those before it. "
                f"Generate with block_length={block} or a divisor of it. The network counts its blocks from the first token "
                "of the prompt, and block_length counts from the answer: they are the same blocks only where the length of "
                f"the prompt is a multiple of {block}. After other prompts a block is written across two of the network's, "
                "and its first part does not hear the rest",
                stacklevel=outside(),
            )
        return logits.shape[-1], block


def text_tokenizer(tokenizer: Any) -> Any:
    """Over the same library as ours, where it is: texts then cannot pose as control tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer
    template = getattr(tokenizer, "chat_template", None)
    copy = type(backend).from_str(backend.to_str())
    return TextTokenizer(copy, {name: getattr(tokenizer, name, None) for name in NAMES}, template)


def _listed(value: int | Sequence[int] | None) -> list[int | None]:
    return list(value) if isinstance(value, Sequence) else [value]

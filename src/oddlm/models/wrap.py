"""A masked diffusion model that somebody has loaded with transformers, as a model of ours."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import ids
from .published import END_TEXTS
from .tokenizer import NAMES, TextTokenizer


class Wrapped:
    """Networks differ in how they want padding to be masked, so they see none: rows go in by groups of one prompt length."""

    def __init__(self, network: Any, tokenizer: Any, *, mask_id: int | None = None, shift: bool = False) -> None:
        config = getattr(network, "config", None)
        self.network, self.shift = network, shift
        self.name = f"{getattr(config, 'name_or_path', '') or type(network).__name__}, wrapped"
        self.tokenizer = text_tokenizer(tokenizer)
        found = getattr(tokenizer, "mask_token_id", None) if mask_id is None else mask_id
        if found is None:
            raise ValueError("the tokenizer has no mask token: say which token is the mask, wrap(..., mask_id=...)")
        self.embedding: Tensor = network.get_input_embeddings().weight.detach()
        self.device = self.embedding.device
        self._keeps = "logits_to_keep" in inspect.signature(network.forward).parameters
        (self.mask_id,) = ids("mask_id", [found], len(self.embedding))
        self.vocab_size = self._check_both_ways().shape[-1]
        self.context = getattr(config, "max_position_embeddings", None)
        ends = [*_listed(getattr(tokenizer, "eos_token_id", None)), *_listed(getattr(tokenizer, "pad_token_id", None))]
        ends += [self.tokenizer.special.get(text) for text in END_TEXTS] if isinstance(self.tokenizer, TextTokenizer) else []
        known = dict.fromkeys(end for end in ends if end is not None and end != self.mask_id)
        self.end_ids = ids("end tokens", list(known), self.vocab_size)

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
        T = tokens.shape[1]
        first = max(start - 1, 0) if self.shift else start
        options = {"logits_to_keep": T - first} if self._keeps else {}
        output = self.network(input_ids=tokens, **options)
        logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
        logits = logits if self._keeps else logits[:, first:]
        if not self.shift:
            return logits
        return torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if start == 0 else logits[:, :-1]

    @torch.no_grad()
    def _check_both_ways(self) -> Tensor:
        """The first position must hear the last one; gives the logits of a short canvas."""
        tokens = torch.full((1, 4), self.mask_id, device=self.device)
        other = tokens.clone()
        other[0, -1] = 0 if self.mask_id else 1
        one, two = (self._logits(t, 0) for t in (tokens, other))
        if torch.equal(one[:, 0], two[:, 0]):
            raise ValueError(
                f"{type(self.network).__name__} is autoregressive: its first position does not hear the last. A masked "
                "diffusion model listens both ways; load it with its own code (trust_remote_code) or as a masked language model"
            )
        return one


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

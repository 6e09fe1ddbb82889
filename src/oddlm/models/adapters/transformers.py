"""Adapters for diffusion models that were loaded with transformers."""

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
from . import diffusion_gemma as gemma
from .causality import evaluating, find_block_length, probe


def wrapped_model(
    network: Any, tokenizer: Any, *, mask_id: int | None = None, shift: bool = False
) -> "Wrapped | gemma.DiffusionGemma":
    """Return a network that was loaded with transformers as an oddlm model."""
    if getattr(getattr(network, "config", None), "model_type", None) != gemma.MODEL_TYPE:
        return Wrapped(network, tokenizer, mask_id=mask_id, shift=shift)
    if mask_id is not None or shift:
        raise ValueError("a DiffusionGemma has no mask token and no shift: leave them out")
    name = f"{network.config.name_or_path or type(network).__name__}, wrapped"
    return gemma.DiffusionGemma(
        network,
        text_tokenizer(tokenizer),
        name=name,
        end_ids=gemma.wrapped_ends(network, tokenizer),
        sampling=gemma.Sampling.read(network.generation_config.to_dict(), name),
    )


class Wrapped:
    """A network loaded with transformers, as an oddlm model.

    Networks differ in how they expect padding to be masked, so they never see any: samples are
    batched by prompt length.

    block_length: the block length of a block-causal network (see `causality`); None if every
    position attends to all others.
    """

    def __init__(
        self, network: Any, tokenizer: Any, *, mask_id: int | None = None, shift: bool = False
    ) -> None:
        config = getattr(network, "config", None)
        self.network, self.shift = network, shift
        self.name = f"{getattr(config, 'name_or_path', '') or type(network).__name__}, wrapped"
        self.tokenizer = text_tokenizer(tokenizer)
        mask = getattr(tokenizer, "mask_token_id", None) if mask_id is None else mask_id
        if mask is None:
            raise ValueError(
                "the tokenizer has no mask token: pass its id as wrap(..., mask_id=...)"
            )
        self.embedding: Tensor = network.get_input_embeddings().weight.detach()
        self.device = self.embedding.device
        self._takes_logits_to_keep = (
            "logits_to_keep" in inspect.signature(network.forward).parameters
        )
        (self.mask_id,) = ids("mask_id", [mask], len(self.embedding))
        family = find_architecture(getattr(config, "model_type", None))
        self.confidence = "full" if family is None else family.confidence
        self.context = getattr(
            config, "max_position_embeddings" if family is None else family.context, None
        )
        self.vocab_size, self.block_length = self._probe()
        ends = [
            *_listed(getattr(tokenizer, "eos_token_id", None)),
            *_listed(getattr(tokenizer, "pad_token_id", None)),
        ]
        if isinstance(self.tokenizer, TextTokenizer):
            ends += [self.tokenizer.special.get(text) for text in END_TEXTS]
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
            samples = (prompt_lengths == length).nonzero().squeeze(1)
            parts.append((samples, self._logits(tokens[samples, start - length :], length)))
        result = parts[0][1].new_empty(len(tokens), *parts[0][1].shape[1:])
        for samples, logits in parts:
            result[samples] = logits
        return result

    def _logits(self, tokens: Tensor, start: int) -> Tensor:
        """Return the logits of all positions from `start` on; the tokens have no padding."""
        if not self.shift:
            return self._outputs(tokens, start)
        logits = self._outputs(tokens, max(start - 1, 0))
        return torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if start == 0 else logits[:, :-1]

    def _outputs(self, tokens: Tensor, first: int) -> Tensor:
        """Return the network's outputs at the positions from `first` on."""
        options = {"logits_to_keep": tokens.shape[1] - first} if self._takes_logits_to_keep else {}
        with evaluating(self.network):
            output = self.network(input_ids=tokens, **options)
        logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
        return logits if self._takes_logits_to_keep else logits[:, first:]

    @torch.no_grad()
    def _probe(self) -> tuple[int, int | None]:
        """Return the vocabulary size and the block length of the network, if it has one.

        Raise ValueError if the network is autoregressive.
        """
        masks, text = probe(self.context, self.mask_id, len(self.embedding), self.device)
        logits = self._outputs(masks[None], 0)[0]
        block = find_block_length(
            lambda tokens: self._outputs(tokens[None], 0)[0], masks, text, logits
        )
        name = type(self.network).__name__
        if block == 1:
            raise ValueError(
                f"{name} is autoregressive: its positions do not attend to later ones. A masked "
                "diffusion model attends in both directions; load it with its own code "
                "(trust_remote_code) or as a masked language model"
            )
        if block is not None:
            warnings.warn(
                f"{name} is block-causal, in blocks of {block} tokens: a position attends to its "
                f"own block and earlier ones. Generate with block_length={block} or a divisor of "
                "it. The network counts its blocks from the first token of the prompt, but "
                "block_length counts from the answer: the blocks coincide only if the length of "
                f"the prompt is a multiple of {block}. Otherwise a generated block spans two "
                "blocks of the network, and its first part does not attend to the rest",
                stacklevel=outside(),
            )
        return logits.shape[-1], block


def text_tokenizer(tokenizer: Any) -> Any:
    """Return a `TextTokenizer` over the same backend if there is one, else the tokenizer itself.

    With a `TextTokenizer`, text is never encoded as control tokens.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer
    template = getattr(tokenizer, "chat_template", None)
    copy = type(backend).from_str(backend.to_str())
    return TextTokenizer(copy, {name: getattr(tokenizer, name, None) for name in NAMES}, template)


def _listed(value: int | Sequence[int] | None) -> list[int | None]:
    return list(value) if isinstance(value, Sequence) else [value]

"""Diverse samples inside the trainers of dLLM, which take any object with `.sample` as `sampler=`.

    trainer = DiffuGRPOTrainer(model=network, sampler=DiverseSampler(network, tokenizer), ...)

This follows the interface of dLLM 0.1.0 (github.com/ZHZisZZ/dllm, commit ca17675 of 14 April 2026):
its GRPO trainer sets `sampler.model` to the unwrapped network, calls `sampler.sample(inputs,
config)` with one row of token ids per sample, left-padded to one length, and expects a tensor of
these rows with their completions. The module needs no part of dLLM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from ..config import checked
from ..lm import LM, wrap
from ..params import SampleParams, SampleSettings
from .groups import draw_groups, fresh_seeds

# Fields of dLLM's MDLMSamplerConfig -> ours.
FIELDS = {
    "max_new_tokens": "length",
    "steps": "steps",
    "block_size": "block_length",
    "temperature": "temperature",
    "cfg_scale": "cfg_scale",
}
POLICIES = {"low_confidence": "low_confidence", "random": "random"}  # its `remasking` -> ours


@dataclass(frozen=True)
class SamplerOutput:
    """What `sample` returns if the config asks for a dict, with the names of dLLM."""

    sequences: Tensor  # [B, P + S]
    histories: list[Tensor] | None = None  # [B, P + S] before each step, then the sequences


class DiverseSampler:
    """A `sampler` that draws diverse groups on the network that is being trained.

    Equal prompts side by side form a group. Length, steps, block size, temperature, `cfg_scale` and
    `remasking` of the trainer's sampler config hold unless settings of the same meaning are given
    here. After an end token a completion holds `eos_token_id`, by which dLLM finds its end.

    Args:
        model: The network, as transformers loads it.
        tokenizer: Its tokenizer.
        mask_id: Id of the mask token; by default the tokenizer's.
        shift: The output at position j - 1 predicts position j.
        max_batch: Samples per network call.
        **settings: Fields of `SampleParams`. Every call draws new seeds from `seed`.

    Attributes:
        model: The network; a trainer may set another one.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        mask_id: int | None = None,
        shift: bool = False,
        max_batch: int | None = None,
        **settings: Unpack[SampleSettings],
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.mask_id, self.shift, self.max_batch = mask_id, shift, max_batch
        self.settings = settings
        self._calls = 0
        self._held: tuple[Any, LM] | None = None

    @property
    def lm(self) -> LM:
        """The LM around the network, which shares its weights."""
        if self._held is None or self._held[0] is not self.model:
            lm = wrap(self.model, self.tokenizer, mask_id=self.mask_id, shift=self.shift, raw=True)
            self._held = self.model, lm
        return self._held[1]

    def sample(
        self, inputs: Sequence[Tensor | list[int]], config: Any = None, **options: Any
    ) -> Tensor | SamplerOutput:
        """Return a completion for each row, as dLLM's samplers do.

        Args:
            inputs: Token ids of each sample's prompt, left-padded or not.
            config: A sampler config of dLLM, or None.
            **options: Fields of the config that hold instead of its own.

        Returns:
            The rows with their completions, [B, P + S]. Rows of other lengths are padded on the
            left to the longest. With `return_dict`, a `SamplerOutput`.
        """
        rows = [[int(token) for token in row] for row in inputs]
        prompts = [self._without_padding(row) for row in rows]
        self._calls += 1
        names = ("return_dict", "remasking", *FIELDS)
        wanted = {name: getattr(config, name, None) for name in names} | options
        drawn = draw_groups(
            self.lm,
            prompts,
            fresh_seeds(self.settings.get("seed", 0), (0, self._calls), len(rows)),
            params=self._params(wanted),
            trajectories=bool(wanted["return_dict"]),
            max_batch=self.max_batch,
        )
        device, start = self.lm.info.device, max(map(len, rows))
        pad = self.tokenizer.pad_token_id
        left = torch.tensor([[pad] * (start - len(row)) + row for row in rows], device=device)
        answers = torch.stack([r.tokens[i] for r, i in drawn])
        counts = torch.stack([r.mask[i] for r, i in drawn])
        sequences = torch.cat([left, answers.where(counts, self.tokenizer.eos_token_id)], dim=1)
        if not wanted["return_dict"]:
            return sequences
        return SamplerOutput(sequences, _histories(drawn, left, sequences))

    def _params(self, wanted: dict[str, Any]) -> SampleParams:
        remasking = wanted["remasking"]
        own = {ours: wanted[name] for name, ours in FIELDS.items() if wanted[name] is not None}
        if remasking is not None:
            if remasking not in POLICIES:
                raise ValueError(
                    f"remasking must be one of {', '.join(POLICIES)}, not {remasking!r}: give a "
                    "policy instead"
                )
            own["policy"] = POLICIES[remasking]
        size, length = own.get("block_length"), own.get("length")
        if size is not None and length is not None and size >= length:
            own["block_length"] = None  # one block, which may be longer than the answer
        return checked(SampleParams, {**own, **self.settings})

    def _without_padding(self, row: list[int]) -> list[int]:
        pad = self.tokenizer.pad_token_id
        first = next((i for i, token in enumerate(row) if token != pad), len(row))
        if first == len(row):
            raise ValueError("inputs holds a prompt of nothing but padding")
        return row[first:]


def _histories(drawn: Any, left: Tensor, sequences: Tensor) -> list[Tensor]:
    """Return the canvases before each step, then the sequences."""
    steps = max(len(rolled.canvases) for rolled, _ in drawn)
    found = []
    for step in range(steps):
        rows = [
            rolled.canvases[step, i] if step < len(rolled.canvases) else rolled.tokens[i]
            for rolled, i in drawn
        ]
        found.append(torch.cat([left, torch.stack(rows)], dim=1))
    return [*found, sequences]

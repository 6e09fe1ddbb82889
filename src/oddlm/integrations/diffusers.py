"""Diverse samples from the text pipelines of diffusers: LLaDA2Pipeline, DiffusionGemmaPipeline.

A scheduler takes the place of the pipeline's own:

    pipe.scheduler = DiverseBlockRefinementScheduler.from_config(
        pipe.scheduler.config, n=16, end_ids=find_end_ids(pipe.tokenizer)
    )
"""

from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..core.step import ABSENT
from ..diversity.repulsion import Repulsion
from ..params import PUSH
from ..presets import ALPHA_END, FORK, Fork
from .canvases import NEVER, Canvases, check_batch
from .ends import find_end_ids

try:
    from diffusers import BlockRefinementScheduler, EntropyBoundScheduler
    from diffusers.configuration_utils import register_to_config
except ImportError as error:
    raise ImportError(
        "oddlm.integrations.diffusers needs diffusers: pip install 'oddlm[diffusers]'"
    ) from error

SETTINGS = ("alpha", "backend", "protected", *PUSH)  # names and numbers only

__all__ = ["DiverseBlockRefinementScheduler", "DiverseEntropyBoundScheduler", "find_end_ids"]


class _Diverse:
    """What the schedulers share: the push, and where in a pipeline's call it is."""

    num_inference_steps: int

    def _prepare(
        self,
        n: int,
        end_ids: Sequence[int],
        push: Mapping[str, Any] | None,
        fork: Fork,
        seed: int | Sequence[int],
    ) -> None:
        given = {"alpha_end": ALPHA_END, "protected": tuple(end_ids), **(push or {})}
        if unknown := sorted(set(given) - set(SETTINGS)):
            raise ValueError(f"push has no setting {unknown[0]!r}; settings: {', '.join(SETTINGS)}")
        self._guide, self._group = Repulsion(**given), (n, seed, fork)
        self._begin()

    def _begin(self) -> None:
        """Begin a call of a pipeline."""
        n, seed, fork = self._group
        self._canvases = Canvases(self._guide, n, self.num_inference_steps, seed, fork)

    def _push(self, logits: Tensor, tokens: Tensor | None, masked: Tensor, index: int) -> Tensor:
        """Return the pushed logits of a step; step 0 begins a canvas."""
        check_batch(len(logits), self._canvases.n)
        if index == 0 or self._canvases.canvas < 0:
            self._canvases.turn()
        if index >= self._canvases.steps:  # the block is written, and only edited
            return logits
        return self._canvases.push(logits, tokens, masked, index)


class DiverseBlockRefinementScheduler(_Diverse, BlockRefinementScheduler):  # type: ignore[misc]
    """A `BlockRefinementScheduler` that pushes the samples of each prompt apart.

    The batch holds every prompt n times, repeats side by side. Each block is pushed for itself: its
    open positions are compared by their probabilities, its written ones by their tokens, and those
    of the prompt not at all. While it is pushed, a step writes no more tokens than the schedule
    asks for: a push makes tokens look certain, so `threshold` would let all of them through.

    Args:
        block_length: As in `BlockRefinementScheduler`, like the next four.
        num_inference_steps: Steps per block; a pipeline sets it.
        threshold: Confidence above which a token is written.
        editing_threshold: Confidence above which a written token is replaced.
        minimal_topk: The fewest tokens that a step writes.
        n: Samples per prompt; 1 changes nothing.
        end_ids: Ids that end a text, which are not pushed.
        push: Settings of `Repulsion`, as far as they are names and numbers: {"alpha": 8}.
            `alpha_end` is 0.25 for an alpha of your own, too.
        fork: Start sample j from the j-th most likely single token; "auto" does so if samples are
            pushed.
        seed: One, or one per prompt. It is that of the push; tokens are drawn from the pipeline's
            generator.
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        block_length: int = 32,
        num_inference_steps: int = 32,
        threshold: float = 0.95,
        editing_threshold: float | None = None,
        minimal_topk: int = 1,
        n: int = 1,
        end_ids: Sequence[int] = (),
        push: Mapping[str, Any] | None = None,
        fork: Fork = FORK,
        seed: int | Sequence[int] = 0,
    ) -> None:
        super().__init__(
            block_length, num_inference_steps, threshold, editing_threshold, minimal_topk
        )
        self._prepare(n, end_ids, push, fork, seed)

    @wraps(BlockRefinementScheduler.set_timesteps)
    def set_timesteps(self, *args: Any, **options: Any) -> None:
        super().set_timesteps(*args, **options)
        self._begin()

    @wraps(BlockRefinementScheduler.step)  # pipelines read the names of its arguments
    def step(
        self, model_output: Tensor, timestep: int | Tensor, sample: Tensor, **options: Any
    ) -> Any:
        index = int(timestep)
        tokens, masked = self._written(index, sample, **options)
        pushed = self._push(model_output, tokens, masked, index)
        if pushed is not model_output:
            options["threshold"] = NEVER
        return super().step(pushed, timestep, sample, **options)

    def _written(
        self,
        index: int,
        sample: Tensor,
        mask_token_id: int | None = None,
        prompt_mask: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens [B, S] of a block, ABSENT in the prompt, and which are open."""
        if mask_token_id is not None:
            tokens = sample if prompt_mask is None else sample.masked_fill(prompt_mask, ABSENT)
            return tokens, sample == mask_token_id
        written = self._committed
        if index == 0 or written is None or written.shape != sample.shape:
            return sample, torch.ones_like(sample, dtype=torch.bool)
        return sample, ~written


class DiverseEntropyBoundScheduler(_Diverse, EntropyBoundScheduler):  # type: ignore[misc]
    """An `EntropyBoundScheduler` that pushes the samples of each prompt apart.

    This is DiffusionGemma's own sampler, as in transformers: no token is ever final, so every
    position is open at every step.

    Args:
        entropy_bound: As in `EntropyBoundScheduler`, like the next three.
        t_max: Temperature of the first step.
        t_min: Temperature of the last step.
        num_inference_steps: Steps per canvas; a pipeline sets it.
        n: As in `DiverseBlockRefinementScheduler`, like all that follow.
        end_ids: Ids that end a text.
        push: Settings of `Repulsion`.
        fork: Whether samples start from different tokens.
        seed: One, or one per prompt.
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        entropy_bound: float = 0.1,
        t_max: float = 0.8,
        t_min: float = 0.4,
        num_inference_steps: int = 32,
        n: int = 1,
        end_ids: Sequence[int] = (),
        push: Mapping[str, Any] | None = None,
        fork: Fork = FORK,
        seed: int | Sequence[int] = 0,
    ) -> None:
        super().__init__(entropy_bound, t_max, t_min, num_inference_steps)
        self._prepare(n, end_ids, push, fork, seed)

    @wraps(EntropyBoundScheduler.set_timesteps)
    def set_timesteps(self, *args: Any, **options: Any) -> None:
        super().set_timesteps(*args, **options)
        self._begin()

    @wraps(EntropyBoundScheduler.step)
    def step(
        self, model_output: Tensor, timestep: int | Tensor, sample: Tensor, **options: Any
    ) -> Any:
        pushed = self._push(
            model_output, None, torch.ones_like(sample, dtype=torch.bool), int(timestep)
        )
        return super().step(pushed, timestep, sample, **options)

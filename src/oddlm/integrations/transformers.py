"""Diverse samples from transformers' own `generate`, for DiffusionGemma."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..diversity.alpha import AlphaSchedule
from ..diversity.features import Feature, Pooling
from ..diversity.memory import Form
from ..diversity.repulsion import DuplicateMode, Gradient, Repulsion
from ..kernels import dispatch
from ..kernels.contract import Objective
from ..presets import ALPHA, ALPHA_END, ALPHA_SCHEDULE, FEATURE, FORK, GRADIENT, OBJECTIVE, Fork
from .canvases import Canvases, check_batch, check_order, ended
from .ends import find_end_ids

try:
    from transformers import LogitsProcessor
except ImportError as error:
    raise ImportError(
        "oddlm.integrations.transformers needs transformers: pip install 'oddlm[transformers]'"
    ) from error


class DiverseLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Pushes the samples of each prompt apart inside `DiffusionGemmaForBlockDiffusion.generate`.

    The batch holds every prompt n times, repeats side by side. Each canvas is pushed for itself
    (see `Canvases`), and samples that have ended are left out.

    Args:
        n: Samples per prompt; 1 changes nothing.
        steps: The `max_denoising_steps` of generate.
        end_ids: What ends a text: the tokenizer, the model or a config, or ids.
        protected: Ids that are never pushed; by default those that end a text.
        objective: As in `Repulsion`, like all that follow up to gradient.
        feature: What is compared between samples.
        alpha: Strength of the push.
        alpha_schedule: How alpha falls.
        alpha_end: The share of the steps that are pushed. It is 0.25 for an alpha of your own, too:
            processed logits are the output and what the network sees next, so a late push is
            written down.
        duplicates: What happens to duplicates of earlier samples.
        tolerance: Residual up to which a sample is a duplicate.
        gradient: Whether alpha is a distance in logits.
        fork: Start sample j from the j-th most likely single token; "auto" does so if samples are
            pushed.
        seed: One, or one per prompt. It is that of the push; generate draws its tokens from torch's
            global generator.
        embedding: Embedding matrix [V, H] for features in embedding space.
        backend: As in `Repulsion`.
        remember: "exact" or "sparse": a further call with the same prompts continues, so that its
            samples differ from those of the calls before, too.
    """

    def __init__(
        self,
        n: int,
        steps: int,
        *,
        end_ids: Any,
        protected: Collection[int] | None = None,
        objective: str | Mapping[str, Any] | Objective = OBJECTIVE,
        feature: str | Mapping[str, Any] | Pooling | Feature = FEATURE,
        alpha: float = ALPHA,
        alpha_schedule: str | Mapping[str, Any] | AlphaSchedule = ALPHA_SCHEDULE,
        alpha_end: float = ALPHA_END,
        duplicates: DuplicateMode | None = None,
        tolerance: float | None = None,
        gradient: Gradient = GRADIENT,
        fork: Fork = FORK,
        seed: int | Sequence[int] = 0,
        embedding: Tensor | None = None,
        backend: dispatch.Asked = "auto",
        remember: Form | None = None,
    ) -> None:
        self.end_ids = find_end_ids(end_ids)
        guide = Repulsion(
            objective=objective,
            feature=feature,
            alpha=alpha,
            alpha_schedule=alpha_schedule,
            alpha_end=alpha_end,
            duplicates=duplicates,
            tolerance=tolerance,
            gradient=gradient,
            protected=self.end_ids if protected is None else tuple(protected),
            embedding=embedding,
            backend=backend,
            remember=remember,
        )
        self._canvases = Canvases(guide, n, steps, seed, fork)
        self._left = 0  # steps left after the last call
        self._seen: Tensor | None = None  # input_ids of the present canvas
        self._prompt: Tensor | None = None  # and of the present call
        self._open: Tensor | None = None  # [B, S] bool; None if no sample has ended

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor, cur_step: int | Tensor) -> Tensor:
        """Return the pushed scores of a step.

        Args:
            input_ids: [B, T], prompts and finished canvases.
            scores: [B, S, V], of the present canvas.
            cur_step: How many steps are left, this one included.
        """
        if scores.dim() != 3:
            raise ValueError(
                "scores must be [B, canvas, V], as generate of a block diffusion model gives them, "
                f"not {tuple(scores.shape)}"
            )
        check_batch(len(scores), self._canvases.n)
        steps, left = self._canvases.steps, self._steps_left(cur_step)
        expected = steps if self._seen is None else self._left - 1
        if left not in (expected, steps):
            raise ValueError(
                f"generate has {left} steps left, the processor expected {expected}: "
                f"its steps must be generate's max_denoising_steps, not {steps}"
            )
        if left == steps:
            self._turn(input_ids, scores)
        self._left = left
        return self._canvases.push(scores, None, self._open, steps - left)

    def _turn(self, input_ids: Tensor, scores: Tensor) -> None:
        """Begin a canvas: the next one of this call, or the first of another."""
        S = scores.shape[1]
        if self._seen is not None and _follows(input_ids, self._seen, S):
            assert self._prompt is not None
            self._canvases.turn()
            written = input_ids[:, self._prompt.shape[1] :]
            self._open = ~ended(written, self.end_ids)[:, None].expand(-1, S).to(scores.device)
        else:
            check_order(input_ids, self._canvases.n)
            self._canvases.begin(again=self._prompt is not None and _same(input_ids, self._prompt))
            self._canvases.turn()
            self._prompt, self._open = input_ids.clone(), None
        self._seen = input_ids.clone()

    def _steps_left(self, cur_step: int | Tensor) -> int:
        left = _read_aside(cur_step)
        if left in (self._left - 1, self._canvases.steps):
            return left
        return int(cur_step)  # it was not written yet


def _read_aside(number: int | Tensor) -> int:
    """Return the number without waiting for the network.

    generate writes the number of the step before it queues the network; a copy on another stream
    does not stand in that queue.
    """
    if not isinstance(number, Tensor) or not number.is_cuda:
        return int(number)
    with torch.cuda.stream(_stream(number.device)):
        return int(number)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _follows(ids: Tensor, seen: Tensor, S: int) -> bool:
    """Return whether the ids are those seen before and one canvas of S tokens more."""
    T = seen.shape[1]
    return ids.shape == (len(seen), T + S) and _same(ids[:, :T], seen)


def _same(ids: Tensor, others: Tensor) -> bool:
    return ids.device == others.device and torch.equal(ids, others)

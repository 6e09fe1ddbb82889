"""A drawing that keeps what a trainer needs of each step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.canvas import Template as Form
from ..core.choose import drawn_logprobs
from ..core.model import Query
from ..core.state import Plan
from ..core.step import StepEvent
from ..drawing import Drawing
from ..lm import LM
from ..params import SampleParams


class Recording(Drawing):
    """A drawing that also keeps the log-probabilities of its draws, and its canvases."""

    def __init__(
        self,
        lm: LM,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SampleParams,
        seeds: Sequence[int],
        forms: Sequence[Form | None],
        *,
        keep: bool,
    ) -> None:
        super().__init__(lm.model, lm.tokenizer, prompts, n, params, seeds, forms=forms)
        self._drawn = torch.full_like(self._base, torch.nan)
        self._canvases: list[Tensor] | None = [] if keep else None

    def advance(self, logits: Tensor, query: Query | None = None) -> StepEvent:
        event = super().advance(logits, query)
        drawn = _drawn_at(event, self.state.plan)
        self._drawn = torch.where(event.commit, drawn, self._drawn)
        if (taken := event.decision.remask) is not None:
            self._drawn = self._drawn.masked_fill(taken, torch.nan)
        if self._canvases is not None:
            # A model that drafts skips the steps that no sample needs.
            missing = event.step.index + 1 - len(self._canvases)
            self._canvases += [event.step.tokens] * missing
        return event

    def columns(self) -> dict[str, Tensor | None]:
        """Return the tensors of `Rollouts` that a run fills."""
        done, plan = self.state.result, self.state.plan
        return {
            "tokens": done.tokens,
            "mask": _counted(done.tokens, plan.given, plan.info.end_ids),
            "commit_step": done.commit_step,
            "base_logprobs": self._base.float(),
            "pushed_logprobs": self._pushed.float(),
            "drawn_logprobs": self._drawn.float(),
            "nfe": done.evaluations,
            "canvases": None if self._canvases is None else torch.stack(self._canvases),
        }


def _drawn_at(event: StepEvent, plan: Plan) -> Tensor:
    """[B, L] float64: of the tokens that a step commits, NaN if they were not drawn."""
    settings, commit = plan.settings, event.commit
    result = torch.full(commit.shape, torch.nan, dtype=torch.float64, device=commit.device)
    if plan.drafts is not None or (settings.fork and event.step.index == 0):
        return result
    if settings.temperature == 0:
        return result.masked_fill(commit, 0.0)
    if settings.temperature == 1 and not settings.filtered(plan.info):
        return event.logprobs[1]
    result[commit] = drawn_logprobs(
        event.pushed_logits[commit],
        event.prediction.tokens[commit],
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        confidence="sampled" if settings.sampled(plan.info) else "full",
    )
    return result


def _counted(tokens: Tensor, given: Tensor | None, end_ids: Sequence[int]) -> Tensor:
    """[B, L] bool: written tokens up to and with the first end token, of each hole if there are."""
    ends = torch.isin(tokens, torch.tensor(end_ids, dtype=torch.long, device=tokens.device))
    ends = ends if given is None else ends & ~given
    before = ends.cumsum(dim=1) - ends.long()
    if given is None:
        return before == 0
    # A hole counts from the end tokens that come before it.
    return ~given & (before == before.where(given, 0).cummax(dim=1).values)

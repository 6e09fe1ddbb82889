"""A drawing: a run at the level of tokens, begun with `SampleParams` and ending in samples."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from .core.canvas import Template as Form
from .core.model import Model, ModelInfo, Query, info_of
from .core.policies import POLICIES
from .core.run import advance
from .core.settings import Settings
from .core.step import History, Sample, StepEvent, Tokenizer
from .diversity.repulsion import Repulsion
from .models.wrappers import ClassifierFree, MicroBatch
from .params import SampleParams
from .prompts import split_form
from .sampler import begin
from .selection import SELECTORS
from .text import text_length

SMALL_VOCABULARY = 1 << 15  # up to this size, explored directions are remembered exactly


class Samples(list[Sample]):
    """The samples of one prompt, in order."""

    took: int | None = None
    """With `until`: the number of samples drawn up to the accepted one; None if none was."""


class Drawing:
    """A run in progress that ends in samples. The caller answers its queries with a network:

    while (query := drawing.query) is not None:
        drawing.advance(session(query))
    samples = drawing.samples()
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SampleParams,
        seeds: int | Sequence[int],
        *,
        remember: bool = False,
        history: History | None = None,
        forms: "Sequence[Form | None]" = (),
    ) -> None:
        info = info_of(with_cfg(model, params))
        given = [form for form in forms if form is not None]
        if given:
            params = params.model_copy(update={"length": len(given[0]), "stop_at_end": False})
        params = with_blocks(params, info)
        if given and params.block_length is None:
            holes = max(sum(token is None for token in form) for form in given)
            params = params.model_copy(update={"steps": params.steps or holes})
        guide = repulsion(params)
        if remember and guide is not None:
            guide = replace(
                guide, remember="exact" if info.vocab_size <= SMALL_VOCABULARY else "sparse"
            )
        options = run_options(params, info, n, seeds)
        options["stop_at_end"] &= guide is None or not remember
        self.tokenizer, self.forms, self.end_ids = tokenizer, given, info.end_ids
        self.state = begin(
            info, prompts, **options, guide=guide, history=history, templates=given or None
        )
        self._base = self._pushed = torch.zeros(
            self.state.tokens.shape, dtype=torch.float64, device=info.device
        )

    @property
    def query(self) -> Query | None:
        return self.state.query

    def advance(self, logits: Tensor, query: Query | None = None) -> StepEvent:
        """Take a step with the answer to the query, and return what it did."""
        self.state, event = advance(self.state, logits, query=query)
        base, pushed = event.logprobs
        self._base, self._pushed = (
            torch.where(event.commit, new, held)
            for new, held in ((base, self._base), (pushed, self._pushed))
        )
        if (taken := event.decision.remask) is not None:
            self._base, self._pushed = (
                x.masked_fill(taken, 0.0) for x in (self._base, self._pushed)
            )
        return event

    @property
    def history(self) -> History:
        return self.state.result.history

    def samples(self) -> list[Samples]:
        """Return the samples of each prompt."""
        done = self.state.result.to("cpu")  # once, rather than once per sample
        columns = (done.tokens, done.commit_step, self._base.cpu(), self._pushed.cpu())
        parts = list(zip(*(x.tolist() for x in columns), done.evaluations.tolist(), strict=True))
        first = done.history.samples - done.n
        groups = [parts[g * done.n : (g + 1) * done.n] for g in range(len(done.seeds))]
        return [
            Samples(self._sample(g, seed, first + i, *part) for i, part in enumerate(group))
            for g, (seed, group) in enumerate(zip(done.seeds.tolist(), groups, strict=True))
        ]

    def _sample(
        self,
        prompt: int,
        seed: int,
        index: int,
        tokens: list[int],
        commit_steps: list[int],
        base: list[float],
        pushed: list[float],
        nfe: int,
    ) -> Sample:
        decode, end_ids = self.tokenizer.decode, self.end_ids
        length = text_length(tokens, end_ids)
        text, filled = decode(tokens[:length]), ""
        holes: tuple[str, ...] = ()
        if self.forms:
            parts = split_form(self.forms[prompt], tokens, end_ids)
            holes = tuple(decode(part) for is_hole, part in parts if is_hole)
            text, filled = "".join(holes), decode([token for _, part in parts for token in part])
            last = max(i for i, token in enumerate(self.forms[prompt]) if token is None)
            length = len(tokens) if tokens[last] not in end_ids else 0
        return Sample(
            prompt=prompt,
            index=index,
            text=text,
            tokens=tuple(tokens),
            commit_steps=tuple(commit_steps),
            base_logprobs=tuple(base),
            pushed_logprobs=tuple(pushed),
            seed=seed,
            finish_reason="stop" if length < len(tokens) else "length",
            nfe=nfe,
            holes=holes,
            filled=filled,
        )


def batched(model: Model, samples: int, max_batch: int) -> Model:
    """Return the model, split into smaller network calls if there are too many samples for one."""
    return MicroBatch(model, max_batch) if samples > max_batch else model


def batches(forms: "Sequence[Form | None]", together: int) -> Iterator[range]:
    """Yield ranges of prompts to draw together: neighbours whose samples have the same length."""
    first = 0
    for i in range(1, len(forms) + 1):
        if (
            i == len(forms)
            or i - first == together
            or len(forms[i] or ()) != len(forms[first] or ())
        ):
            yield range(first, i)
            first = i


def with_cfg(model: Model, params: SampleParams) -> Model:
    """Add classifier-free guidance to the model if the parameters ask for it."""
    return ClassifierFree(model, params.cfg_scale) if params.cfg_scale else model


def with_blocks(params: SampleParams, info: ModelInfo) -> SampleParams:
    """Add the block length that the model prescribes if the parameters have none."""
    own = info.default_block_length
    if own is None or params.block_length is not None:
        return params
    return params.model_copy(update={"block_length": own})


def run_options(
    params: SampleParams, info: ModelInfo, n: int, seeds: int | Sequence[int]
) -> dict[str, Any]:
    """Return the keyword arguments of `core.settings.Settings` that the parameters describe."""
    shared = {f.name for f in fields(Settings)} & set(SampleParams.model_fields)
    return {name: getattr(params, name) for name in shared} | {
        "n": n,
        "seed": seeds,
        "steps": params.steps or params.length,
        "fork": params.forks,
        "stop_at_end": params.stops,
        "suppress": info.end_ids if params.eos == "never" else (),
        "suppress_confidence": info.end_ids if params.eos == "late" else (),
    }


def repulsion(params: SampleParams) -> Repulsion | None:
    """Return the guide that the parameters describe, or None for plain sampling."""
    guide = Repulsion(
        objective=params.objective,
        feature=params.feature,
        alpha=params.alpha,
        alpha_schedule=params.alpha_schedule,
        alpha_end=params.alpha_end,
        duplicates=params.duplicates,
        tolerance=params.tolerance,
        gradient=params.gradient,
        arithmetic=params.arithmetic,
    )
    return None if guide.idle else guide


def check_params(params: SampleParams) -> None:
    """Raise ValueError for an unknown objective, feature, policy or selector, even if unused."""
    repulsion(params)
    POLICIES.build(params.policy)
    SELECTORS.build(params.selector)

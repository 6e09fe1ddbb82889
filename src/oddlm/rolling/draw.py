"""Draw rollouts on the network that is being trained."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import whole
from ..config import checked
from ..core import noise
from ..core.canvas import lay_prompts
from ..core.model import Model, info_of
from ..core.step import Observer
from ..drawing import Drawing, batched, batches, check_params, with_cfg
from ..lm import LM, MAX_BATCH
from ..models.adapters.causality import evaluating
from ..models.wrappers import network_of
from ..params import SampleParams, SampleSettings
from ..prompts import Template, encode_prompts, encode_templates
from ..sampler import answer
from ..tasks import Problem, Task
from .recording import Recording
from .rewards import Reward, pose, rewards_of
from .rollouts import Rollouts


def rollouts(
    model: LM | Model,
    prompts: str | Sequence[str | Sequence[int] | Tensor | Problem],
    n: int,
    *,
    params: SampleParams | None = None,
    seeds: Sequence[int] | None = None,
    reward: Reward | Task | str | None = None,
    trajectories: bool = False,
    max_batch: int | None = None,
    observe: Observer | Sequence[Observer] | None = None,
    templates: Sequence[Template] | None = None,
    **settings: Unpack[SampleSettings],
) -> Rollouts:
    """Draw n samples for every prompt, as tensors.

    The network of the model is used as it is, without a copy: its weights are those of this moment.
    Its modules are in eval mode while it draws, and get their own mode back afterwards.

    Args:
        model: An LM, or a model for prompts of ids.
        prompts: Texts (which go through the chat template, if there is one), token ids, or the
            problems of a task.
        n: Samples per prompt.
        params: Base settings; keyword arguments override them.
        seeds: One seed per prompt. By default every prompt derives its own from `params.seed`: a
            trainer passes another seed at every step.
        reward: A function that takes the `Samples` of one prompt and returns a number for each. For
            problems, their task or its name: right answers get 1.0, others 0.0.
        trajectories: Keep the canvas before each step.
        max_batch: Samples per network call; affects only time and memory. By default the LM's own.
        observe: Called with a `StepEvent` after every step; one function or several.
        templates: For each prompt a list of given texts and hole sizes, as in `LM.generate`.
        **settings: Fields of `SampleParams` but `pool`, whose selection no weight could undo.
    """
    lm, n = as_lm(model), whole("n", n)
    params = checked(SampleParams, settings) if params is None else params.with_settings(settings)
    if params.pool is not None:
        raise ValueError(
            f"pool={params.pool} selects among samples, which no weight can undo: leave it out"
        )
    check_params(params)
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    texts, templates, score = pose(given, reward, templates)
    forms = encode_templates(lm.tokenizer, lm.info, templates, len(texts))
    longest = max((len(form) for form in forms if form is not None), default=params.length)
    ids = encode_prompts(lm.tokenizer, texts, longest, context=lm.info.context, raw=lm.raw)
    most = lm.max_batch if max_batch is None else max_batch
    most = MAX_BATCH if most is None else whole("max_batch", most)
    left, lengths = lay_prompts(ids, n, lm.info)
    numbers = noise.seed_tensor(params.seed if seeds is None else seeds, len(ids), left.device)
    parts, rewards = [], []
    with evaluating(network_of(lm.model)):
        for some in batches(forms, max(1, most // n)):
            cut = slice(some.start, some.stop)
            drawing = Recording(
                lm, ids[cut], n, params, numbers[cut].tolist(), forms[cut], keep=trajectories
            )
            _carry_out(drawing, with_cfg(batched(lm.model, n * len(some), most), params), observe)
            parts.append(drawing.columns())
            if score is not None:
                rewards += rewards_of(score, drawing.samples(), some.start)
    return Rollouts(
        n=n,
        prompt_ids=left,
        prompt_mask=torch.arange(left.shape[1], device=left.device)
        >= left.shape[1] - lengths[:, None],
        seeds=numbers,
        rewards=torch.tensor(rewards, dtype=torch.float32, device=left.device)
        if score is not None
        else None,
        **_joined(parts),
    )


def as_lm(model: LM | Model) -> LM:
    """Return an LM of a model; without a tokenizer it takes prompts of ids only."""
    if isinstance(model, LM):
        return model
    info_of(model)
    return LM(model, getattr(model, "tokenizer", None) or _NoText())


class _NoText:
    """The tokenizer of a model that has none."""

    def encode(self, text: str) -> list[int]:
        raise ValueError(f"the model has no tokenizer for {text!r:.40}: pass token ids, or an LM")

    def decode(self, _: Sequence[int]) -> str:
        return ""


def _carry_out(
    drawing: Drawing, model: Model, observe: Observer | Sequence[Observer] | None
) -> None:
    observers = (observe,) if callable(observe) else tuple(observe or ())
    for event in answer(model, drawing):
        for observer in observers:
            observer(event)
        # An event holds arrays as large as the logits: free them before the next pass.
        del event


def _joined(parts: Sequence[Mapping[str, Tensor | None]]) -> dict[str, Any]:
    """Join the tensors of several runs, which may differ in length and steps."""
    fills: dict[str, float] = {"commit_step": -1, "drawn_logprobs": torch.nan}
    found: dict[str, Any] = {}
    for name, first in parts[0].items():
        columns = [x for part in parts if (x := part[name]) is not None]
        if first is None or first.dim() == 1:
            found[name] = torch.cat(columns) if columns else None
            continue
        width = max(x.shape[-1] for x in columns)
        columns = [F.pad(x, (0, width - x.shape[-1]), value=fills.get(name, 0)) for x in columns]
        if name == "canvases":
            columns = _as_long(columns, [part["tokens"] for part in parts])
        found[name] = torch.cat(columns, dim=-2)
    return found


def _as_long(canvases: list[Tensor], tokens: Sequence[Any]) -> list[Tensor]:
    """Repeat the last tokens of runs with fewer steps than the longest."""
    steps, found = max(len(x) for x in canvases), []
    for x, last in zip(canvases, tokens, strict=True):
        padded = F.pad(last, (0, x.shape[-1] - last.shape[-1]))
        found.append(torch.cat([x, padded.expand(steps - len(x), -1, -1)]))
    return found

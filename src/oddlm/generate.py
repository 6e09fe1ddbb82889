"""A model and a tokenizer make an LM: text in, samples out. The one door for evaluation, sweeps and the server."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import noise
from .checks import whole
from .diversity.guide import Repulsion
from .models import load_model
from .models.wrappers import ClassifierFree, MicroBatch
from .params import SampleParams
from .policies import POLICIES
from .sampler import denoise
from .types import Denoised, History, Model, Observer, Sample, StepEvent, Tokenizer

Verify = Callable[[Sample], bool]
SMALL_VOCABULARY = 1 << 15  # up to here, what a batch explored is remembered exactly


class Samples(list[Sample]):
    """The samples of one prompt, in order."""

    took: int | None = None  # with `until`: how many samples it took to have one accepted; None if none was


@dataclass(frozen=True)
class LM:
    """`oddlm.load("toy").generate("t5 t6", n=16, length=24)`."""

    model: Model
    tokenizer: Tokenizer

    def generate(
        self,
        prompts: str | Sequence[str],
        n: int = 16,
        *,
        params: SampleParams | None = None,
        seeds: Sequence[int] | None = None,
        until: Verify | None = None,
        max_samples: int = 256,
        max_rows: int = 256,
        observe: Observer | Sequence[Observer] | None = None,
        progress: bool | None = None,
        **settings: Any,
    ) -> list[Samples]:
        """n samples for every prompt; `settings` are the fields of SampleParams.

        seeds: one per prompt, in place of params.seed, from which each prompt derives its own.
        until: called with each new sample, in order, until it accepts one; prompts without an accepted sample get n more, which
        avoid what the earlier ones explored, until they have `max_samples`. A prompt's `took` says how many it needed.
        max_rows: samples that the network sees at a time; it changes nothing but time and memory.
        """
        params = SampleParams.model_validate({**(params.model_dump() if params else {}), **settings})
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self._encode(i, text, params.length) for i, text in enumerate(texts)]
        n, max_rows, max_samples = whole("n", n), whole("max_rows", max_rows), whole("max_samples", max_samples)
        if not ids:
            raise ValueError("prompts is empty: give at least one prompt")
        if until is not None and max_samples < n:
            raise ValueError(f"max_samples must be at least n: {max_samples} < {n}")
        if until is not None and getattr(POLICIES.build(params.policy), "parallel", False):
            raise ValueError(f"policy {params.policy!r} is parallel, so there is no history for `until` to go on from")
        draw = partial(self._draw, params=params, max_rows=max_rows, remember=until is not None)
        draw = partial(draw, observe=observe, progress=progress)
        results = [Samples() for _ in ids]
        given = params.seed if seeds is None else seeds
        seeds = noise.seed_tensor(given, len(ids), torch.device("cpu")).tolist()
        together = max(1, max_rows // n)
        for first in range(0, len(ids), together):
            some = range(first, min(first + together, len(ids)))
            try:
                _fill(results, list(some), ids, seeds, draw, n, until, max_samples)
            except BaseException as error:  # Ctrl-C too
                if any(results):
                    error.samples = results  # type: ignore[attr-defined]
                    error.add_note("the samples generated until then are in this exception's .samples")
                raise
        return results

    def _encode(self, i: int, text: str, length: int) -> list[int]:
        if not isinstance(text, str):
            raise ValueError(f"prompts[{i}] must be text, not {type(text).__name__}; `oddlm.denoise` takes token ids")
        ids = self.tokenizer.encode(text)
        context = getattr(self.model, "context", None)
        if not ids:
            raise ValueError(f"prompts[{i}] is empty")
        if context is not None and len(ids) + length > context:
            raise ValueError(f"prompts[{i}] has {len(ids)} tokens; with {length} to write the model's {context} are too few")
        return ids

    def _draw(
        self,
        prompts: list[list[int]],
        seeds: list[int],
        history: History | None,
        which: list[int],
        n: int,
        *,
        params: SampleParams,
        max_rows: int,
        remember: bool,
        observe: Observer | Sequence[Observer] | None,
        progress: bool | None,
    ) -> tuple[list[list[Sample]], History]:
        """n more samples for each of the prompts, which stand at `which` among all."""
        model = MicroBatch(self.model, max_rows) if n * len(prompts) > max_rows else self.model
        model = ClassifierFree(model, params.guidance) if params.guidance else model
        guide = repulsion(params)
        if remember and guide is not None:
            guide = replace(guide, remember="exact" if model.vocab_size <= SMALL_VOCABULARY else "sparse")
        watch = _LogProbs()
        done = denoise(
            model,
            prompts,
            n=n,
            length=params.length,
            steps=params.steps or params.length,
            temperature=params.temperature,
            policy=params.policy,
            guide=guide,
            seed=seeds,
            block_length=params.block_length,
            top_k=params.top_k,
            top_p=params.top_p,
            suppress=model.protected_ids if params.eos == "never" else (),
            suppress_confidence=model.protected_ids if params.eos == "late" else (),
            order_temperature=params.order_temperature,
            fork=params.fork,
            history=history,
            observe=(watch, observe) if callable(observe) else (watch, *(observe or ())),
            progress=progress,
        )
        return [list(self._samples(done, watch, g, prompt)) for g, prompt in enumerate(which)], done.history

    def _samples(self, done: Denoised, watch: "_LogProbs", g: int, prompt: int) -> Iterator[Sample]:
        first = done.history.samples - done.n
        for i in range(done.n):
            row = g * done.n + i
            tokens = done.tokens[row].tolist()
            end = next((p for p, t in enumerate(tokens) if t in self.model.protected_ids), None)
            yield Sample(
                prompt=prompt,
                index=first + i,
                text=self.tokenizer.decode(tokens[:end]),
                tokens=tuple(tokens),
                commit_steps=tuple(done.commit_step[row].tolist()),
                base_logprobs=tuple(watch.base[row].tolist()),
                guided_logprobs=tuple(watch.guided[row].tolist()),
                seed=int(done.seeds[g]),
                finish_reason="length" if end is None else "stop",
                nfe=done.nfe,
            )


def load(name: str, **options: Any) -> LM:
    """An LM by the name of its model (`toy`), or by the dotted path of a class or function that gives one with a tokenizer."""
    model = load_model(name, **options)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError(f"model {name!r} has no tokenizer: make the LM yourself, oddlm.LM(model, tokenizer)")
    return LM(model, tokenizer)


def repulsion(params: SampleParams) -> Repulsion | None:
    """The guide that the parameters describe; None for plain sampling."""
    guide = Repulsion(
        objective=params.objective,
        feature=params.feature,
        alpha=params.alpha,
        schedule=params.schedule,
        duplicates=params.duplicates,
        tolerance=params.tolerance,
        gradient=params.gradient,
        preset=params.preset,
    )
    return None if guide.idle else guide


def _fill(
    results: list[Samples],
    open_: list[int],
    ids: list[list[int]],
    seeds: list[int],
    draw: Callable[..., tuple[list[list[Sample]], History]],
    n: int,
    until: Verify | None,
    max_samples: int,
) -> None:
    """Draw for the prompts `open_`, in rounds of n, until each has a sample that `until` accepts or all it may have."""
    history = None
    while open_:
        size = n if until is None else min(n, max_samples - len(results[open_[0]]))  # all that are open have as many
        groups, history = draw([ids[i] for i in open_], [seeds[i] for i in open_], history, open_, size)
        for i, group in zip(open_, groups, strict=True):
            results[i].extend(group)
        if until is None:
            return
        for i, group in zip(open_, groups, strict=True):
            results[i].took = next((s.index + 1 for s in group if until(s)), None)
        keep = [g for g, i in enumerate(open_) if results[i].took is None and len(results[i]) < max_samples]
        open_ = [open_[g] for g in keep]
        history = history.take(keep)


class _LogProbs:
    """An observer that notes the log-probability of each token at the step that commits it."""

    base: Tensor  # [B, L]
    guided: Tensor

    def __call__(self, event: StepEvent) -> None:
        base, guided = event.logprobs
        first = event.step.index == 0
        self.base, self.guided = (base, guided) if first else (self.base + base, self.guided + guided)

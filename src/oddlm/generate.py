"""A model and a tokenizer make an LM: text in, samples out. The one door for evaluation, sweeps and the server."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from . import noise
from .checks import short_dtype, whole
from .diversity.guide import Repulsion
from .ends import text_length
from .models import load_model, outline_model
from .models.wrap import Wrapped
from .models.wrappers import ClassifierFree, MicroBatch
from .params import SampleParams, checked
from .policies import POLICIES
from .sampler import denoise
from .selection import SELECTORS, keep
from .types import Denoised, History, Model, Observer, Sample, StepEvent, Tokenizer, called

Verify = Callable[[Sample], bool]
MAX_BATCH = 256
SMALL_VOCABULARY = 1 << 15  # up to here, what a batch explored is remembered exactly


class Samples(list[Sample]):
    """The samples of one prompt, in order."""

    took: int | None = None  # with `until`: how many samples it took to have one accepted; None if none was


@dataclass(frozen=True)
class LM:
    """`oddlm.load("toy").generate("t5 t6", n=16, length=24)`."""

    model: Model
    tokenizer: Tokenizer
    raw: bool = False  # prompts as they are, even where the tokenizer has a chat template
    max_batch: int | None = None  # samples that the network sees at a time; None: MAX_BATCH

    def __repr__(self) -> str:
        numbers = getattr(getattr(self.model, "embedding", None), "dtype", None)
        told = [repr(called(self.model)), str(getattr(self.model, "device", "cpu"))]
        told += [] if numbers is None else [short_dtype(str(numbers).removeprefix("torch."))]
        return f"LM({', '.join(told)})"

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        n: int = 16,
        *,
        params: SampleParams | None = None,
        seeds: Sequence[int] | None = None,
        until: Verify | None = None,
        max_samples: int = 256,
        max_batch: int | None = None,
        observe: Observer | Sequence[Observer] | None = None,
        progress: bool | None = None,
        **settings: Any,
    ) -> list[Samples]:
        """n samples for every prompt; `settings` are the fields of SampleParams.

        prompts: texts, or the token ids of each (a chat template's, for instance).
        params: settings of which `settings` change some; alpha=0 is plain sampling, without an automatic fork too.
        seeds: one per prompt, in place of params.seed, from which each prompt derives its own.
        params.pool: so many samples are drawn, and n of them kept, in the order in which params.selector chose them.
        until: called with each new sample, in order, until it accepts one; prompts without an accepted sample get n more, which
        avoid what the earlier ones explored, until they have `max_samples`. A prompt's `took` says how many it needed.
        max_batch: samples that the network sees at a time; it changes nothing but time and memory. None: what the LM says.
        """
        params = checked(SampleParams, settings) if params is None else params.with_settings(settings)
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = encode_prompts(self, texts, params.length)
        n, max_samples = whole("n", n), whole("max_samples", max_samples)
        drawn = params.drawn(n)
        most = self.max_batch if max_batch is None else max_batch
        max_batch = MAX_BATCH if most is None else whole("max_batch", most)
        if not ids:
            raise ValueError("prompts is empty: give at least one prompt")
        check_params(params)
        if until is not None:
            _check_rounds(params, n, max_samples)
        draw = partial(self._draw, params=params, max_batch=max_batch, remember=until is not None)
        draw = partial(draw, observe=observe, progress=progress)
        results = [Samples() for _ in ids]
        given = params.seed if seeds is None else seeds
        seeds = noise.seed_tensor(given, len(ids), torch.device("cpu")).tolist()
        together = max(1, max_batch // drawn)
        for first in range(0, len(ids), together):
            some = range(first, min(first + together, len(ids)))
            try:
                _fill(results, list(some), ids, seeds, draw, drawn, until, max_samples)
                for i in some if params.pool is not None else ():
                    results[i][:] = keep(results[i], n, params.selector)
            except BaseException as error:  # Ctrl-C too
                if any(results):
                    error.samples = results  # type: ignore[attr-defined]
                    error.add_note("the samples generated until then are in this exception's .samples")
                raise
        return results

    def _draw(
        self,
        prompts: list[list[int]],
        seeds: list[int],
        history: History | None,
        which: list[int],
        n: int,
        *,
        params: SampleParams,
        max_batch: int,
        remember: bool,
        observe: Observer | Sequence[Observer] | None,
        progress: bool | None,
    ) -> tuple[list[list[Sample]], History]:
        """n more samples for each of the prompts, which stand at `which` among all."""
        model = MicroBatch(self.model, max_batch) if n * len(prompts) > max_batch else self.model
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
            confidence=params.confidence,
            guide=guide,
            seed=seeds,
            block_length=params.block_length,
            top_k=params.top_k,
            top_p=params.top_p,
            suppress=model.end_ids if params.eos == "never" else (),
            suppress_confidence=model.end_ids if params.eos == "late" else (),
            order_temperature=params.order_temperature,
            fork=params.forks,
            fork_temperature=params.fork_temperature,
            prompt_noise=params.prompt_noise,
            history=history,
            observe=(watch, observe) if callable(observe) else (watch, *(observe or ())),
            progress=progress,
        )
        here, logprobs = done.to("cpu"), watch.to("cpu")  # once, not once a sample
        return [list(self._samples(here, logprobs, g, prompt)) for g, prompt in enumerate(which)], done.history

    def _samples(self, done: Denoised, watch: "_LogProbs", g: int, prompt: int) -> Iterator[Sample]:
        first = done.history.samples - done.n
        mine = slice(g * done.n, (g + 1) * done.n)
        columns = (x[mine].tolist() for x in (done.tokens, done.commit_step, watch.base, watch.guided))
        for i, (tokens, commit_steps, base, guided) in enumerate(zip(*columns, strict=True)):
            length = text_length(tokens, self.model.end_ids)
            yield Sample(
                prompt=prompt,
                index=first + i,
                text=self.tokenizer.decode(tokens[:length]),
                tokens=tuple(tokens),
                commit_steps=tuple(commit_steps),
                base_logprobs=tuple(base),
                guided_logprobs=tuple(guided),
                seed=int(done.seeds[g]),
                finish_reason="stop" if length < len(tokens) else "length",
                nfe=done.nfe,
            )


def load(name: str, *, raw: bool = False, max_batch: int | None = None, **options: Any) -> LM:
    """An LM by the name of its model: `mini`, a checkpoint's folder or its name on the hub (`GSAI-ML/LLaDA-8B-Instruct`), or
    the dotted path of a class or function that gives a model with a tokenizer.

    raw: give prompts to the network as they are; by default they go through the model's chat template, if it has one
    (mini's is the line break at their end).
    max_batch: samples that the network sees at a time. options: the model's own; checkpoints take revision, device, dtype,
    quantize, device_map, mask_id, cache, refresh, compiled, local_files_only and cache_dir.
    """
    _check_max_batch(max_batch)
    model = load_model(name, **options)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError(f"model {name!r} has no tokenizer: make the LM yourself, oddlm.LM(model, tokenizer)")
    return LM(model, tokenizer, raw, max_batch)


def wrap(
    model: Callable[..., Any],
    tokenizer: Any,
    *,
    mask_id: int | None = None,
    shift: bool = False,
    raw: bool = False,
    max_batch: int | None = None,
) -> LM:
    """An LM around a masked diffusion model that you have loaded with transformers, and its tokenizer.

    mask_id: default the tokenizer's mask token. shift: position j is predicted by the output of position j - 1.
    A few short canvases show whether it hears both ways. One that is causal over blocks (of up to 128 tokens) is told in a
    warning, with the `block_length` to generate with.
    """
    _check_max_batch(max_batch)
    wrapped = Wrapped(model, tokenizer, mask_id=mask_id, shift=shift)
    return LM(wrapped, wrapped.tokenizer, raw, max_batch)


def _check_max_batch(max_batch: int | None) -> None:
    if max_batch is not None:
        whole("max_batch", max_batch)


def check_prompts(name: str, texts: Sequence[str], length: int, *, raw: bool = False, **options: Any) -> None:
    """ValueError for prompts that a checkpoint cannot take, before its weights are read or downloaded."""
    known = outline_model(name, **options)
    if known is not None:
        encode_prompts(LM(cast("Model", known), known.tokenizer, raw), texts, length)


def encode_prompts(lm: LM, prompts: Sequence[str | Sequence[int]], length: int) -> list[list[int]]:
    """Token ids of the prompts, texts through the chat template where there is one; `length` more must fit behind each."""
    context = getattr(lm.model, "context", None)
    chat = getattr(lm.tokenizer, "chat", None)
    if lm.raw or getattr(lm.tokenizer, "template", chat) is None:  # one with the method and nothing beside it has one form
        chat = None
    found = []
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str | Sequence):
            raise ValueError(f"prompts[{i}] must be text or token ids, not {type(prompt).__name__}")
        if not isinstance(prompt, str):
            ids = list(prompt)
        else:
            ids = chat([{"role": "user", "content": prompt}]) if chat and prompt else lm.tokenizer.encode(prompt)
        if not ids:
            raise ValueError(f"prompts[{i}] is empty")
        if context is not None and len(ids) + length > context:
            raise ValueError(f"prompts[{i}] has {len(ids)} tokens; with {length} to write the model's {context} are too few")
        found.append(ids)
    return found


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
        preset="paper" if params.preset == "paper" else None,
    )
    return None if guide.idle else guide


def check_params(params: SampleParams) -> None:
    """ValueError for names and options of pieces that there are not, in use or not."""
    repulsion(params)
    POLICIES.build(params.policy)
    SELECTORS.build(params.selector)


def _check_rounds(params: SampleParams, n: int, max_samples: int) -> None:
    """Can samples be drawn in rounds of n until one is accepted?"""
    if params.pool is not None:
        raise ValueError("until looks at samples as they come, a pool is chosen from at the end: give one of them")
    if max_samples < n:
        raise ValueError(f"max_samples must be at least n: {max_samples} < {n}")
    if getattr(POLICIES.build(params.policy), "parallel", False):
        raise ValueError(f"policy {params.policy!r} is parallel, so there is no history for `until` to go on from")


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

    def to(self, device: str) -> "_LogProbs":
        moved = _LogProbs()
        moved.base, moved.guided = self.base.to(device), self.guided.to(device)
        return moved

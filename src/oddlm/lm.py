"""`LM`, a model with its tokenizer: text in, samples out.

Evaluation, sweeps and the server all draw their samples through it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch

from .checks import short_dtype, whole
from .config import checked
from .core import noise
from .core.canvas import Template as Form
from .core.guide import Backend
from .core.model import Model, ModelInfo, info_of
from .core.policies import POLICIES
from .core.settings import Settings
from .core.step import History, Observer, Sample, Tokenizer
from .drawing import (
    Drawing,
    Samples,
    batched,
    batches,
    check_params,
    repulsion,
    run_options,
    with_cfg,
)
from .likelihood import Bound, loglikelihood_bound
from .models import load_model
from .models.adapters.transformers import wrapped_model
from .params import SampleParams, SampleSettings
from .progress import step_progress
from .prompts import Template, encode_continuation, encode_prompts, encode_templates
from .sampler import answer, choose_backend
from .selection import keep
from .tasks import find_task
from .voting import WAYS, Answer, Ballot, Read, Way
from .voting import vote as count_votes

Verify = Callable[[Sample], bool]
MAX_BATCH = 256


@dataclass(frozen=True)
class LM:
    """A model with its tokenizer, ready to generate text.

    Make one with `oddlm.load` or `oddlm.wrap`:
    `oddlm.load("toy").generate("t5 t6", n=16, length=24)`.
    """

    model: Model
    tokenizer: Tokenizer
    raw: bool = False  # pass prompts unchanged, even if the tokenizer has a chat template
    max_batch: int | None = None  # samples per network call; None means 256

    @property
    def info(self) -> ModelInfo:
        """The model's description: vocabulary, special tokens, device and so on."""
        return info_of(self.model)

    def backend(self, params: SampleParams) -> Backend:
        """Return the backend for a run with these parameters.

        It is chosen once per run, by device, dtype, guide and filters.
        """
        info = info_of(with_cfg(self.model, params))
        return choose_backend(info, Settings(**run_options(params, info, 1, 0)), repulsion(params))

    def __repr__(self) -> str:
        info = self.info
        parts = [repr(info.name), str(info.device)]
        if info.dtype is not None:
            parts.append(short_dtype(str(info.dtype).removeprefix("torch.")))
        return f"LM({', '.join(parts)})"

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
        templates: Sequence[Template] | None = None,
        **settings: Unpack[SampleSettings],
    ) -> list[Samples]:
        """Generate n samples for every prompt.

        If an exception ends the call early, the samples drawn so far are in its `.samples`.

        Args:
            prompts: One text, or a list of texts or token id sequences (from a chat template of
                your own, for instance).
            n: Samples per prompt.
            params: Base settings; keyword arguments override them. `alpha=0` is plain sampling
                and also drops an automatic fork.
            seeds: One seed per prompt. By default every prompt derives its own from `params.seed`.
            until: Called with each new sample, in order, until it accepts one. Prompts without an
                accepted sample get n more, which avoid what the earlier ones explored, up to
                `max_samples`. `Samples.took` is the number that a prompt needed.
            max_samples: Most samples per prompt with `until`.
            max_batch: Samples per network call; affects only time and memory. By default the
                LM's own.
            observe: Called with a `StepEvent` after every step; one function or several.
            progress: Draw a progress bar on stderr; by default only on a terminal and for runs
                that take longer than a moment.
            templates: For each prompt a list of given texts and hole sizes in tokens:
                `["def f(x):\\n", 16, "\\n    return y"]`. Given text is never pushed apart and is
                not part of the answer; a sample is as long as its template.
            **settings: Fields of `SampleParams`. With `pool`, that many samples are drawn and n of
                them kept, in the order in which `selector` chose them.

        Returns:
            The samples of each prompt, in the order of the prompts.
        """
        params = (
            checked(SampleParams, settings) if params is None else params.with_settings(settings)
        )
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        forms = encode_templates(self.tokenizer, self.info, templates, len(texts))
        longest = max((len(form) for form in forms if form is not None), default=params.length)
        ids = encode_prompts(
            self.tokenizer, texts, longest, context=self.info.context, raw=self.raw
        )
        n, max_samples = whole("n", n), whole("max_samples", max_samples)
        drawn = params.drawn(n)
        most = self.max_batch if max_batch is None else max_batch
        max_batch = MAX_BATCH if most is None else whole("max_batch", most)
        if not ids:
            raise ValueError("prompts is empty: give at least one prompt")
        check_params(params)
        if until is not None:
            _check_rounds(params, n, max_samples, self.info)
        rounds = _Rounds(self, params, max_batch, until is not None, observe, progress)
        results = [Samples() for _ in ids]
        given = params.seed if seeds is None else seeds
        seeds = noise.seed_tensor(given, len(ids), torch.device("cpu")).tolist()
        together = max(1, max_batch // drawn)
        for some in batches(forms, together):
            try:
                _fill(
                    results, list(some), ids, seeds, forms, rounds.draw, drawn, until, max_samples
                )
                for i in some if params.pool is not None else ():
                    results[i][:] = keep(results[i], n, params.selector)
            except BaseException as error:  # Ctrl-C too
                if any(results):
                    error.samples = results  # type: ignore[attr-defined]
                    error.add_note("the samples drawn so far are in this exception's .samples")
                raise
        return results

    def sample(
        self,
        prompt: str | Sequence[int],
        n: int = 16,
        *,
        params: SampleParams | None = None,
        until: Verify | None = None,
        max_samples: int = 256,
        max_batch: int | None = None,
        observe: Observer | Sequence[Observer] | None = None,
        progress: bool | None = None,
        template: Template | None = None,
        **settings: Unpack[SampleSettings],
    ) -> Samples:
        """Generate n samples for one prompt.

        Args:
            prompt: A text, or token ids.
            n: Number of samples.
            params: Base settings, as in `generate`; so are the arguments below.
            until: Keep drawing, n samples at a time, until it accepts one.
            max_samples: Most samples with `until`.
            max_batch: Samples per network call.
            observe: Called with a `StepEvent` after every step; one function or several.
            progress: Draw a progress bar on stderr.
            template: Given texts and hole sizes in tokens.
            **settings: Fields of `SampleParams`.
        """
        (samples,) = self.generate(
            [prompt],
            n,
            params=params,
            until=until,
            max_samples=max_samples,
            max_batch=max_batch,
            observe=observe,
            progress=progress,
            templates=None if template is None else [template],
            **settings,
        )
        return samples

    def answer(
        self,
        prompt: str | Sequence[int],
        n: int = 16,
        *,
        by: str | Mapping[str, Any] | Way = "majority",
        read: str | Read | None = None,
        params: SampleParams | None = None,
        max_batch: int | None = None,
        observe: Observer | Sequence[Observer] | None = None,
        progress: bool | None = None,
        template: Template | None = None,
        **settings: Unpack[SampleSettings],
    ) -> Answer:
        """Generate n samples for one prompt, and return the one answer that wins a vote.

        Args:
            prompt: A text, or token ids.
            n: Number of samples.
            by: The way to vote (`vote`).
            read: How to read the answer in a text (`vote`).
            params: Base settings, as in `generate`; so are the arguments below.
            max_batch: Samples per network call.
            observe: Called with a `StepEvent` after every step; one function or several.
            progress: Draw a progress bar on stderr.
            template: Given texts and hole sizes in tokens.
            **settings: Fields of `SampleParams`.
        """
        check_vote(by, read)
        samples = self.sample(
            prompt,
            n,
            params=params,
            max_batch=max_batch,
            observe=observe,
            progress=progress,
            template=template,
            **settings,
        )
        return self.vote(prompt, samples, by=by, read=read)

    def vote(
        self,
        prompt: str | Sequence[int],
        samples: Sequence[Sample],
        *,
        by: str | Mapping[str, Any] | Way = "majority",
        read: str | Read | None = None,
    ) -> Answer:
        """Return the answer that wins a vote of samples that were drawn for a prompt.

        Args:
            prompt: Their prompt, as it was given when they were drawn.
            samples: The samples.
            by: The way to vote: a name (`majority`, `cloze` and others; see `oddlm.voting`), a
                mapping with a name and options, or a function.
            read: Returns the answer in a text, None if there is none; or the name of a task, whose
                reading is used (`gsm8k`, or with a protocol `gsm8k:equations`). Samples that
                cannot be read do not vote. By default similar texts are one answer.
        """
        reader = check_vote(by, read)
        longest = max((len(one.tokens) for one in samples), default=0)
        (ids,) = encode_prompts(
            self.tokenizer, [prompt], longest, context=self.info.context, raw=self.raw
        )
        ballot = Ballot(self.model, ids, samples, self.max_batch or MAX_BATCH)
        return count_votes(ballot, by=by, read=reader)

    def loglikelihood_bound(
        self,
        prompt: str | Sequence[int],
        continuation: str | Sequence[int],
        *,
        draws: int = 128,
        seed: int = 0,
        max_batch: int | None = None,
    ) -> Bound:
        """Estimate a lower bound of the log-likelihood of a continuation.

        A masked diffusion model has no exact one. A draw hides some of the continuation's tokens at
        random; see `oddlm.likelihood`.

        Args:
            prompt: A text, or token ids.
            continuation: What follows it, a text or token ids. No end token is added.
            draws: Number of draws; the standard error falls with their square root.
            seed: The same seed hides the same positions of continuations of one length.
            max_batch: Draws per network call.
        """
        tokens = (
            encode_continuation(self.tokenizer, continuation)
            if isinstance(continuation, str)
            else list(continuation)
        )
        (ids,) = encode_prompts(
            self.tokenizer, [prompt], len(tokens), context=self.info.context, raw=self.raw
        )
        most = self.max_batch if max_batch is None else whole("max_batch", max_batch)
        return loglikelihood_bound(
            self.model, ids, tokens, draws=draws, seed=seed, max_batch=most or MAX_BATCH
        )


@dataclass(frozen=True, slots=True)
class _Rounds:
    """How `LM.generate` draws its batches, one after another."""

    lm: LM
    params: SampleParams
    max_batch: int
    remember: bool
    observe: Observer | Sequence[Observer] | None
    progress: bool | None

    def draw(
        self,
        prompts: list[list[int]],
        seeds: list[int],
        forms: "list[Form | None]",
        history: History | None,
        n: int,
    ) -> tuple[list[Samples], History]:
        """Draw n more samples for each of the prompts."""
        drawing = Drawing(
            self.lm.model,
            self.lm.tokenizer,
            prompts,
            n,
            self.params,
            seeds,
            remember=self.remember,
            history=history,
            forms=forms,
        )
        model = batched(self.lm.model, n * len(prompts), self.max_batch)
        model = with_cfg(model, self.params)
        observers = (self.observe,) if callable(self.observe) else tuple(self.observe or ())
        with step_progress(self.progress) as tick:
            for event in answer(model, drawing):
                for observer in (*observers, tick):
                    observer(event)
                # An event holds arrays as large as the logits: free them before the next pass.
                del event
        return drawing.samples(), drawing.history


def load(name: str, *, raw: bool = False, max_batch: int | None = None, **options: Any) -> LM:
    """Load a model by name, with its tokenizer.

    Args:
        name: A model with a name (`mini`, `toy`, or `smol` from the package oddlm-smol), a
            checkpoint folder, a checkpoint on the hub (`GSAI-ML/LLaDA-8B-Instruct`), or the dotted
            path of a class or function that returns a model with a tokenizer.
        raw: Pass prompts to the network unchanged. By default they go through the model's chat
            template, if it has one (mini's adds a line break at the end).
        max_batch: Samples per network call; default 256.
        **options: Options of the model. Checkpoints take `revision`, `device`, `dtype`,
            `quantize`, `device_map`, `mask_id`, `block_size`, `cache`, `refresh`, `compiled`,
            `local_files_only` and `cache_dir`.
    """
    _check_max_batch(max_batch)
    model = load_model(name, **options)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError(
            f"model {name!r} has no tokenizer: build the LM with oddlm.LM(model, tokenizer)"
        )
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
    """Make an LM of a diffusion model that you have loaded with transformers.

    A few short forward passes check that attention is bidirectional. For a model that is causal
    over blocks (of up to 128 tokens), a warning names the `block_length` to generate with. A
    DiffusionGemma is recognised by its configuration.

    Args:
        model: The transformers model.
        tokenizer: Its tokenizer.
        mask_id: Id of the mask token; by default the tokenizer's.
        shift: The output at position j - 1 predicts position j.
        raw: Pass prompts unchanged, without the chat template.
        max_batch: Samples per network call; default 256.
    """
    _check_max_batch(max_batch)
    wrapped = wrapped_model(model, tokenizer, mask_id=mask_id, shift=shift)
    return LM(wrapped, wrapped.tokenizer, raw, max_batch)


def _check_max_batch(max_batch: int | None) -> None:
    if max_batch is not None:
        whole("max_batch", max_batch)


def check_vote(by: str | Mapping[str, Any] | Way, read: str | Read | None) -> Read | None:
    """Return the function that reads answers; raise ValueError for an unknown vote or task."""
    WAYS.build(by)
    if not isinstance(read, str):
        return read
    name, _, rest = read.partition(":")
    task = find_task(name)
    task = task.under(rest or None) if task.family is None else find_task(read)
    reader = task.read
    if reader is None:
        raise ValueError(f"task {read!r} does not say how to read an answer")
    return reader


def _check_rounds(params: SampleParams, n: int, max_samples: int, info: ModelInfo) -> None:
    """Raise ValueError if samples cannot be drawn in rounds of n until one is accepted."""
    if params.pool is not None:
        raise ValueError(
            "until and pool cannot be combined: until checks samples as they are drawn, "
            "pool selects among all of them at the end"
        )
    if max_samples < n:
        raise ValueError(f"max_samples must be at least n: {max_samples} < {n}")
    if info.drafting is None and getattr(POLICIES.build(params.policy), "parallel", False):
        raise ValueError(
            f"policy {params.policy!r} is parallel, so it leaves no history for `until` to "
            "continue from"
        )


def _fill(
    results: list[Samples],
    open_: list[int],
    ids: list[list[int]],
    seeds: list[int],
    forms: "list[Form | None]",
    draw: Callable[..., tuple[list[Samples], History]],
    n: int,
    until: Verify | None,
    max_samples: int,
) -> None:
    """Draw rounds of n samples for the prompts `open_` until each has an accepted sample.

    A prompt that reaches `max_samples` is given up. Without `until` there is one round.
    """
    history = None
    while open_:
        # All open prompts have the same number of samples.
        size = n if until is None else min(n, max_samples - len(results[open_[0]]))
        groups, history = draw(*([x[i] for i in open_] for x in (ids, seeds, forms)), history, size)
        for i, group in zip(open_, groups, strict=True):
            group[:] = [replace(sample, prompt=i) for sample in group]
            results[i].extend(group)
        if until is None:
            return
        for i, group in zip(open_, groups, strict=True):
            results[i].took = next((s.index + 1 for s in group if until(s)), None)
        still_open = [
            g
            for g, i in enumerate(open_)
            if results[i].took is None and len(results[i]) < max_samples
        ]
        open_ = [open_[g] for g in still_open]
        history = history.take(still_open)

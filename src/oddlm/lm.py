"""`LM`, a model with its tokenizer: text in, samples out.

Evaluation, sweeps and the server all draw their samples through it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, Unpack

import torch
from torch import Tensor

from .checks import short_dtype, whole
from .config import checked
from .core import noise
from .core.canvas import Template as Form
from .core.guide import Backend
from .core.model import Model, ModelInfo, Query, info_of
from .core.policies import POLICIES
from .core.run import advance
from .core.settings import Settings
from .core.step import History, Observer, Sample, StepEvent, Tokenizer
from .diversity.repulsion import Repulsion
from .models import load_model, outline_model
from .models.adapters.transformers import wrapped_model
from .models.wrappers import ClassifierFree, MicroBatch
from .params import SampleParams, SampleSettings
from .progress import step_progress
from .sampler import answer, begin, choose_backend
from .selection import SELECTORS, keep
from .tasks import find_task
from .text import text_length
from .voting import WAYS, Answer, Ballot, Read, Way
from .voting import vote as count_votes

Template = Sequence[str | int]  # given texts, and the number of tokens of each hole
Verify = Callable[[Sample], bool]
MAX_BATCH = 256
SMALL_VOCABULARY = 1 << 15  # up to this size, explored directions are remembered exactly


class Samples(list[Sample]):
    """The samples of one prompt, in order."""

    took: int | None = None
    """With `until`: the number of samples drawn up to the accepted one; None if none was."""


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


class Drawing:
    """A run in progress that ends in samples. The caller answers its queries with a network:

    while (query := drawing.query) is not None:
        drawing.advance(session(query))
    samples = drawing.samples()
    """

    def __init__(
        self,
        lm: LM,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SampleParams,
        seeds: int | Sequence[int],
        *,
        remember: bool = False,
        history: History | None = None,
        forms: "Sequence[Form | None]" = (),
    ) -> None:
        info = info_of(with_cfg(lm.model, params))
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
        self.lm, self.forms, self.end_ids = lm, given, info.end_ids
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
        decode, end_ids = self.lm.tokenizer.decode, self.end_ids
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
            self.lm,
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


def batched(model: Model, samples: int, max_batch: int) -> Model:
    """Return the model, split into smaller network calls if there are too many samples for one."""
    return MicroBatch(model, max_batch) if samples > max_batch else model


def with_cfg(model: Model, params: SampleParams) -> Model:
    """Add classifier-free guidance to the model if the parameters ask for it."""
    return ClassifierFree(model, params.cfg_scale) if params.cfg_scale else model


def with_blocks(params: SampleParams, info: ModelInfo) -> SampleParams:
    """Add the block length that the model prescribes if the parameters have none."""
    own = info.default_block_length
    if own is None or params.block_length is not None:
        return params
    return params.model_copy(update={"block_length": own})


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


def check_prompts(
    name: str, texts: Sequence[str], length: int, *, raw: bool = False, **options: Any
) -> None:
    """Raise ValueError for a length or prompts that do not fit a checkpoint.

    Its weights are not loaded.
    """
    known = outline_model(name, **options)
    if known is not None:
        known.check_length(length)
        encode_prompts(known.tokenizer, texts, length, context=known.context, raw=raw)


def encode_prompts(
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int]],
    length: int,
    *,
    context: int | None,
    raw: bool,
) -> list[list[int]]:
    """Return the token ids of each prompt; texts go through the chat template, if there is one.

    Raises ValueError unless `length` more tokens fit into the context after each prompt.
    """
    chat = getattr(tokenizer, "chat", None)
    # A tokenizer with `chat` but without `template` always has a chat format.
    if raw or getattr(tokenizer, "template", chat) is None:
        chat = None
    found = []
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str | Sequence):
            raise ValueError(f"prompts[{i}] must be text or token ids, not {type(prompt).__name__}")
        if not isinstance(prompt, str):
            ids = list(prompt)
        else:
            ids = (
                chat([{"role": "user", "content": prompt}])
                if chat and prompt
                else tokenizer.encode(prompt)
            )
        if not ids:
            raise ValueError(f"prompts[{i}] is empty")
        if context is not None and len(ids) + length > context:
            raise ValueError(
                f"prompts[{i}] has {len(ids)} tokens: with length {length} that exceeds the "
                f"model's context of {context}"
            )
        found.append(ids)
    return found


def encode_templates(
    tokenizer: Any, info: ModelInfo, templates: Sequence[Template] | None, prompts: int
) -> "list[Form | None]":
    """Return the token ids of each prompt's template; None without templates."""
    if templates is None:
        return [None] * prompts
    forms: list[Form | None] = [
        encode_template(tokenizer, info, i, template) for i, template in enumerate(templates)
    ]
    if len(forms) != prompts:
        raise ValueError(
            f"templates must be one per prompt: got {len(forms)} for {prompts} prompts"
        )
    return forms


def encode_template(tokenizer: Any, info: ModelInfo, i: int, template: Template) -> Form:
    """Return the token ids of a template, with None for each token to be written."""
    if isinstance(template, str) or not isinstance(template, Sequence):
        raise ValueError(
            f"templates[{i}] must be a list of texts and hole sizes, not {template!r:.80}"
        )
    form: list[int | None] = []
    for part in template:
        if isinstance(part, str):
            form += tokenizer.encode(part)
        else:
            form += [None] * whole(f"templates[{i}]: a hole", part)
    if None not in form:
        raise ValueError(
            f"templates[{i}] has no hole: give the number of tokens to write as an integer, "
            'as in ["x = ", 8]'
        )
    if info.mask_id is not None and info.mask_id in form:
        raise ValueError(f"templates[{i}] contains the mask token")
    return form


def split_form(
    form: Form, tokens: Sequence[int], end_ids: Collection[int]
) -> list[tuple[bool, list[int]]]:
    """Split a sample into (is_hole, tokens) parts, in order; a hole is cut at its end token."""
    parts = []
    for is_hole, group in groupby(range(len(form)), lambda i: form[i] is None):
        part = [tokens[i] for i in group]
        parts.append((is_hole, part[: text_length(part, end_ids)] if is_hole else part))
    return parts


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


def check_vote(by: str | Mapping[str, Any] | Way, read: str | Read | None) -> Read | None:
    """Return the function that reads answers; raise ValueError for an unknown vote or task."""
    WAYS.build(by)
    if not isinstance(read, str):
        return read
    name, _, protocol = read.partition(":")
    reader = find_task(name).under(protocol or None).read
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

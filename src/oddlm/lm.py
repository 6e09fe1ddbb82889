"""A model and a tokenizer make an LM: text in, samples out.

The one door for evaluation, sweeps and the server.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
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
from .models.adapters.transformers import Wrapped
from .models.wrappers import ClassifierFree, MicroBatch
from .params import SampleParams, SampleSettings
from .progress import step_progress
from .sampler import answer, begin, choose_backend
from .selection import SELECTORS, keep
from .text import text_length

Template = Sequence[str | int]  # texts, and holes of so many tokens
Verify = Callable[[Sample], bool]
MAX_BATCH = 256
SMALL_VOCABULARY = 1 << 15  # up to here, what a batch explored is remembered exactly


class Samples(list[Sample]):
    """The samples of one prompt, in order."""

    took: int | None = (
        None  # with `until`: how many samples it took to have one accepted; None if none was
    )


@dataclass(frozen=True)
class LM:
    """`oddlm.load("toy").generate("t5 t6", n=16, length=24)`."""

    model: Model
    tokenizer: Tokenizer
    raw: bool = False  # prompts as they are, even where the tokenizer has a chat template
    max_batch: int | None = None  # samples that the network sees at a time; None: MAX_BATCH

    @property
    def info(self) -> ModelInfo:
        """What is known about the model."""
        return info_of(self.model)

    def backend(self, params: SampleParams) -> Backend:
        """Who computes a run with these parameters: chosen once per run, by device, dtype, guide
        and filters.
        """
        info = info_of(with_cfg(self.model, params))
        return choose_backend(info, Settings(**run_options(params, info, 1, 0)), repulsion(params))

    def __repr__(self) -> str:
        info = self.info
        told = [repr(info.name), str(info.device)]
        told += [] if info.dtype is None else [short_dtype(str(info.dtype).removeprefix("torch."))]
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
        templates: Sequence[Template] | None = None,
        **settings: Unpack[SampleSettings],
    ) -> list[Samples]:
        """n samples for every prompt; `settings` are the fields of SampleParams.

        prompts: texts, or the token ids of each (a chat template's, for instance).
        params: settings of which `settings` change some; alpha=0 is plain sampling, without an
        automatic fork too.
        seeds: one per prompt, in place of params.seed, from which each prompt derives its own.
        params.pool: so many samples are drawn, and n of them kept, in the order in which
        params.selector chose them.
        until: called with each new sample, in order, until it accepts one; prompts without an
        accepted sample get n more, which avoid what the earlier ones explored, until they have
        `max_samples`. A prompt's `took` says how many it needed.
        max_batch: samples that the network sees at a time; it changes nothing but time and memory.
        None: what the LM says.
        templates: a form for each prompt, texts and holes of so many tokens: ["def f(x):\\n", 16,
        "\\n    return y"]. What is given is never pushed apart and is not part of the answer; the
        length of a sample is that of its template.
        """
        params = (
            checked(SampleParams, settings) if params is None else params.with_settings(settings)
        )
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        if templates is None:
            forms: list[Form | None] = [None] * len(texts)
        else:
            forms = [
                encode_template(self.tokenizer, self.info, i, template)
                for i, template in enumerate(templates)
            ]
            if len(forms) != len(texts):
                raise ValueError(
                    f"templates must be one per prompt: got {len(forms)} for {len(texts)} prompts"
                )
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
            _check_rounds(params, n, max_samples)
        rounds = _Rounds(self, params, max_batch, until is not None, observe, progress)
        results = [Samples() for _ in ids]
        given = params.seed if seeds is None else seeds
        seeds = noise.seed_tensor(given, len(ids), torch.device("cpu")).tolist()
        together = max(1, max_batch // drawn)
        for some in _batches(forms, together):
            try:
                _fill(
                    results, list(some), ids, seeds, forms, rounds.draw, drawn, until, max_samples
                )
                for i in some if params.pool is not None else ():
                    results[i][:] = keep(results[i], n, params.selector)
            except BaseException as error:  # Ctrl-C too
                if any(results):
                    error.samples = results  # type: ignore[attr-defined]
                    error.add_note(
                        "the samples generated until then are in this exception's .samples"
                    )
                raise
        return results

    def sample(self, prompt: str | Sequence[int], n: int = 16, **options: Any) -> Samples:
        """n samples of one prompt, a text or token ids; `options` are those of `generate`."""
        (samples,) = self.generate([prompt], n, **options)
        return samples


class Drawing:
    """Samples of some prompts on their way: a run, and what becomes of it. Whoever has a network
    answers its queries:

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
        given = [form for form in forms if form is not None]
        if given:
            holes = max(sum(token is None for token in form) for form in given)
            steps = params.steps or (holes if params.block_length is None else len(given[0]))
            params = params.model_copy(
                update={"length": len(given[0]), "steps": steps, "stop_at_end": False}
            )
        info = info_of(with_cfg(lm.model, params))
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
        """Take a step with the answer to the query; what the step did."""
        self.state, event = advance(self.state, logits, query=query)
        base, pushed = event.logprobs
        self._base, self._pushed = self._base + base, self._pushed + pushed
        if (taken := event.decision.remask) is not None:
            self._base, self._pushed = (
                x.masked_fill(taken, 0.0) for x in (self._base, self._pushed)
            )
        return event

    @property
    def history(self) -> History:
        return self.state.result.history

    def samples(self) -> list[Samples]:
        """The samples of each prompt."""
        done = self.state.result.to("cpu")  # once, not once a sample
        columns = (done.tokens, done.commit_step, self._base.cpu(), self._pushed.cpu())
        rows = list(zip(*(x.tolist() for x in columns), done.evaluations.tolist(), strict=True))
        first = done.history.samples - done.n
        groups = [rows[g * done.n : (g + 1) * done.n] for g in range(len(done.seeds))]
        return [
            Samples(self._sample(g, seed, first + i, *row) for i, row in enumerate(group))
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
    """How `LM.generate` draws: one batch after another, each by its own network."""

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
        """n more samples for each of the prompts."""
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
        model = (
            MicroBatch(self.lm.model, self.max_batch)
            if n * len(prompts) > self.max_batch
            else self.lm.model
        )
        model = with_cfg(model, self.params)
        observers = (self.observe,) if callable(self.observe) else tuple(self.observe or ())
        with step_progress(self.progress) as tick:
            for event in answer(model, drawing):
                for observer in (*observers, tick):
                    observer(event)
                del (
                    event
                )  # it holds arrays as large as the logits, and the next pass needs their room
        return drawing.samples(), drawing.history


def with_cfg(model: Model, params: SampleParams) -> Model:
    """The model with classifier-free guidance, where the parameters ask for it."""
    return ClassifierFree(model, params.cfg_scale) if params.cfg_scale else model


def load(name: str, *, raw: bool = False, max_batch: int | None = None, **options: Any) -> LM:
    """An LM by the name of its model: `mini`, a checkpoint's folder or its name on the hub
    (`GSAI-ML/LLaDA-8B-Instruct`), or the dotted path of a class or function that gives a model with
    a tokenizer.

    raw: give prompts to the network as they are; by default they go through the model's chat
    template, if it has one (mini's is the line break at their end).
    max_batch: samples that the network sees at a time. options: the model's own; checkpoints take
    revision, device, dtype, quantize, device_map, mask_id, cache, refresh, compiled,
    local_files_only and cache_dir.
    """
    _check_max_batch(max_batch)
    model = load_model(name, **options)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError(
            f"model {name!r} has no tokenizer: make the LM yourself, oddlm.LM(model, tokenizer)"
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
    """An LM around a masked diffusion model that you have loaded with transformers, and its
    tokenizer.

    mask_id: default the tokenizer's mask token. shift: position j is predicted by the output of
    position j - 1. A few short canvases show whether it hears both ways. One that is causal over
    blocks (of up to 128 tokens) is told in a warning, with the `block_length` to generate with.
    """
    _check_max_batch(max_batch)
    wrapped = Wrapped(model, tokenizer, mask_id=mask_id, shift=shift)
    return LM(wrapped, wrapped.tokenizer, raw, max_batch)


def _check_max_batch(max_batch: int | None) -> None:
    if max_batch is not None:
        whole("max_batch", max_batch)


def check_prompts(
    name: str, texts: Sequence[str], length: int, *, raw: bool = False, **options: Any
) -> None:
    """ValueError for prompts that a checkpoint cannot take, before its weights are read or
    downloaded.
    """
    known = outline_model(name, **options)
    if known is not None:
        encode_prompts(known.tokenizer, texts, length, context=known.context, raw=raw)


def encode_prompts(
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int]],
    length: int,
    *,
    context: int | None,
    raw: bool,
) -> list[list[int]]:
    """Token ids of the prompts, texts through the chat template where there is one; `length` more
    must fit behind each.
    """
    chat = getattr(tokenizer, "chat", None)
    if (
        raw or getattr(tokenizer, "template", chat) is None
    ):  # one with the method and nothing beside it has one form
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
                f"prompts[{i}] has {len(ids)} tokens; with {length} to write the model's {context} are too few"
            )
        found.append(ids)
    return found


def encode_template(tokenizer: Any, info: ModelInfo, i: int, template: Template) -> Form:
    """Token ids, and None where one is to be written."""
    if isinstance(template, str) or not isinstance(template, Sequence):
        raise ValueError(
            f"templates[{i}] must be a list of texts and numbers of tokens, not {template!r:.80}"
        )
    form: list[int | None] = []
    for part in template:
        if isinstance(part, str):
            form += tokenizer.encode(part)
        else:
            form += [None] * whole(f"templates[{i}]: a hole", part)
    if None not in form:
        raise ValueError(
            f'templates[{i}] has no hole: say how many tokens are to be written, as in ["x = ", 8]'
        )
    if info.mask_id in form:
        raise ValueError(f"templates[{i}] holds the text of the mask token")
    return form


def split_form(
    form: Form, tokens: Sequence[int], end_ids: Collection[int]
) -> list[tuple[bool, list[int]]]:
    """The holes and the given parts of a sample in order, each hole up to its end token."""
    parts = []
    for is_hole, group in groupby(range(len(form)), lambda i: form[i] is None):
        part = [tokens[i] for i in group]
        parts.append((is_hole, part[: text_length(part, end_ids)] if is_hole else part))
    return parts


def _batches(forms: "Sequence[Form | None]", together: int) -> Iterator[range]:
    """Prompts that are drawn together: neighbours whose samples are as long."""
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
    """The settings of a run (`core.settings.Settings`) that the parameters describe, as keyword
    arguments.
    """
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
    """The guide that the parameters describe; None for plain sampling."""
    guide = Repulsion(
        objective=params.objective,
        feature=params.feature,
        alpha=params.alpha,
        alpha_schedule=params.alpha_schedule,
        duplicates=params.duplicates,
        tolerance=params.tolerance,
        gradient=params.gradient,
        arithmetic=params.arithmetic,
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
        raise ValueError(
            "until looks at samples as they come, a pool is chosen from at the end: give one of them"
        )
    if max_samples < n:
        raise ValueError(f"max_samples must be at least n: {max_samples} < {n}")
    if getattr(POLICIES.build(params.policy), "parallel", False):
        raise ValueError(
            f"policy {params.policy!r} is parallel, so there is no history for `until` to go on from"
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
    """Draw for the prompts `open_`, in rounds of n, until each has a sample that `until` accepts or
    all it may have.
    """
    history = None
    while open_:
        size = (
            n if until is None else min(n, max_samples - len(results[open_[0]]))
        )  # all that are open have as many
        groups, history = draw(*([x[i] for i in open_] for x in (ids, seeds, forms)), history, size)
        for i, group in zip(open_, groups, strict=True):
            group[:] = [replace(sample, prompt=i) for sample in group]
            results[i].extend(group)
        if until is None:
            return
        for i, group in zip(open_, groups, strict=True):
            results[i].took = next((s.index + 1 for s in group if until(s)), None)
        keep = [
            g
            for g, i in enumerate(open_)
            if results[i].took is None and len(results[i]) < max_samples
        ]
        open_ = [open_[g] for g in keep]
        history = history.take(keep)

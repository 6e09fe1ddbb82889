"""The sampling loop at the token level: `begin` a run, `denoise` it to the end or step by step."""

import logging
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Required, TypedDict, Unpack

import torch
from torch import Tensor

from .core.alarm import memory_advice
from .core.begin import begin as begin_run
from .core.canvas import Prompt, Template
from .core.guide import Guide, as_guide
from .core.model import Model, ModelInfo, Query, info_of, open_session
from .core.run import advance
from .core.settings import Settings
from .core.state import State
from .core.step import Denoised, History, Observer, Policy, StepEvent
from .kernels import dispatch
from .progress import step_progress

LOG = logging.getLogger("oddlm")


class Options(TypedDict, total=False):
    """The keyword arguments of a run: the fields of `Settings`, guide, history and templates."""

    n: Required[int]
    length: Required[int]
    steps: Required[int]
    temperature: float
    policy: str | Mapping[str, Any] | Policy
    confidence: str | None
    seed: int | Sequence[int]
    block_length: int | None
    top_k: int | None
    top_p: float | None
    suppress: Collection[int]
    suppress_confidence: Collection[int]
    order_temperature: float
    fork: bool
    fork_temperature: float
    prompt_noise: float
    stop_at_end: bool
    guide: Any  # a Guide, or a function (logits, Step) -> logits
    history: History | None
    templates: Sequence[Template] | None


def begin(model: Model | ModelInfo, prompts: Sequence[Prompt], **options: Unpack[Options]) -> State:
    """Begin a run and return its first state, for `advance`.

    The backend is chosen here, once for the whole run; it is in `state.backend`.

    Args:
        model: The model that will answer the queries, or its `ModelInfo`.
        prompts: Token ids of each prompt.
        **options: `n`, `length` and `steps` are required. `guide` maps logits to logits at every
            step, for instance `oddlm.Repulsion(alpha=16)`; without one, sampling is plain.
            `history` continues from an earlier batch (`Denoised.history`) with n more samples per
            prompt. `templates` gives `length` tokens per prompt, with None for each token to be
            written. `temperature`, `policy`, `confidence`, `seed` (one, or one per prompt),
            `block_length`, `top_k`, `top_p`, `order_temperature`, `fork`, `fork_temperature`,
            `prompt_noise` and `stop_at_end` are those of `SampleParams`. The ids in `suppress` are
            never written; those in `suppress_confidence` are committed late.

    Raises:
        ValueError: Arguments that are invalid or do not fit each other or the model.
    """
    info = model if isinstance(model, ModelInfo) else info_of(model)
    guide = as_guide(options.pop("guide", None))
    aside = {"history": options.pop("history", None), "templates": options.pop("templates", None)}
    settings = Settings(**options)  # type: ignore[misc]
    backend = choose_backend(info, settings, guide)
    LOG.debug("%s on %s: %s", info.name, info.device, backend)
    return begin_run(prompts, settings, info, backend=backend, guide=guide, **aside)  # type: ignore[arg-type]


def choose_backend(info: ModelInfo, settings: Settings, guide: Guide | None) -> dispatch.Backend:
    """Choose the backend of a run by device, dtype, guide and filters."""
    forms = () if guide is None else guide.forms
    if settings.edits:  # the fused kernels neither push nor draw beside tokens that are read again
        forms = [form for form in forms if form != "triton"]
    return dispatch.choose(
        info.device,
        info.dtype,
        asked="auto" if guide is None else guide.backend,  # type: ignore[arg-type]
        forms=forms,  # type: ignore[arg-type]
        filtered=settings.filtered(info) or settings.edits,
    )


def denoise(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    observe: Observer | Sequence[Observer] | None = None,
    progress: bool | None = None,
    **options: Unpack[Options],
) -> Denoised:
    """Draw n samples of `length` tokens for every prompt, in `steps` network evaluations.

    Args:
        model: The model, any callable as `oddlm.Model` describes it.
        prompts: Token ids of each prompt.
        observe: Called with a `StepEvent` after every step; one function or several.
        progress: Draw a progress bar on stderr; by default only on a terminal and for runs that
            take longer than a moment.
        **options: Those of `begin`.
    """
    observers = (observe,) if callable(observe) else tuple(observe or ())
    run = _Run(begin(model, prompts, **options))
    with step_progress(progress) as tick:
        for event in answer(model, run):
            for observer in (*observers, tick):
                observer(event)
            # An event holds arrays as large as the logits: free them before the next pass.
            del event
    return run.state.result


def denoise_steps(
    model: Model, prompts: Sequence[Prompt], **options: Unpack[Options]
) -> Generator[StepEvent, None, Denoised]:
    """Run `denoise` one step per `next()`, so that the caller can stop after any step.

    Arguments are checked immediately. The generator yields a `StepEvent` per step and returns the
    `Denoised` batch.

    Args:
        model: The model, any callable as `oddlm.Model` describes it.
        prompts: Token ids of each prompt.
        **options: Those of `begin`.
    """
    return _steps(model, _Run(begin(model, prompts, **options)))


def _steps(model: Model, run: "_Run") -> Generator[StepEvent, None, Denoised]:
    yield from answer(model, run)
    return run.state.result


class RunLike(Protocol):
    """A run, or an object around one, that asks queries and advances with their answers."""

    @property
    def query(self) -> Query | None: ...

    def advance(self, logits: Tensor, query: Query) -> StepEvent: ...


@dataclass
class _Run:
    state: State

    @property
    def query(self) -> Query | None:
        return self.state.query

    def advance(self, logits: Tensor, query: Query) -> StepEvent:
        self.state, event = advance(self.state, logits, query=query)
        return event


def answer(model: Model, run: RunLike) -> Iterator[StepEvent]:
    """Answer all queries of a run with a model, and yield the event of each step."""
    info, session = info_of(model), None
    while (query := run.query) is not None:
        B, T = query.tokens.shape
        with torch.no_grad(), memory_advice(info, B, T - query.start, T):
            session = open_session(model, query) if session is None else session
            event = run.advance(session(query), query)
        yield event
        # An event holds arrays as large as the logits: free them before the next pass.
        del event

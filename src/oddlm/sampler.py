"""`begin` for everybody, and the shortest loops over it: a model in, tokens out."""

import logging
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Required, TypedDict, Unpack

import torch
from torch import Tensor

from .core.alarm import memory_advice
from .core.canvas import Prompt, Template
from .core.guide import Guide, as_guide
from .core.model import Model, ModelInfo, Query, info_of, open_session
from .core.run import State, advance
from .core.run import begin as begin_run
from .core.settings import Settings
from .core.step import Denoised, History, Observer, Policy, StepEvent
from .kernels import dispatch
from .progress import step_progress

LOG = logging.getLogger("oddlm")


class Options(TypedDict, total=False):
    """The fields of `Settings`, and what else a run is made of, as keyword arguments."""

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
    """A run at its start, for `advance`. model: the one that will answer, or what is to be known
    about it.

    options: the fields of `Settings`; guide (logits -> logits at every step, for instance
    `oddlm.Repulsion(alpha=16)`; default: none, plain sampling), history and templates as in
    `core.run.begin`. The backend is chosen here; `state.backend` says which.
    """
    info = model if isinstance(model, ModelInfo) else info_of(model)
    guide = as_guide(options.pop("guide", None))
    aside = {"history": options.pop("history", None), "templates": options.pop("templates", None)}
    settings = Settings(**options)  # type: ignore[misc]
    backend = choose_backend(info, settings, guide)
    LOG.debug("%s on %s: %s", info.name, info.device, backend)
    return begin_run(prompts, settings, info, backend=backend, guide=guide, **aside)  # type: ignore[arg-type]


def choose_backend(info: ModelInfo, settings: Settings, guide: Guide | None) -> dispatch.Backend:
    """Who computes a run."""
    return dispatch.choose(
        info.device,
        info.dtype,
        asked="auto" if guide is None else guide.backend,  # type: ignore[arg-type]
        forms=() if guide is None else guide.forms,  # type: ignore[arg-type]
        filtered=settings.filtered(info),
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

    The options are those of `begin`. Observers are called with a StepEvent after every
    step. `progress` draws a bar on stderr (None: where that is a terminal and the run takes longer
    than a moment).
    """
    observers = (observe,) if callable(observe) else tuple(observe or ())
    run = _Run(begin(model, prompts, **options))
    with step_progress(progress) as tick:
        for event in answer(model, run):
            for observer in (*observers, tick):
                observer(event)
            del event  # it holds arrays as large as the logits, and the next pass needs their room
    return run.state.result


def denoise_steps(
    model: Model, prompts: Sequence[Prompt], **options: Unpack[Options]
) -> Generator[StepEvent, None, Denoised]:
    """`denoise`, one step per `next()`, so that a caller can stop between two.

    Arguments are checked at once.
    """
    return _steps(model, _Run(begin(model, prompts, **options)))


def _steps(model: Model, run: "_Run") -> Generator[StepEvent, None, Denoised]:
    yield from answer(model, run)
    return run.state.result


class Asking(Protocol):
    """A run, or what is made of one."""

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


def answer(model: Model, run: Asking) -> Iterator[StepEvent]:
    """Answer all queries of a run with a model."""
    info, session = info_of(model), None
    while (query := run.query) is not None:
        B, T = query.tokens.shape
        with torch.no_grad(), memory_advice(info, B, T - query.start, T):
            session = open_session(model, query) if session is None else session
            event = run.advance(session(query), query)
        yield event
        del event  # it holds arrays as large as the logits, and the next pass needs their room

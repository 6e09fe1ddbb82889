"""What a run asks of a network, and what it has to know about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .blocks import Align, Blocks

CPU = torch.device("cpu")
Kind = Literal["absorbing", "uniform"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a run has to know about a network.

    The first three are enough; everything else has a default.
    """

    vocab_size: int
    mask_id: int | None  # None: a uniform model, which has no MASK
    end_ids: tuple[int, ...] = ()  # EOS, EOT, PAD: a text ends before the first of them
    protected_ids: tuple[int, ...] | None = (
        None  # what no guide pushes and no fork starts from; None: end_ids
    )
    name: str = "a model"  # a history knows a model by its name and digest
    digest: str | None = None  # of the weights
    context: int | None = None  # the most positions it can see
    device: torch.device = CPU  # where the canvas lives and logits come out
    dtype: torch.dtype | None = None  # of the logits; None: not known before they come
    embedding: Tensor | None = None  # [V, H]: for features in embedding space, and for prompt noise
    process: Kind = "absorbing"  # what it was trained on: masks, or random tokens
    confidence: Literal["full", "sampled"] = "full"  # what its authors take confidence from
    block_length: int | None = None  # it is causal over blocks of so many tokens
    align: Align = "answer"  # where those blocks are counted from
    nudges: bool = False  # a query may carry a nudge of the prompt's embeddings
    selective: bool = False  # a query may ask for some positions alone
    passes: int = 1  # network evaluations per query
    max_batch: int | None = None  # samples that the network sees at a time
    position_bytes: int | None = (
        None  # what it holds of each position of a sample, about, beside its weights
    )

    @property
    def identity(self) -> str:
        """What tells it from other models."""
        return self.name if self.digest is None else f"{self.name} [{self.digest}]"

    @property
    def protected(self) -> tuple[int, ...]:
        return self.end_ids if self.protected_ids is None else self.protected_ids


class Model(Protocol):
    """Any callable that predicts tokens; logits[:, j] predicts tokens[:, start + j].

    Prompts are left-padded to `start`: the first start - prompt_lengths[b] positions of row b are
    padding. The model masks them out and counts positions from the first real token. A model that
    has more to say than these three attributes has an `info`, a `ModelInfo`, which then is all that
    is read. One that keeps something between the steps of a run has a method `session(query)`,
    which returns a `Session`; so has one whose info is `selective`. Where info.nudges is true,
    calls take a keyword `nudge` [B, start, H], which is added to the embeddings of the prompt.
    """

    @property
    def mask_id(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def end_ids(self) -> Sequence[int]: ...

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Query:
    """What a run wants to know: the logits of `positions`, [R, m, V], or of everything from `start`
    on.

    Only positions that are masked are read; tokens are chosen only where a block is open.
    """

    run: str  # the run that asks
    number: int  # which of its queries this is, from 0
    tokens: Tensor  # [R, T]: left-padded prompts, then the answers as they stand
    start: int
    prompt_lengths: Tensor  # [R]
    samples: Tensor | None  # [R]: which samples of the run these are; None: all
    positions: (
        Tensor | None
    )  # [R, m]: counted from `start`, ascending where they are masked; None: all
    nudge: Tensor | None  # [R, start, H]: what to add to the embeddings of the prompt
    blocks: Blocks  # of these samples

    def take(self, some: slice) -> "Query":
        """The same question about some of the samples."""
        cut = {
            name: None if (x := getattr(self, name)) is None else x[some]
            for name in ("tokens", "prompt_lengths", "samples", "positions", "nudge")
        }
        return Query(self.run, self.number, start=self.start, blocks=self.blocks[some], **cut)  # type: ignore[arg-type]


class Session(Protocol):
    """A network for one run: it answers the run's queries, in order, and may keep what it likes
    between them.

    What it says of a sample does not depend on the samples beside it, but for rounding.
    """

    def __call__(self, query: Query) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class PlainSession:
    """A model that keeps nothing."""

    model: Callable[..., Tensor]

    def __call__(self, query: Query) -> Tensor:
        aside = {} if query.nudge is None else {"nudge": query.nudge}
        return self.model(query.tokens, query.start, query.prompt_lengths, **aside)


def open_session(model: Any, query: Query) -> Session:
    """The model for the run that asks this, its first query: `model.session(query)`, or the model
    itself.
    """
    own: Callable[[Query], Session] | None = getattr(model, "session", None)
    return PlainSession(model) if own is None else own(query)


def info_of(model: Any, name: str = "the model") -> ModelInfo:
    """What a model says of itself; ValueError that names what it lacks."""
    info = getattr(model, "info", None)
    if isinstance(info, ModelInfo):
        return info
    if missing := [
        part
        for part in ("mask_id", "vocab_size", "end_ids", "__call__")
        if not hasattr(model, part)
    ]:
        raise ValueError(
            f"{name} is a {type(model).__name__} without {', '.join(missing)}: a model is called as model(tokens, start, "
            "prompt_lengths), gives logits, and has mask_id, vocab_size and end_ids, or an info (see oddlm.Model)"
        )
    unnamed = (
        f"{type(model).__name__} object {id(model):#x}"  # a model without a name is like no other
    )
    return ModelInfo(model.vocab_size, model.mask_id, tuple(model.end_ids), name=unnamed)

"""The interface between a run and a network: `ModelInfo`, `Model`, `Query` and `Session`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .blocks import Align, Blocks

CPU = torch.device("cpu")
Kind = Literal["absorbing", "uniform"]


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a uniform model revises a block as a whole before it writes it (`core.drafts`).

    A block is finished when the likeliest tokens of its positions stay the same while their
    entropy is low, or with its last step.
    """

    stable: int = 1  # steps for which the likeliest tokens must have been the same
    certain: float = 0.005  # the mean entropy in nats must be lower, after temperature and filters
    cooling: float = 1.0  # the share of its setting that temperature falls to in a block
    echo: torch.dtype | None = None
    """Of the logits of the last step, if the network takes them back (self-conditioning)."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a run needs to know about a network.

    `vocab_size`, `mask_id` and `end_ids` are enough; everything else has a default.
    """

    vocab_size: int
    mask_id: int | None  # None for a uniform model, which has no MASK
    end_ids: tuple[int, ...] = ()  # EOS, EOT, PAD: a text ends before the first of them
    protected_ids: tuple[int, ...] | None = None
    """Ids that no guide pushes and no fork starts from; None means `end_ids`."""
    name: str = "a model"  # a history identifies a model by its name and digest
    digest: str | None = None  # of the weights
    context: int | None = None  # the most positions it can see
    device: torch.device = CPU  # of the canvas and of the logits
    dtype: torch.dtype | None = None  # of the logits; None if not known in advance
    embedding: Tensor | None = None  # [V, H]: for features in embedding space, and for prompt noise
    process: Kind = "absorbing"  # trained on masks (absorbing) or on random tokens (uniform)
    confidence: Literal["full", "sampled"] = "full"  # the distribution its authors read it from
    drafting: Drafting | None = None  # of a uniform model that revises a block before writing it
    block_length: int | None = None  # block size of a block-causal model
    align: Align = "answer"  # whether its blocks are counted from the prompt or from the answer
    causal_context: bool = False  # it reads finished blocks causally: blocks may begin anywhere
    blind: bool = False  # its logits after the open block are not those of the present canvas
    nudges: bool = False  # whether a query may add a nudge to the prompt's embeddings
    selective: bool = False  # whether a query may ask for some of the positions only
    passes: int = 1  # network evaluations per query
    max_batch: int | None = None  # samples per network call
    position_bytes: int | None = None
    """Approximate memory per position of a sample, besides the weights."""

    @property
    def default_block_length(self) -> int | None:
        """The block length of a run that asks for none; None is one block."""
        fixed = self.align == "absolute" or self.causal_context or self.drafting is not None
        return self.block_length if fixed else None

    @property
    def open_only(self) -> bool:
        """Whether only the logits of the open block mean something, to guides, too."""
        return self.blind or self.block_length is not None

    @property
    def identity(self) -> str:
        """Name and digest, which distinguish it from other models."""
        return self.name if self.digest is None else f"{self.name} [{self.digest}]"

    @property
    def protected(self) -> tuple[int, ...]:
        """Ids that no guide pushes and no fork starts from."""
        return self.end_ids if self.protected_ids is None else self.protected_ids


class Model(Protocol):
    """Any callable that predicts tokens; logits[:, j] predicts tokens[:, start + j].

    Prompts are left-padded to `start`: the first start - prompt_lengths[b] positions of row b are
    padding. The model masks them out and counts positions from the first real token.

    A model may have an attribute `info`, a `ModelInfo`, which replaces the three attributes below.
    A model that keeps something between the steps of a run, or whose info is `selective`, has a
    method `session(query)` that returns a `Session`. If `info.nudges` is true, calls take a keyword
    `nudge` [B, start, H] that is added to the embeddings of the prompt.
    """

    @property
    def mask_id(self) -> int | None:
        """Id of the MASK token; None for a uniform model."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, V."""

    @property
    def end_ids(self) -> Sequence[int]:
        """Ids that end a text: EOS, EOT, PAD."""

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        """Return the logits [B, T - start, V] of tokens [B, T]."""


@dataclass(frozen=True, slots=True)
class Query:
    """A run's request for logits.

    The answer is [R, m, V] for the m `positions`, or [R, T - start, V] if they are None. Only the
    logits of masked positions are read (of a model whose info is `open_only`, those of the open
    block), and tokens are chosen only in the open block.
    """

    run: str  # id of the run
    number: int  # counts the run's queries from 0
    tokens: Tensor  # [R, T]: left-padded prompts, then the answers so far
    start: int  # index of the first answer position
    prompt_lengths: Tensor  # [R]
    samples: Tensor | None  # [R]: indices of these samples in the run; None means all
    positions: Tensor | None
    """[R, m]: counted from `start`, ascending as far as they are masked; None means all."""
    nudge: Tensor | None  # [R, start, H]: to be added to the embeddings of the prompt
    blocks: Blocks  # of these samples
    low: int | None = None
    """First position of the open block, counted from `start`, if it is the same for all samples and
    known without asking the device."""
    echo: Tensor | None = None
    """[R, block_length, V]: the logits that the last step drew from in the open block, pushed,
    filtered and divided by the temperature; None at its first step. Only for models whose
    `info.drafting` asks for it; undefined at positions that were not open."""

    def take(self, some: slice) -> "Query":
        """Return the same query for some of the samples."""
        cut = {
            name: None if (x := getattr(self, name)) is None else x[some]
            for name in ("tokens", "prompt_lengths", "samples", "positions", "nudge", "echo")
        }
        return replace(self, blocks=self.blocks[some], **cut)  # type: ignore[arg-type]


class Session(Protocol):
    """A network during one run: it answers the run's queries in order and may keep a cache.

    Apart from rounding, the logits of a sample must not depend on the other samples of the batch.
    """

    def __call__(self, query: Query) -> Tensor:
        """Return the logits that the query asks for."""


@dataclass(frozen=True, slots=True)
class PlainSession:
    """The session of a model that keeps nothing between queries."""

    model: Callable[..., Tensor]

    def __call__(self, query: Query) -> Tensor:
        extra = {} if query.nudge is None else {"nudge": query.nudge}
        return self.model(query.tokens, query.start, query.prompt_lengths, **extra)


def open_session(model: Any, query: Query) -> Session:
    """Open the session of a run: `model.session(query)`, or the model itself if it has none.

    Args:
        model: The model.
        query: The first query of the run.
    """
    own: Callable[[Query], Session] | None = getattr(model, "session", None)
    return PlainSession(model) if own is None else own(query)


def info_of(model: Any, name: str = "the model") -> ModelInfo:
    """Return `model.info`, or build it from the model's attributes.

    Raises ValueError naming the attributes that the model lacks.
    """
    info = getattr(model, "info", None)
    if isinstance(info, ModelInfo):
        return info
    if missing := [
        part
        for part in ("mask_id", "vocab_size", "end_ids", "__call__")
        if not hasattr(model, part)
    ]:
        raise ValueError(
            f"{name} is a {type(model).__name__} without {', '.join(missing)}: "
            "a model is called as model(tokens, start, prompt_lengths), returns logits, "
            "and has mask_id, vocab_size and end_ids, or an info (see oddlm.Model)"
        )
    unnamed = f"{type(model).__name__} object {id(model):#x}"  # equal to no other model
    return ModelInfo(model.vocab_size, model.mask_id, tuple(model.end_ids), name=unnamed)

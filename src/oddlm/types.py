"""The shapes that the rooms of the house pass to each other.

B = groups x n rows (the samples of one prompt are neighbours), L generated positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

LONGEST = 80  # characters of a text that a line has room for


class Model(Protocol):
    """Any callable that predicts tokens; logits[:, j] predicts tokens[:, start + j].

    Prompts are left-padded to `start`: the first start - prompt_lengths[b] positions of row b are padding. The model masks
    them out and counts positions from the first real token. A model may also have `protected_ids` (what no guide pushes and no
    fork starts from; default: `end_ids`), `device` (default: cpu), `embedding` [V, H] (for features in embedding space),
    `passes` (network evaluations per call, default 1), `context` (most positions it can see), `name` (by which a history knows
    it again: with other weights it needs another), `confidence` ("full" or "sampled": what its authors take confidence from,
    default "full"; see `denoise_steps`), `block_length` (where it is causal over blocks of so many tokens, which a run must not
    write across), `tokenizer` and `session` (see `open_session`). Where it has `nudges` and
    that is true, calls of the model and its sessions take a keyword `nudge` [B, start, H], added to the embeddings of the
    prompt, and `embedding` is the table of those.
    """

    @property
    def mask_id(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def end_ids(self) -> Sequence[int]:
        """EOS, EOT, PAD: a text ends before the first of them."""

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor: ...


def check_protocol(model: Any, name: str = "the model") -> None:
    """ValueError that names what it lacks of a `Model`."""
    if missing := [part for part in ("mask_id", "vocab_size", "end_ids", "__call__") if not hasattr(model, part)]:
        raise ValueError(
            f"{name} is a {type(model).__name__} without {', '.join(missing)}: a model is called as model(tokens, start, "
            "prompt_lengths), gives logits, and has mask_id, vocab_size and end_ids (see oddlm.Model)"
        )


def protected_ids(model: Model) -> tuple[int, ...]:
    """The tokens that no guide pushes: those the model names, or else those that end a text."""
    named: Sequence[int] | None = getattr(model, "protected_ids", None)
    return tuple(model.end_ids if named is None else named)


def called(model: Model) -> str:
    """What a model is called; one without a name is like no other."""
    return str(getattr(model, "name", f"{type(model).__name__} object {id(model):#x}"))


def identity(model: Model) -> str:
    """What tells a model from others: its name, and its weights where it knows what they are."""
    weights = getattr(model, "weights", None)
    return called(model) if weights is None else f"{called(model)} [{weights.identity}]"


Network = Callable[..., Tensor]  # (tokens, start, prompt_lengths) -> logits: a model, or a session of one


def open_session(model: Model, start: int, prompt_lengths: Tensor, length: int, block_length: int) -> Network:
    """The model for one run: `model.session(start, prompt_lengths, length, block_length)`, or itself if it offers none.

    A session is called like the model, with these prompts and the canvas as it stands. It may keep what it likes between
    calls. Only masked positions of what it returns are read, and tokens are chosen only in each row's first unfinished block.
    One that `is_selective` takes a keyword `positions` [B, m]: the masked positions counted from `start`, in ascending order,
    where every row has m of them; it then answers for these alone, [B, m, V].
    A model around a model that passes on all attributes must open sessions of its own, or it is passed by.
    """
    session: Callable[..., Network] | None = getattr(model, "session", None)
    return model if session is None else session(start, prompt_lengths, length, block_length)


def is_selective(network: Network) -> bool:
    """Can it answer for some positions alone? It says so by `selective`."""
    return bool(getattr(network, "selective", False))


@dataclass(frozen=True, slots=True)
class Step:
    """All that an extension may look at."""

    index: int
    total: int  # planned steps; parallel policies may end earlier
    tokens: Tensor  # [B, L] int64
    masked: Tensor  # [B, L] bool
    open: Tensor  # [B, L] bool: masked and inside the open block
    n: int
    first_sample: int  # how many samples of each group came before this batch
    seeds: Tensor  # [G] int64
    parallel: bool  # the policy may commit more than its quota
    protected: tuple[int, ...]
    embedding: Tensor | None
    never: tuple[int, ...] = ()  # ids that are never written: MASK, and what is suppressed

    @property
    def time_left(self) -> Tensor:
        """[B]: from 1 down. Steps left of a fixed schedule; the masked share of each row where the end is not known."""
        if self.parallel:
            return self.masked.double().mean(dim=1)
        return torch.full((len(self.tokens),), 1 - self.index / self.total, device=self.tokens.device, dtype=torch.float64)

    def address(self) -> tuple[Tensor, Tensor]:
        """(seeds, samples), each [B]: what a row's noise depends on besides step, purpose and position."""
        samples = torch.arange(self.n, device=self.seeds.device) + self.first_sample
        return self.seeds.repeat_interleave(self.n), samples.repeat(len(self.seeds))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the network would write at every open position; elsewhere the tokens as they are, and zeros."""

    tokens: Tensor  # [B, L] int64
    confidence: Tensor  # [B, L] float64: probability of the chosen token, in the full or the sampled distribution
    margin: Tensor | None = None  # [B, L] likeliest minus second likeliest
    entropy: Tensor | None = None  # [B, L] nats
    logits: Tensor | None = None  # [B, L, V] guided; None where a fused kernel never writes them
    logprobs: tuple[Tensor, Tensor] | None = None  # [B, L] base and guided, of the tokens; where a fused kernel knows them


@dataclass(frozen=True, slots=True)
class Choice:
    """A proposal for one step, with the probability of its tokens before and after guidance (0 where not open)."""

    tokens: Tensor  # [B, L]
    commit: Tensor  # [B, L] bool
    base_probability: Tensor  # [B, L]
    guided_probability: Tensor  # [B, L]


@dataclass(frozen=True, slots=True)
class Top:
    """The likeliest tokens of a position under the guided distribution, likeliest first."""

    tokens: Tensor  # [B, L, 5]
    base_probability: Tensor
    guided_probability: Tensor


class StepLogits(Protocol):
    """[B, L, V], suppressed: as the network gave them, and after the guide (the same object where there was none). Undefined
    at committed positions.
    """

    @property
    def base(self) -> Tensor: ...

    @property
    def guided(self) -> Tensor: ...


@dataclass(frozen=True)
class StepEvent:
    """What an observer sees after each step. The properties are computed when first read, and only then."""

    step: Step
    prediction: Prediction
    commit: Tensor  # [B, L] bool
    logits: StepLogits
    propose: Callable[[], tuple[Prediction, Tensor]] | None  # what plain sampling would do here; None: the same

    @property
    def base_logits(self) -> Tensor:
        """[B, L, V] suppressed, not guided; undefined at committed positions."""
        return self.logits.base

    @property
    def guided_logits(self) -> Tensor:
        return self.logits.guided

    @cached_property
    def logprobs(self) -> tuple[Tensor, Tensor]:
        """[B, L] float64, base and guided: log-probability of each token that this step commits, 0 elsewhere."""
        if self.prediction.logprobs is not None:
            base, guided = (x.where(self.commit, 0.0) for x in self.prediction.logprobs)
            return base, guided
        base = self._logprobs(self.base_logits)
        return base, base if self.guided_logits is self.base_logits else self._logprobs(self.guided_logits)

    @cached_property
    def chosen(self) -> Choice:
        return self._choice(self.prediction.tokens, self.commit)

    @cached_property
    def plain(self) -> Choice:
        """What plain sampling, without guide and fork, would have done here, with the same noise."""
        if self.propose is None:
            return self.chosen
        prediction, commit = self.propose()
        return self._choice(prediction.tokens, commit)

    @cached_property
    def top(self) -> Top:
        ranked = self._guided.sort(dim=-1, descending=True, stable=True)
        tokens = ranked.indices[..., :5]
        return Top(tokens, self._base.gather(-1, tokens), ranked.values[..., :5])

    @cached_property
    def entropy(self) -> Tensor:
        """[B, L] nats, of the guided distribution at open positions."""
        entropy: Tensor = torch.special.entr(self._guided).sum(dim=-1)
        return entropy

    @cached_property
    def force(self) -> Tensor:
        """[B, L]: Euclidean size of the push on a position's logits, over everything that is masked."""
        push: Tensor = (self.guided_logits - self.base_logits).nan_to_num(nan=0.0)  # -inf stays -inf: no push
        force: Tensor = push.double().norm(dim=-1)
        return force.where(self.step.masked, 0.0)

    @cached_property
    def _guided(self) -> Tensor:
        return self._probabilities(self.guided_logits)

    @cached_property
    def _base(self) -> Tensor:
        return self._probabilities(self.base_logits)

    def _probabilities(self, logits: Tensor) -> Tensor:
        return logits.double().softmax(dim=-1).where(self.step.open[..., None], 0.0)

    def _logprobs(self, logits: Tensor) -> Tensor:
        x = logits[self.commit].double()  # [C, V]
        token = self.prediction.tokens[self.commit]
        result = torch.zeros(self.commit.shape, dtype=torch.float64, device=logits.device)
        result[self.commit] = x.gather(1, token[:, None]).squeeze(1) - x.logsumexp(dim=1)
        return result

    def _choice(self, tokens: Tensor, commit: Tensor) -> Choice:
        base, guided = (p.gather(-1, tokens[..., None]).squeeze(-1) for p in (self._base, self._guided))
        return Choice(tokens, commit, base, guided)


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. The log-probabilities are those of each token at the step that wrote it, at temperature 1 and without
    filters: under the network (base) and after guidance (guided).
    """

    prompt: int  # which prompt it answers
    index: int  # which of its samples it is
    text: str
    tokens: tuple[int, ...]  # all `length` of them
    commit_steps: tuple[int, ...]
    base_logprobs: tuple[float, ...]
    guided_logprobs: tuple[float, ...]
    seed: int  # of the prompt: the same seed and index give the same sample
    finish_reason: Literal["stop", "length"]  # an end token was written, or not
    nfe: int  # network evaluations of its own; what a pool cost beside it is not in it

    def __repr__(self) -> str:
        text = repr(self.text)
        return f"Sample({self.index}, {text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}, {self.finish_reason})"


@dataclass(frozen=True, slots=True)
class History:
    """What earlier samples of the same prompts have done, for a batch that goes on from there."""

    samples: int  # per prompt
    made_with: Mapping[str, Any]  # what a continuation must share
    memory: "Memory | None"  # what the guide remembers; None where it does not

    def take(self, groups: Sequence[int]) -> "History":
        """The history of some of the prompts."""
        chosen = {key: [self.made_with[key][g] for g in groups] for key in ("prompts", "seed")}
        memory = None if self.memory is None else self.memory.take(groups)
        return History(self.samples, {**self.made_with, **chosen}, memory)


class Memory(Protocol):
    """What a guide keeps of each step of a run, by prompt."""

    def take(self, groups: Sequence[int]) -> "Memory": ...


@dataclass(frozen=True, slots=True)
class Denoised:
    """A finished batch: rows [g * n, (g + 1) * n) are the samples of prompt g."""

    tokens: Tensor  # [B, L]
    commit_step: Tensor  # [B, L] int64: the step at which each token was written
    nfe: int  # network evaluations of every row
    seeds: Tensor  # [G]
    n: int
    history: History  # for `denoise(..., history=...)`

    def to(self, device: str) -> "Denoised":
        """The same batch elsewhere; its history stays where it is."""
        moved = {name: getattr(self, name).to(device) for name in ("tokens", "commit_step", "seeds")}
        return replace(self, **moved)

    def groups(self) -> Iterator[Tensor]:
        """The samples of each prompt, [n, L]."""
        return iter(self.tokens.split(self.n))


# logits [B, L, V] -> guided logits; the input is never changed. A guide may have `session(model, history)`, which refuses what
# does not fit and gives the guide of one run; one with a memory hands out its `memory` at the end.
Guide = Callable[[Tensor, Step], Tensor]
Policy = Callable[[Prediction, Step], Tensor]  # -> score [B, L]: higher is sooner, +inf (parallel policies) is now
Observer = Callable[[StepEvent], None]

"""The data of a step: the step itself, its prediction and decision, and the event for observers.

Shapes: B = G * n samples of G prompts (those of one prompt are neighbours), L generated positions,
V tokens in the vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .blocks import Blocks
from .noise import Purpose, key

LONGEST = 80  # characters of a text in a repr
ABSENT = -1  # stands for a token at positions that a guide neither pushes nor counts


@dataclass(frozen=True, slots=True)
class Draft:
    """The open blocks of a model that drafts, as one step leaves them to the next."""

    held: Tensor  # [B, L] bool: accepted tokens; the network sees them next, and noise elsewhere
    likeliest: Tensor  # [B, L] int64: after the push; ABSENT before the first step of a block
    stable: Tensor  # [B] int64: for how many steps the likeliest tokens have been the same
    echo: Tensor | None  # [B, block_length, V]: logits drawn from, for self-conditioning

    @classmethod
    def empty(cls, tokens: Tensor) -> "Draft":
        """Return the draft before the first step of a block."""
        return cls(
            torch.zeros_like(tokens, dtype=torch.bool),
            torch.full_like(tokens, ABSENT),
            torch.zeros_like(tokens[:, 0]),
            None,
        )

    def to(self, device: torch.device) -> "Draft":
        echo = None if self.echo is None else self.echo.to(device)
        held, likeliest, stable = self.held.to(device), self.likeliest.to(device), self.stable
        return Draft(held, likeliest, stable.to(device), echo)


@dataclass(frozen=True)
class Step:
    """The state of a run that policies, guides and observers see at one step."""

    index: int  # counts from 0
    total: int  # planned steps; a run may end earlier, or later if it reviews blocks
    tokens: Tensor
    """[B, L] int64: MASK or noise if masked; guides see ABSENT at tokens that do not count."""
    blocks: Blocks
    n: int  # samples per prompt
    first_sample: int  # number of samples of each prompt before this batch
    seeds: Tensor  # [G] int64
    parallel: bool = False  # the policy may commit more than its quota
    protected: tuple[int, ...] = ()  # ids that are never pushed
    never: tuple[int, ...] = ()  # ids that are never written: MASK and suppressed ids
    confidence: Tensor | None = None
    """[B, L] float64: confidence of each token when it was written; only if a policy remasks."""
    revisable: Tensor | None = None  # [B, L] bool: written tokens that a policy may remask
    target: Tensor | None = None  # [B]: positions of the open block to be masked after this step
    editable: Tensor | None = None  # [B, L] bool: written tokens that a policy may replace
    reviews: Tensor | None = None  # [B]: steps so far in which the open block had no mask
    reviewed: Tensor | None = None  # [B]: the same steps of all blocks
    given: Tensor | None = None  # [B, L] bool: tokens of a template, which are never masked
    open_only: bool = False
    """Whether a guide sees no pending positions: neither masked, nor a token."""
    draft: Draft | None = None  # of a model that drafts
    block_steps: int | None = None  # steps of a block in a model that drafts, None in others

    @property
    def masked(self) -> Tensor:
        """[B, L] bool: not yet committed."""
        return self.blocks.open if self.open_only else self.blocks.masked

    @property
    def open(self) -> Tensor:
        """[B, L] bool: masked and inside the open block."""
        return self.blocks.open

    @property
    def writable(self) -> Tensor:
        """[B, L] bool: where a token is proposed."""
        return self.open if self.editable is None else self.open | self.editable

    @property
    def reviewing(self) -> Tensor:
        """[B] bool: the open block has no mask."""
        return ~self.open.any(dim=1)

    @property
    def clock(self) -> tuple[int, int]:
        """Steps done and planned: of the run, or of the open block in a model that drafts."""
        if self.block_steps is None:
            return self.index, self.total
        return self.index % self.block_steps, self.block_steps

    @property
    def time_left(self) -> Tensor:
        """[B], falling from 1: the share of steps left, or of masked positions if parallel."""
        share, masked = self.share_left, self.blocks.masked
        if share is not None:
            return torch.full((len(masked),), share, dtype=torch.float64, device=masked.device)
        if self.given is None:
            return masked.double().mean(dim=1)
        return masked.sum(dim=1).double() / (~self.given).sum(dim=1).clamp(min=1)

    @property
    def share_left(self) -> float | None:
        """`time_left` if it is the same for all samples, and known without asking the device."""
        if self.parallel and self.block_steps is None:
            return None
        done, planned = self.clock
        return 1 - done / planned

    def address(self) -> tuple[Tensor, Tensor]:
        """Return (seeds, sample indices), each [B].

        A sample's noise depends on these and on step, purpose and position.
        """
        samples = torch.arange(self.n, device=self.seeds.device) + self.first_sample
        return self.seeds.repeat_interleave(self.n), samples.repeat(len(self.seeds))

    def keys(self, purpose: Purpose, positions: int) -> Tensor:
        """Return the noise keys of every sample and position, [B, positions] int64."""
        seeds, samples = self.address()
        return key(
            seeds[:, None],
            samples[:, None],
            self.index,
            purpose,
            torch.arange(positions, device=seeds.device),
        )


@lru_cache(maxsize=64)
def id_tensor(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the ids as an int64 tensor [p], cached because a transfer waits for the device."""
    return torch.tensor(ids, dtype=torch.long, device=device)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The tokens proposed at the writable positions; elsewhere the present tokens, and zeros."""

    tokens: Tensor  # [B, L] int64
    confidence: Tensor
    """[B, L] float64: probability of the token in the full or the sampled distribution."""
    margin: Tensor | None = None  # [B, L]: highest minus second highest probability
    entropy: Tensor | None = None  # [B, L], in nats
    logits: Tensor | None = None  # [B, L, V] pushed; None if a fused kernel never writes them
    logprobs: tuple[Tensor, Tensor] | None = None
    """[B, L] each: base and pushed log-probabilities of the tokens, if a fused kernel has them."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The return value of a policy that also remasks or edits; others return the score alone."""

    score: Tensor  # [B, L]: priority of the open positions, higher is sooner
    remask: Tensor | None = None  # [B, L] bool: written tokens to mask again
    edit: Tensor | None = None  # [B, L] bool: written tokens to replace by the predicted ones


@dataclass(frozen=True, slots=True)
class Decision:
    """The positions that a step commits or remasks."""

    commit: Tensor  # [B, L] bool: write the predicted token, perhaps in place of another
    remask: Tensor | None = None  # [B, L] bool: mask a written token again
    draft: Draft | None = None  # of a model that drafts: what the next step starts from


@dataclass(frozen=True, slots=True)
class Choice:
    """The tokens and commits of one step, with probabilities before and after the push.

    Probabilities are 0 at positions that are not writable.
    """

    tokens: Tensor  # [B, L]
    commit: Tensor  # [B, L] bool
    base_probability: Tensor  # [B, L]
    pushed_probability: Tensor  # [B, L]


@dataclass(frozen=True, slots=True)
class Top:
    """The five most likely tokens of each position after the push, most likely first."""

    tokens: Tensor  # [B, L, 5]
    base_probability: Tensor
    pushed_probability: Tensor


class StepLogits(Protocol):
    """The logits [B, L, V] of a step, with suppressed ids at -inf; undefined where committed."""

    @property
    def base(self) -> Tensor:
        """The network's logits."""

    @property
    def pushed_logits(self) -> Tensor:
        """The logits after the guide; the same object as `base` without one."""


@dataclass(frozen=True)
class StepEvent:
    """The record of a step that observers receive; its properties are computed when first read."""

    step: Step
    prediction: Prediction
    decision: Decision
    logits: StepLogits
    after: Blocks  # after the step
    propose: Callable[[], tuple[Prediction, Decision]] | None
    """Computes the step that plain sampling would take here; None if it is the same."""

    @property
    def commit(self) -> Tensor:
        """[B, L] bool: the positions that this step commits."""
        return self.decision.commit

    @property
    def shown(self) -> Tensor:
        """[B, L] bool: where the network will see the predicted token, written or only held."""
        draft = self.decision.draft
        return self.commit if draft is None else self.commit | draft.held

    @property
    def base_logits(self) -> Tensor:
        """[B, L, V]: logits before the push, suppressed ids at -inf; undefined where committed."""
        return self.logits.base

    @property
    def pushed_logits(self) -> Tensor:
        """[B, L, V]: logits after the push; undefined where committed."""
        return self.logits.pushed_logits

    @cached_property
    def logprobs(self) -> tuple[Tensor, Tensor]:
        """Base and pushed log-probabilities of the tokens that this step commits, 0 elsewhere.

        Each is [B, L] float64.
        """
        if self.prediction.logprobs is not None:
            base, pushed = (x.where(self.commit, 0.0) for x in self.prediction.logprobs)
            return base, pushed
        base = self._logprobs(self.base_logits)
        if self.pushed_logits is self.base_logits:
            return base, base
        return base, self._logprobs(self.pushed_logits)

    @cached_property
    def chosen(self) -> Choice:
        """The tokens and commits of this step."""
        return self._choice(self.prediction.tokens, self.commit)

    @cached_property
    def plain(self) -> Choice:
        """The step that plain sampling (no guide, no fork) would take with the same noise."""
        if self.propose is None:
            return self.chosen
        prediction, decision = self.propose()
        return self._choice(prediction.tokens, decision.commit)

    @cached_property
    def top(self) -> Top:
        """The five most likely tokens of each position after the push."""
        ranked = self._pushed.sort(dim=-1, descending=True, stable=True)
        tokens = ranked.indices[..., :5]
        return Top(tokens, self._base.gather(-1, tokens), ranked.values[..., :5])

    @cached_property
    def entropy(self) -> Tensor:
        """[B, L]: entropy of the pushed distribution at open positions, in nats."""
        entropy: Tensor = torch.special.entr(self._pushed).sum(dim=-1)
        return entropy.where(self.step.open, 0.0)

    @cached_property
    def force(self) -> Tensor:
        """[B, L]: Euclidean norm of the push on the logits of each masked position."""
        # -inf minus -inf is nan: a suppressed id is not pushed.
        push: Tensor = (self.pushed_logits - self.base_logits).nan_to_num(nan=0.0)
        force: Tensor = push.double().norm(dim=-1)
        return force.where(self.step.masked, 0.0)

    @cached_property
    def _pushed(self) -> Tensor:
        return self._probabilities(self.pushed_logits)

    @cached_property
    def _base(self) -> Tensor:
        return self._probabilities(self.base_logits)

    def _probabilities(self, logits: Tensor) -> Tensor:
        return logits.double().softmax(dim=-1).where(self.step.writable[..., None], 0.0)

    def _logprobs(self, logits: Tensor) -> Tensor:
        x = logits[self.commit].double()  # [C, V]
        token = self.prediction.tokens[self.commit]
        result = torch.zeros(self.commit.shape, dtype=torch.float64, device=logits.device)
        result[self.commit] = x.gather(1, token[:, None]).squeeze(1) - x.logsumexp(dim=1)
        return result

    def _choice(self, tokens: Tensor, commit: Tensor) -> Choice:
        base, pushed = (
            p.gather(-1, tokens[..., None]).squeeze(-1) for p in (self._base, self._pushed)
        )
        return Choice(tokens, commit, base, pushed)


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a prompt.

    The log-probability of a token is that of the step that wrote it, at temperature 1 and without
    filters: under the network (base) and after the push (pushed).
    """

    prompt: int  # index of its prompt
    index: int  # index among the samples of its prompt
    text: str  # without the end token; of a template, the text of its holes
    tokens: tuple[int, ...]  # all `length` of them
    commit_steps: tuple[int, ...]  # the step that wrote each token; -1 if no step did
    base_logprobs: tuple[float, ...]  # of each token, before the push
    pushed_logprobs: tuple[float, ...]  # of each token, after the push
    seed: int  # of the prompt: the same seed and index give the same sample
    finish_reason: Literal["stop", "length"]  # "stop" if an end token was written
    nfe: int  # network evaluations of this sample, without the rest of a pool
    holes: tuple[str, ...] = ()  # of a template: the text of each hole
    filled: str = ""  # of a template: given text and holes together

    def __repr__(self) -> str:
        text = repr(self.text)
        if len(text) > LONGEST:
            text = text[: LONGEST - 3] + "..."
        return f"Sample({self.index}, {text}, {self.finish_reason})"


@dataclass(frozen=True, slots=True)
class History:
    """A record of earlier samples, from which a second batch of the same prompts continues."""

    samples: int  # samples per prompt so far
    made_with: Mapping[str, Any]  # settings that a continuation must share
    memory: "Memory | None"  # the guide's memory; None if it keeps none

    def take(self, groups: Sequence[int]) -> "History":
        """Return the history of some of the prompts."""
        chosen = {key: [self.made_with[key][g] for g in groups] for key in ("prompts", "seed")}
        memory = None if self.memory is None else self.memory.take(groups)
        return History(self.samples, {**self.made_with, **chosen}, memory)


class Memory(Protocol):
    """The memory of a guide, for each step and prompt of a run."""

    def take(self, groups: Sequence[int]) -> "Memory": ...

    def to(self, device: torch.device) -> "Memory": ...


@dataclass(frozen=True, slots=True)
class Denoised:
    """A finished batch: the samples of prompt g are tokens[g * n : (g + 1) * n]."""

    tokens: Tensor  # [B, L]
    commit_step: Tensor
    """[B, L] int64: the step that wrote each token; -1 for given tokens and those past the end."""
    evaluations: Tensor  # [B] int64: network evaluations of each sample
    seeds: Tensor  # [G]
    n: int  # samples per prompt
    history: History  # for `denoise(..., history=...)`

    def to(self, device: str) -> "Denoised":
        """Return the batch on another device; its history is not moved."""
        moved = {
            name: getattr(self, name).to(device)
            for name in ("tokens", "commit_step", "evaluations", "seeds")
        }
        return replace(self, **moved)

    @property
    def nfe(self) -> int:
        """Network evaluations of the whole run: the most of any sample."""
        return int(self.evaluations.max())

    def groups(self) -> Iterator[Tensor]:
        """Iterate over the prompts: the tokens [n, L] of the samples of each."""
        return iter(self.tokens.split(self.n))


Policy = Callable[[Prediction, Step], Tensor | Proposal]
"""Returns a score [B, L]: higher is sooner, and +inf (in parallel policies) is now."""
Observer = Callable[[StepEvent], None]

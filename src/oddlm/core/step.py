"""What the pieces of a step see: a step itself, what is predicted, what is decided, and what an
observer is told.

B = groups x n samples (those of one prompt are neighbours), L generated positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .blocks import Blocks
from .noise import Purpose, key

LONGEST = 80  # characters of a text that a line has room for
ABSENT = -1  # in place of a token: a position that a guide neither pushes nor counts


@dataclass(frozen=True)
class Step:
    """All that an extension may look at."""

    index: int
    total: int  # planned steps; a run may end earlier
    tokens: Tensor  # [B, L] int64; MASK, or noise, where masked. A guide may find ABSENT
    blocks: Blocks
    n: int
    first_sample: int  # how many samples of each group came before this batch
    seeds: Tensor  # [G] int64
    parallel: bool = False  # the policy may commit more than its quota
    protected: tuple[int, ...] = ()
    never: tuple[int, ...] = ()  # ids that are never written: MASK, and what is suppressed
    confidence: Tensor | None = (
        None  # [B, L] float64: of each token when it was written; where tokens may be taken back
    )
    revisable: Tensor | None = (
        None  # [B, L] bool: written tokens of the open block, which a policy may take back
    )
    target: Tensor | None = (
        None  # [B]: positions of the open block that are to be masked after this step
    )

    @property
    def masked(self) -> Tensor:
        """[B, L] bool."""
        return self.blocks.masked

    @property
    def open(self) -> Tensor:
        """[B, L] bool: masked and inside the open block."""
        return self.blocks.open

    @property
    def time_left(self) -> Tensor:
        """[B]: from 1 down. Steps left of a fixed schedule; the masked share of each sample where
        the end is not known.
        """
        if self.parallel:
            return self.masked.double().mean(dim=1)
        return torch.full(
            (len(self.tokens),),
            1 - self.index / self.total,
            device=self.tokens.device,
            dtype=torch.float64,
        )

    def address(self) -> tuple[Tensor, Tensor]:
        """(seeds, samples), each [B]: what a sample's noise depends on besides step, purpose and
        position.
        """
        samples = torch.arange(self.n, device=self.seeds.device) + self.first_sample
        return self.seeds.repeat_interleave(self.n), samples.repeat(len(self.seeds))

    def keys(self, purpose: Purpose, positions: int) -> Tensor:
        """[B, positions] int64: where the noise of every sample and position comes from."""
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
    """[p] int64: sent to the device once, since sending waits for it."""
    return torch.tensor(ids, dtype=torch.long, device=device)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the network would write at every open position; elsewhere the tokens as they are, and
    zeros.
    """

    tokens: Tensor  # [B, L] int64
    # [B, L] float64: probability of the chosen token, in the full or the sampled distribution
    confidence: Tensor
    margin: Tensor | None = None  # [B, L] likeliest minus second likeliest
    entropy: Tensor | None = None  # [B, L] nats
    logits: Tensor | None = None  # [B, L, V] pushed; None where a fused kernel never writes them
    logprobs: tuple[Tensor, Tensor] | None = (
        None  # [B, L] base and pushed, of the tokens; where a fused kernel knows them
    )


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a policy that also takes tokens back returns, in place of its scores alone."""

    score: Tensor  # [B, L]: of the open positions, higher is sooner
    remask: Tensor  # [B, L] bool: written tokens to be masked again


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step does to the canvas."""

    commit: Tensor  # [B, L] bool: write the predicted token
    remask: Tensor | None = None  # [B, L] bool: take a written one back


@dataclass(frozen=True, slots=True)
class Choice:
    """A proposal for one step, with the probability of its tokens before and after guidance (0
    where not open).
    """

    tokens: Tensor  # [B, L]
    commit: Tensor  # [B, L] bool
    base_probability: Tensor  # [B, L]
    pushed_probability: Tensor  # [B, L]


@dataclass(frozen=True, slots=True)
class Top:
    """The likeliest tokens of a position under the pushed distribution, likeliest first."""

    tokens: Tensor  # [B, L, 5]
    base_probability: Tensor
    pushed_probability: Tensor


class StepLogits(Protocol):
    """[B, L, V], suppressed: as the network gave them, and after the guide (the same object where
    there was none). Undefined at committed positions.
    """

    @property
    def base(self) -> Tensor: ...

    @property
    def pushed_logits(self) -> Tensor: ...


@dataclass(frozen=True)
class StepEvent:
    """What an observer sees after each step.

    The properties are computed when first read, and only then.
    """

    step: Step
    prediction: Prediction
    decision: Decision
    logits: StepLogits
    propose: (
        Callable[[], tuple[Prediction, Decision]] | None
    )  # what plain sampling would do here; None: the same

    @property
    def commit(self) -> Tensor:
        """[B, L] bool: where it writes."""
        return self.decision.commit

    @property
    def base_logits(self) -> Tensor:
        """[B, L, V] suppressed, not pushed; undefined at committed positions."""
        return self.logits.base

    @property
    def pushed_logits(self) -> Tensor:
        return self.logits.pushed_logits

    @cached_property
    def logprobs(self) -> tuple[Tensor, Tensor]:
        """[B, L] float64, base and pushed: log-probability of each token that this step commits, 0
        elsewhere.
        """
        if self.prediction.logprobs is not None:
            base, pushed = (x.where(self.commit, 0.0) for x in self.prediction.logprobs)
            return base, pushed
        base = self._logprobs(self.base_logits)
        return base, base if self.pushed_logits is self.base_logits else self._logprobs(
            self.pushed_logits
        )

    @cached_property
    def chosen(self) -> Choice:
        return self._choice(self.prediction.tokens, self.commit)

    @cached_property
    def plain(self) -> Choice:
        """What plain sampling, without guide and fork, would have done here, with the same noise."""
        if self.propose is None:
            return self.chosen
        prediction, decision = self.propose()
        return self._choice(prediction.tokens, decision.commit)

    @cached_property
    def top(self) -> Top:
        ranked = self._pushed.sort(dim=-1, descending=True, stable=True)
        tokens = ranked.indices[..., :5]
        return Top(tokens, self._base.gather(-1, tokens), ranked.values[..., :5])

    @cached_property
    def entropy(self) -> Tensor:
        """[B, L] nats, of the pushed distribution at open positions."""
        entropy: Tensor = torch.special.entr(self._pushed).sum(dim=-1)
        return entropy

    @cached_property
    def force(self) -> Tensor:
        """[B, L]: Euclidean size of the push on a position's logits, over everything that is
        masked.
        """
        push: Tensor = (self.pushed_logits - self.base_logits).nan_to_num(
            nan=0.0
        )  # -inf stays -inf: no push
        force: Tensor = push.double().norm(dim=-1)
        return force.where(self.step.masked, 0.0)

    @cached_property
    def _pushed(self) -> Tensor:
        return self._probabilities(self.pushed_logits)

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
        base, pushed = (
            p.gather(-1, tokens[..., None]).squeeze(-1) for p in (self._base, self._pushed)
        )
        return Choice(tokens, commit, base, pushed)


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. The log-probabilities are those of each token at the step that wrote it, at
    temperature 1 and without
    filters: under the network (base) and after guidance (pushed).

    Of a template, `text` is what was written into its holes, and `filled` the whole of it.
    """

    prompt: int  # which prompt it answers
    index: int  # which of its samples it is
    text: str
    tokens: tuple[int, ...]  # all `length` of them
    commit_steps: tuple[int, ...]
    base_logprobs: tuple[float, ...]
    pushed_logprobs: tuple[float, ...]
    seed: int  # of the prompt: the same seed and index give the same sample
    finish_reason: Literal["stop", "length"]  # an end token was written, or not
    nfe: int  # network evaluations of its own; what a pool cost beside it is not in it
    holes: tuple[str, ...] = ()  # of a template: the text of each hole
    filled: str = ""  # of a template: given text and holes together

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

    def to(self, device: torch.device) -> "Memory": ...


@dataclass(frozen=True, slots=True)
class Denoised:
    """A finished batch: [g * n, (g + 1) * n) are the samples of prompt g."""

    tokens: Tensor  # [B, L]
    # [B, L] int64: the step at which each token was written; -1 of what was given, or is behind the
    # end
    commit_step: Tensor
    evaluations: Tensor  # [B] int64: of the network, for each sample
    seeds: Tensor  # [G]
    n: int
    history: History  # for `denoise(..., history=...)`

    def to(self, device: str) -> "Denoised":
        """The same batch elsewhere; its history stays where it is."""
        moved = {
            name: getattr(self, name).to(device)
            for name in ("tokens", "commit_step", "evaluations", "seeds")
        }
        return replace(self, **moved)

    @property
    def nfe(self) -> int:
        """Network evaluations of the whole run."""
        return int(self.evaluations.max())

    def groups(self) -> Iterator[Tensor]:
        """The samples of each prompt, [n, L]."""
        return iter(self.tokens.split(self.n))


Policy = Callable[
    [Prediction, Step], Tensor | Proposal
]  # -> score [B, L]: higher is sooner, +inf (parallel policies) is now
Observer = Callable[[StepEvent], None]

"""One answer out of many samples: ways to vote, and the answer that wins.

A way to vote gives each sample a weight. Samples that give the same answer stand together, and the
heaviest answer wins. A way to vote sees the samples and may ask the network about them, but never a
verdict. A new one is a function with the decorator `way`; keyword-only arguments are its options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite
from typing import Any, TypeVar

import torch
from torch import Tensor

from .checks import whole
from .core.model import Model, info_of
from .core.noise import Purpose, key, seed_tensor, uniform
from .core.step import Sample
from .likelihood import hidden_logits
from .metrics.votes import answer_classes
from .metrics.words import split_words, word_distances
from .registry import Registry
from .text import number_of, text_length

Read = Callable[[str], str | None]
"""Returns the answer in a text, in a form in which equal answers are equal; None if none."""


@dataclass
class Ballot:
    """The samples of one prompt, and the network that wrote them."""

    model: Model
    prompt: Sequence[int]
    samples: Sequence[Sample]
    max_batch: int = 256  # samples per network call
    evaluations: int = field(default=0, init=False)  # of the network, asked by ways to vote

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each sample up to its first end token, and with it."""
        ends = info_of(self.model).end_ids
        return [min(text_length(one.tokens, ends) + 1, len(one.tokens)) for one in self.samples]

    def hide(
        self, parts: int, rounds: int, measure: Callable[[Tensor, Tensor], Tensor]
    ) -> list[float]:
        """Hide the tokens of each sample, measure how the network fills them in, and average.

        In each round the positions are divided at random into `parts` parts of about equal size,
        the same for all samples, and one part after the other is hidden. So every token counts
        `rounds` times. Equal samples are measured once.

        measure: logits [tokens, V] and the hidden tokens [tokens] -> [tokens].
        """
        parts, rounds = whole("parts", parts), whole("rounds", rounds)
        lengths = {one.tokens: n for one, n in zip(self.samples, self.lengths, strict=True)}
        texts = list(lengths)
        found: dict[tuple[int, ...], float] = {}
        for first in range(0, len(texts), self.max_batch):
            some = texts[first : first + self.max_batch]
            answers = torch.tensor(some, device=info_of(self.model).device)
            total = torch.zeros(answers.shape, dtype=torch.float64, device=answers.device)
            for hidden in self._hidden(answers.shape[1], parts, rounds):
                hidden = hidden.to(answers.device).expand_as(answers)
                prompts = [self.prompt] * len(some)
                for part, logits in hidden_logits(self.model, prompts, answers, hidden):
                    total[part] += measure(logits, answers[part])
                    self.evaluations += int(part.any(dim=1).sum())
            for one, row in zip(some, total.cpu(), strict=True):
                found[one] = float(row[: lengths[one]].sum()) / (rounds * lengths[one])
        return [found[one.tokens] for one in self.samples]

    def _hidden(self, length: int, parts: int, rounds: int) -> list[Tensor]:
        """Return the positions to hide together, each [L] bool."""
        seed = seed_tensor(self.samples[0].seed, 1, torch.device("cpu"))
        found = []
        for turn in range(rounds):
            noise = uniform(key(seed, 0, turn, Purpose.HIDE), length)[0]  # [L]
            part_of = noise.argsort().argsort() % parts
            found += [part_of == part for part in range(min(parts, length))]
        return found


Way = Callable[[Ballot], Sequence[float]]
WAYS: Registry[Way] = Registry("way to vote")


W = TypeVar("W", bound=Callable[..., Sequence[float]])


def way(*, best: bool = False, asks: bool = False) -> Callable[[W], W]:
    """Register a way to vote.

    Args:
        best: An answer weighs as much as the heaviest of its samples, not as all of them together.
        asks: It asks the network.
    """

    def decorate(function: W) -> W:
        function.best, function.asks = best, asks  # type: ignore[attr-defined]
        return WAYS.register(function)

    return decorate


@way()
def majority(ballot: Ballot) -> Sequence[float]:
    """Every sample has one vote (Wang et al. 2022, arXiv:2203.11171)."""
    return [1.0] * len(ballot.samples)


@way()
def confidence(ballot: Ballot) -> Sequence[float]:
    """A vote counts as the geometric mean of its tokens' probabilities, after the push."""
    pairs = zip(ballot.samples, ballot.lengths, strict=True)
    return [exp(sum(one.pushed_logprobs[:length]) / length) for one, length in pairs]


@way()
def likelihood(ballot: Ballot) -> Sequence[float]:
    """Like confidence, but with the probabilities before the push."""
    pairs = zip(ballot.samples, ballot.lengths, strict=True)
    return [exp(sum(one.base_logprobs[:length]) / length) for one, length in pairs]


@way(best=True)
def likeliest(ballot: Ballot) -> Sequence[float]:
    """The sample whose tokens were the most probable before the push, per token."""
    return likelihood(ballot)


@way(best=True)
def medoid(ballot: Ballot) -> Sequence[float]:
    """The sample that is most like all others, in words."""
    words = [split_words(one.text) for one in ballot.samples]
    near: list[float] = (1 - word_distances(words, words).mean(axis=1)).tolist()
    return near


@way(best=True, asks=True)
def cloze(ballot: Ballot, *, parts: int = 4, rounds: int = 2) -> Sequence[float]:
    """The sample that the network completes best when a quarter of it is hidden at a time.

    Its weight is the geometric mean of the probabilities of the hidden tokens.
    """

    def logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]

    return [exp(value) for value in ballot.hide(parts, rounds, logprobs)]


@way(asks=True)
def cloze_vote(ballot: Ballot, *, parts: int = 4, rounds: int = 2) -> Sequence[float]:
    """A vote counts as the weight that `cloze` gives to its sample."""
    return cloze(ballot, parts=parts, rounds=rounds)


@way(asks=True)
def self_certainty(
    ballot: Ballot, *, parts: int = 4, rounds: int = 1, power: float = 0.5
) -> Sequence[float]:
    """A vote counts by the rank of its sample in how far predictions are from uniform.

    That is self-certainty with Borda votes (Kang et al. 2025, arXiv:2502.18581): the weights are
    (n - rank + 1)^power. The predictions are those of hidden tokens, as in `cloze`.
    """

    def divergence(logits: Tensor, _: Tensor) -> Tensor:
        known = logits.log_softmax(dim=-1)
        allowed = known.isfinite()
        counts = allowed.sum(dim=1).double()
        return -known.where(allowed, 0.0).sum(dim=1) / counts - counts.log()

    certainty = ballot.hide(parts, rounds, divergence)
    below = [sum(other < mine for other in certainty) for mine in certainty]
    return [float((count + 1) ** power) for count in below]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the answers that were voted on."""

    text: str  # of the heaviest sample that gives it
    reading: str | None  # the answer as it was read; None if texts were compared
    votes: int  # samples that give it
    weight: float
    """Its share of all weight, from 0 to 1; where the best sample counts, that sample's weight."""
    sample: Sample  # the heaviest

    def __repr__(self) -> str:
        return f"Candidate({self.text!r:.80}, {number_of(self.votes, 'vote')})"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that won, and the others."""

    by: str  # the way to vote
    candidates: tuple[Candidate, ...]  # heaviest first
    samples: tuple[Sample, ...]  # all that were drawn, also those without an answer
    nfe: int  # network evaluations, of all samples and of the vote

    @property
    def text(self) -> str:
        """The text of the answer that won."""
        return self.candidates[0].text

    @property
    def reading(self) -> str | None:
        """The answer that won, as it was read; None if texts were compared."""
        return self.candidates[0].reading

    @property
    def weight(self) -> float:
        """The weight of the answer that won, from 0 to 1: how sure the vote is."""
        return self.candidates[0].weight

    def __repr__(self) -> str:
        first = self.candidates[0]
        return (
            f"Answer({first.text!r:.80}, {first.votes} of {number_of(len(self.samples), 'vote')}, "
            f"weight {first.weight:.2f})"
        )


def vote(
    ballot: Ballot, *, by: str | Mapping[str, Any] | Way = "majority", read: Read | None = None
) -> Answer:
    """Vote on the samples of one prompt.

    Args:
        ballot: The samples, and the network.
        by: The way to vote: a name, a mapping with a name and options, or a function.
        read: Returns the answer in a text. Samples whose answer cannot be read do not vote. Without
            it, or if no sample can be read, similar texts are one answer.
    """
    if not ballot.samples:
        raise ValueError("there are no samples to vote on")
    weigh = WAYS.build(by)
    before = ballot.evaluations
    weights = [float(weight) for weight in weigh(ballot)]
    if len(weights) != len(ballot.samples) or not all(isfinite(w) and w >= 0 for w in weights):
        raise ValueError(
            f"way to vote {by!r} must give {len(ballot.samples)} finite weights of at least 0, "
            f"not {weights}"
        )
    texts = [one.text for one in ballot.samples]
    readings = [None if read is None else read(text) for text in texts]
    best = bool(getattr(weigh, "best", False))
    total = sum(weights) or 1.0
    candidates = []
    for members in _members(answer_classes(texts, readings)):
        first = max(members, key=lambda i: (weights[i], -i))
        weight = weights[first] if best else sum(weights[i] for i in members) / total
        candidates.append(
            Candidate(texts[first], readings[first], len(members), weight, ballot.samples[first])
        )
    name = by if isinstance(by, str) else getattr(weigh, "__name__", repr(by))
    return Answer(
        by=name,
        candidates=tuple(sorted(candidates, key=lambda one: -one.weight)),  # stable: first wins
        samples=tuple(ballot.samples),
        nfe=sum(one.nfe for one in ballot.samples) + ballot.evaluations - before,
    )


def _members(classes: Sequence[int | None]) -> list[list[int]]:
    """Return the samples of each class, in the order of the classes."""
    found: dict[int, list[int]] = {}
    for i, number in enumerate(classes):
        if number is not None:
            found.setdefault(number, []).append(i)
    return list(found.values())

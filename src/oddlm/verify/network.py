"""What a network itself shows: does it read, and are its logits those recorded before?

To read, it finds tokens that are hidden from known answers. An intact network finds far more of
them than with the other tokens in random order (else positions or attention are broken), and it
finds the hidden token itself, not its neighbour (else logits are shifted).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..likelihood import hidden_logits
from ..lm import LM
from ..prompts import encode_prompts
from ..tasks.gsm8k import SHOTS
from ..tasks.jsonl import read_jsonl

EVERY = 4  # tokens
CLEAR = 2.0  # times as many tokens are found as by any control
FEWEST = 0.1  # of the hidden tokens
PRINTED = 3  # answers of a fingerprint
# By which log-probabilities may differ. On mini, bf16 moves them by 0.04, and noise of 3 % of the
# weights' spread by 0.2.
NATS = 0.1

Pair = tuple[str, str]


@dataclass(frozen=True)
class Reading:
    """Shares of the hidden tokens that a network finds."""

    tokens: int
    found: float
    scrambled: float  # with the other tokens in random order
    before: float  # it names the token before instead
    after: float  # or the one after

    @property
    def passed(self) -> bool:
        control = max(self.scrambled, self.before, self.after)
        return self.found >= max(CLEAR * control, FEWEST)


def shots() -> list[Pair]:
    """Return worked problems, which come with the package."""
    return [
        (f"Question: {row['question']}\nAnswer:", str(row["answer"]))
        for _, row in read_jsonl(SHOTS, ("question", "answer"))
    ]


def read(lm: LM, pairs: Sequence[Pair]) -> Reading:
    """Hide tokens of the answers, and compare what the network finds with the controls.

    Raises ValueError for a model without a mask token.
    """
    found, before, after, scrambled = [], [], [], []
    for prompt, tokens in _encoded(lm, pairs):
        hidden = torch.zeros_like(tokens, dtype=torch.bool)
        hidden[:, 1::EVERY] = True
        named, _ = _ask(lm, prompt, tokens, hidden)
        found.append(named[hidden] == tokens[hidden])
        before.append(named[hidden] == tokens.roll(1, dims=1)[hidden])
        after.append(named[hidden] == tokens.roll(-1, dims=1)[hidden])
        mixed, visible = _scrambled(prompt, tokens, hidden)
        scrambled.append(_ask(lm, mixed, visible, hidden)[0][hidden] == tokens[hidden])
    shares = [float(torch.cat(part).double().mean()) for part in (found, scrambled, before, after)]
    return Reading(sum(map(len, found)), *shares)


def fingerprint(lm: LM, pairs: Sequence[Pair]) -> tuple[float, ...]:
    """Return the log-probability of each token of the first answers, all of them hidden.

    Raises ValueError for a model without a mask token.
    """
    found: list[float] = []
    for prompt, tokens in _encoded(lm, pairs[:PRINTED]):
        found += _ask(lm, prompt, tokens, torch.ones_like(tokens, dtype=torch.bool))[1].tolist()
    return tuple(round(one, 4) for one in found)


def difference(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the largest difference in nats; infinite if they are not of the same tokens."""
    if len(first) != len(second):
        return float("inf")
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def _encoded(lm: LM, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], Tensor]]:
    """Yield the ids of each prompt, and those of its answer, [1, L]."""
    texts = [prompt for prompt, _ in pairs]
    prompts = encode_prompts(lm.tokenizer, texts, 0, context=None, raw=lm.raw)
    for prompt, (_, answer) in zip(prompts, pairs, strict=True):
        yield prompt, torch.tensor([lm.tokenizer.encode(answer)])


def _ask(lm: LM, prompt: list[int], tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens [1, L] where hidden, and the log-probability of each there."""
    named, chosen = torch.full_like(tokens, -1), torch.zeros(tokens.shape, dtype=torch.float64)
    for part, logits in hidden_logits(lm.model, [prompt], tokens, hidden):
        part, logits = part.cpu(), logits.cpu()
        named[part] = logits.argmax(dim=-1)
        chosen[part] = logits.log_softmax(dim=-1).gather(1, tokens[part][:, None])[:, 0]
    return named, chosen[hidden]


def _scrambled(prompt: list[int], tokens: Tensor, hidden: Tensor) -> tuple[list[int], Tensor]:
    """Return prompt and answer with all visible tokens in random order."""
    visible = torch.cat([torch.tensor(prompt), tokens[~hidden]])
    mixed = visible[torch.randperm(len(visible), generator=torch.Generator().manual_seed(0))]
    answer = tokens.clone()
    answer[~hidden] = mixed[len(prompt) :]
    return mixed[: len(prompt)].tolist(), answer

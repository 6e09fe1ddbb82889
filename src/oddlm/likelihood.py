"""What a network makes of an answer that is there: the probability of its tokens when hidden."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import ids as checked_ids
from .checks import whole
from .core.blocks import Blocks
from .core.canvas import Prompt, lay_prompts
from .core.model import Model, ModelInfo, Query, info_of, open_session
from .core.noise import Purpose, key, seed_tensor, uniform

MOST_LOGITS = 1 << 27  # in float64 at a time: 1 GiB


@dataclass(frozen=True, slots=True)
class Bound:
    """An estimate of a lower bound of an answer's log-likelihood."""

    value: float  # the mean of the draws, a natural logarithm
    standard_error: float  # of the value
    is_greedy: bool
    """Whether the model writes this answer at temperature 0, one token per step."""
    tokens: int  # of the answer
    draws: int


@torch.no_grad()
def loglikelihood_bound(
    model: Model,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    draws: int = 128,
    seed: int = 0,
    max_batch: int = 256,
) -> Bound:
    """Estimate a lower bound of the log-likelihood of an answer.

    A draw hides l of the L tokens of each block, where l is uniform in 1..L, and weighs the
    log-probabilities of what it hid by L / l (Nie et al. 2025, arXiv:2502.09992). The mean over all
    draws is the log-likelihood of the answer when its tokens are written one by one, averaged over
    all orders. It is the exact value if the network's predictions agree for all orders.

    Args:
        model: A masked diffusion model.
        prompt: Token ids.
        answer: Token ids.
        draws: Number of draws, at least 2; each asks the network once, or once per block.
        seed: The same seed hides the same positions of answers with the same length.
        max_batch: Draws per network call.

    Raises:
        ValueError: The model has no mask token, or the answer is empty or contains it.
    """
    info = info_of(model)
    draws = whole("draws", draws, least=2)
    tokens = checked_ids("answer", answer, info.vocab_size)
    if not tokens or info.mask_id in tokens:
        raise ValueError("answer must hold tokens, and not the mask token")
    row = torch.tensor([tokens], device=info.device)
    hidden, weights = _draw_hidden(info, prompt, len(tokens), draws, seed)
    together = max(1, min(max_batch, MOST_LOGITS // (len(tokens) * info.vocab_size)))
    found = []
    for some, weight in zip(hidden.split(together), weights.split(together), strict=True):
        answers = row.expand(len(some), -1)
        logprobs = hidden_logprobs(model, [prompt] * len(some), answers, some)
        found.append((logprobs * weight).sum(dim=1))
    values = torch.cat(found)
    return Bound(
        value=float(values.mean()),
        standard_error=float(values.std() / draws**0.5),
        is_greedy=_is_greedy(model, prompt, row),
        tokens=len(tokens),
        draws=draws,
    )


def _draw_hidden(
    info: ModelInfo, prompt: Sequence[int], length: int, draws: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the positions that each draw hides, [draws, L] bool, and their weights, [draws, L]."""
    (blocks,) = _blocks(
        info,
        torch.ones(1, length, dtype=torch.bool, device=info.device),
        torch.tensor([len(prompt)], device=info.device),
    ).ids  # [L]
    sizes = blocks.bincount()  # [blocks]
    keys = key(
        seed_tensor(seed, 1, info.device),
        torch.arange(draws, device=info.device),
        0,
        Purpose.HIDE,
    )
    noise = uniform(keys, length + len(sizes))  # [draws, L + blocks]
    count = (noise[:, length:] * sizes).long() + 1  # [draws, blocks], uniform in 1..size
    order = (blocks + noise[:, :length]).argsort(dim=1)  # block by block
    rank = order.argsort(dim=1) - (sizes.cumsum(0) - sizes)[blocks]  # within the block
    return rank < count[:, blocks], (sizes / count.double())[:, blocks]


def _is_greedy(model: Model, prompt: Sequence[int], answer: Tensor) -> bool:
    """Whether the most confident hidden token is that of the answer [1, L], step after step."""
    hidden = torch.ones_like(answer, dtype=torch.bool)
    while hidden.any():
        part, logits = next(hidden_logits(model, [prompt], answer, hidden))
        best = logits.log_softmax(dim=-1).max(dim=-1)
        first = best.values.argmax()
        place = tuple(part.nonzero()[first])
        if best.indices[first] != answer[place]:
            return False
        hidden[place] = False
    return True


@torch.no_grad()
def hidden_logprobs(
    model: Model, prompts: Sequence[Prompt], answers: Tensor, hidden: Tensor
) -> Tensor:
    """Hide tokens of answers, and return their log-probabilities given all the others.

    They are those of a sampling step without temperature or filters. See `hidden_logits` for the
    arguments, for what raises ValueError, and for what a network is asked.

    Returns:
        [B, L] float64, natural logarithms; 0 where nothing was hidden.
    """
    found = torch.zeros(answers.shape, dtype=torch.float64, device=info_of(model).device)
    answers = answers.to(found.device)
    for part, logits in hidden_logits(model, prompts, answers, hidden):
        chosen = logits.log_softmax(dim=-1).gather(1, answers[part][:, None])
        found[part] = chosen[:, 0]
    return found


def hidden_logits(
    model: Model, prompts: Sequence[Prompt], answers: Tensor, hidden: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Hide tokens of answers, and yield the logits with which a network would write them.

    A network that is causal over blocks sees what comes before a block in full: it is asked once
    for every block that has a hidden token, any other network once.

    Args:
        model: A masked diffusion model.
        prompts: Token ids of the prompt of each answer.
        answers: [B, L] token ids.
        hidden: [B, L] bool: the tokens to hide, all of an answer at once.

    Yields:
        For each query some of the hidden tokens, [B, L] bool, and their logits, [tokens, V]
        float64. The mask token, which is never written, has -inf.

    Raises:
        ValueError: The model has no mask token, or the arguments do not fit each other.
    """
    info = info_of(model)
    if info.mask_id is None or info.process == "uniform":
        raise ValueError(f"{info.name} has no mask token, so tokens cannot be hidden from it")
    answers, hidden = answers.to(info.device), hidden.to(info.device)
    if answers.dim() != 2 or answers.shape != hidden.shape or len(answers) != len(prompts):
        raise ValueError(
            f"answers {tuple(answers.shape)} and hidden {tuple(hidden.shape)} must be [B, L], with "
            f"one row for each of {len(prompts)} prompts"
        )
    left, lengths = lay_prompts(prompts, 1, info)
    start, blocks = left.shape[1], _blocks(info, hidden, lengths)
    ids = blocks.ids.expand_as(hidden)
    for block in range(blocks.count):
        part = hidden & (ids == block)
        rows = part.any(dim=1)
        if not rows.any():
            continue
        query = Query(
            run=uuid.uuid4().hex,
            number=0,
            tokens=torch.cat([left, answers.masked_fill(part, info.mask_id)], dim=1)[rows],
            start=start,
            prompt_lengths=lengths[rows],
            samples=None,
            positions=None,
            nudge=None,
            blocks=blocks.with_masked(part)[rows],
        )
        logits = open_session(model, query)(query)[part[rows]].double()  # [hidden tokens, V]
        logits[:, info.mask_id] = -torch.inf
        yield part, logits


def _blocks(info: ModelInfo, hidden: Tensor, prompt_lengths: Tensor) -> Blocks:
    """Divide answers into the blocks of a block-causal model; for others each is one block."""
    size = info.block_length or hidden.shape[1]
    return Blocks.lay(hidden, size, prompt_lengths, info.align)

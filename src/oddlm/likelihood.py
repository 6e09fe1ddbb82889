"""What a network makes of an answer that is there: the probability of its tokens when hidden."""

import uuid
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .core.blocks import Blocks
from .core.canvas import Prompt, lay_prompts
from .core.model import Model, Query, info_of, open_session


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
    start, size = left.shape[1], info.block_length or answers.shape[1]
    blocks = Blocks.lay(hidden, size, lengths, info.align)
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

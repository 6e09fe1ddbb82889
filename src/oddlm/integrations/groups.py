"""Groups out of the flat batches of trainers, which repeat each prompt side by side."""

from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import noise
from ..core.model import CPU
from ..lm import LM
from ..rolling import Rollouts, rollouts

Row = tuple[Rollouts, int]  # a sample: the rollouts that hold it, and its row in them


def draw_groups(
    lm: LM, prompts: Sequence[Sequence[int]], seeds: Sequence[int], **options: Any
) -> list[Row]:
    """Draw one sample for each prompt; equal neighbours are one group and differ from each other.

    Args:
        lm: The LM.
        prompts: Token ids.
        seeds: As many; a group uses that of its first prompt.
        **options: Those of `rollouts`.
    """
    keys: list[Hashable] = [tuple(prompt) for prompt in prompts]
    groups = [list(group) for _, group in groupby(range(len(keys)), lambda i: keys[i])]
    found: dict[int, Row] = {}
    for n in sorted({len(group) for group in groups}):
        some = [group for group in groups if len(group) == n]
        rolled = rollouts(
            lm,
            [list(prompts[group[0]]) for group in some],
            n,
            seeds=[seeds[group[0]] for group in some],
            **options,
        )
        found |= {i: (rolled, row) for row, i in enumerate(i for group in some for i in group)}
    return [found[i] for i in range(len(prompts))]


def fresh_seeds(seed: int, call: tuple[int, int], count: int) -> list[int]:
    """Return seeds that no other call and no other process of a training run gets."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if distributed else 0
    first = noise.key(torch.tensor(seed), rank, call[0], noise.Purpose.SEED)
    return noise.key(first, call[1], 0, noise.Purpose.SEED, torch.arange(count)).tolist()


def counted(row: Row, name: str) -> list[Any]:
    """Return a column of a sample, a field or a tensor [B, S], where its tokens count."""
    rolled, i = row
    values: list[Any] = getattr(rolled, name)[i][rolled.mask[i]].tolist()
    return values


def stacked(rows: Sequence[Sequence[float]], width: int, fill: float) -> Tensor:
    """Return rows of several lengths as one tensor [B, width], filled up on the right."""
    parts = [torch.tensor(row, dtype=torch.float32, device=CPU) for row in rows]
    return torch.stack([F.pad(x, (0, width - len(x)), value=fill) for x in parts])

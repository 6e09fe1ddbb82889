"""The state of every position: committed, open or pending.

Blocks are written from left to right. The first block of a sample with a masked position is open;
masked positions after it are pending. Block-causal models count their blocks from the first token
of the prompt ("absolute"), so that the first and the last block of an answer may be shorter, and
differ between samples. All other models count from the start of the answer.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Align = Literal["answer", "absolute"]


@dataclass(frozen=True)
class Blocks:
    """The blocks of a batch, and which positions are masked."""

    ids: Tensor
    """[B, L] int64, or [1, L] if equal for all samples: the block of each position, from 0."""
    count: int  # the most blocks of any sample
    masked: Tensor  # [B, L] bool
    front: int | None = None  # no block after this one is open yet; None: any may be

    @classmethod
    def lay(
        cls, masked: Tensor, block_length: int, prompt_lengths: Tensor, align: Align
    ) -> "Blocks":
        """Divide the answers into blocks of `block_length`."""
        positions = torch.arange(masked.shape[1], device=masked.device)[None]
        if align == "absolute":
            positions = positions + (prompt_lengths % block_length)[:, None]
        ids = positions // block_length
        return cls(ids, int(ids.max()) + 1, masked)

    def __getitem__(self, some: slice | Tensor) -> "Blocks":
        ids = self.ids if len(self.ids) == 1 else self.ids[some]
        return replace(self, ids=ids, masked=self.masked[some])

    def with_masked(self, masked: Tensor) -> "Blocks":
        return replace(self, masked=masked)

    @property
    def committed(self) -> Tensor:
        return ~self.masked

    @cached_property
    def current(self) -> Tensor:
        """[B]: the open block of each sample; `count` if everything is written."""
        current: Tensor = torch.where(self.masked, self.ids, self.count).amin(dim=1)
        return current

    @cached_property
    def open(self) -> Tensor:
        """[B, L]: masked positions of the open block."""
        if self.count == 1:
            return self.masked
        here = self.ids == self.current[:, None]
        if self.front is not None:
            here = here & (self.ids <= self.front)
        return self.masked & here

    @property
    def pending(self) -> Tensor:
        """[B, L]: masked positions after the open block."""
        return self.masked & ~self.open

    def to(self, device: torch.device) -> "Blocks":
        return replace(self, ids=self.ids.to(device), masked=self.masked.to(device))

"""Which positions of an answer are committed, open or pending.

Blocks are written from left to right: of each sample, the first block with a masked position is
open; what is masked behind it is pending. Block-causal models count their blocks from the first
token of the prompt ("absolute"), so that the first and the last block of an answer may be cut
short, for each sample in its own way; everybody else counts from the answer.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Align = Literal["answer", "absolute"]


@dataclass(frozen=True)
class Blocks:
    # [B, L] int64, or [1, L] where they are the same for all: the block of each position, ascending
    # from 0
    ids: Tensor
    count: int  # blocks of the sample that has most
    masked: Tensor  # [B, L] bool

    @classmethod
    def lay(
        cls, masked: Tensor, block_length: int, prompt_lengths: Tensor, align: Align
    ) -> "Blocks":
        places = torch.arange(masked.shape[1], device=masked.device)[None]
        if align == "absolute":
            places = places + (prompt_lengths % block_length)[:, None]
        ids = places // block_length
        return cls(ids, int(ids.max()) + 1, masked)

    def __getitem__(self, some: slice | Tensor) -> "Blocks":
        return replace(
            self, ids=self.ids if len(self.ids) == 1 else self.ids[some], masked=self.masked[some]
        )

    def with_masked(self, masked: Tensor) -> "Blocks":
        return replace(self, masked=masked)

    @property
    def committed(self) -> Tensor:
        return ~self.masked

    @cached_property
    def current(self) -> Tensor:
        """[B]: the block that is open; `count` where all is written."""
        current: Tensor = torch.where(self.masked, self.ids, self.count).amin(dim=1)
        return current

    @cached_property
    def open(self) -> Tensor:
        """[B, L]: masked, in the first block that has anything masked."""
        return self.masked if self.count == 1 else self.masked & (self.ids == self.current[:, None])

    @property
    def pending(self) -> Tensor:
        return self.masked & ~self.open

    def to(self, device: torch.device) -> "Blocks":
        return replace(self, ids=self.ids.to(device), masked=self.masked.to(device))

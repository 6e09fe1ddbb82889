"""The state of every position: committed, open or pending.

Blocks are written from left to right. The first block of a sample with a masked position is open;
masked positions after it are pending. If written tokens are edited, a block stays open until it is
settled. Block-causal models count their blocks from the first token
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
    unsettled: Tensor | None = None
    """[B, L] bool: positions that may still change; None means the masked ones."""
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
        unsettled = None if self.unsettled is None else self.unsettled[some]
        return replace(self, ids=ids, masked=self.masked[some], unsettled=unsettled)

    def with_masked(self, masked: Tensor) -> "Blocks":
        return replace(self, masked=masked)

    def settle(self, here: Tensor) -> "Blocks":
        """Settle the positions `here` [B, L]; nothing changes if no token is edited."""
        if self.unsettled is None:
            return self
        return replace(self, unsettled=self.unsettled & ~here)

    @property
    def committed(self) -> Tensor:
        return ~self.masked

    @property
    def unfinished(self) -> Tensor:
        """[B, L]: positions that may still change."""
        return self.masked if self.unsettled is None else self.unsettled

    @cached_property
    def current(self) -> Tensor:
        """[B]: the open block of each sample; `count` if everything is finished."""
        current: Tensor = torch.where(self.unfinished, self.ids, self.count).amin(dim=1)
        return current

    @property
    def inside(self) -> Tensor:
        """[B, L]: all positions of the open block."""
        inside = self.ids == self.current[:, None]
        return inside if self.front is None else inside & (self.ids <= self.front)

    @cached_property
    def open(self) -> Tensor:
        """[B, L]: masked positions of the open block."""
        return self.masked if self.count == 1 else self.masked & self.inside

    @property
    def pending(self) -> Tensor:
        """[B, L]: masked positions after the open block."""
        return self.masked ^ self.open

    def to(self, device: torch.device) -> "Blocks":
        unsettled = None if self.unsettled is None else self.unsettled.to(device)
        ids, masked = self.ids.to(device), self.masked.to(device)
        return replace(self, ids=ids, masked=masked, unsettled=unsettled)

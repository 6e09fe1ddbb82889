"""Memory of the directions that earlier samples explored, so that a second batch can continue.

`exact` keeps every direction in float64: n * D * 8 bytes per step and prompt, which is 16 MB at
n = 16 and D = 126464. Batches of 16 + 16 samples then equal one batch of 32. `sparse` keeps the
largest entries of each direction in float32, as many as it takes to lose at most LOST of its norm.
It never takes more than half the memory of `exact`, and far less if the network is confident. Half
precision would be simpler, but its rounding (1e-3) is as large as the residual below which a sample
counts as a duplicate (also 1e-3), so duplicates of remembered samples would pass for new. LOST is
below that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from ..kernels.directions import Duplicates, find_directions

Form = Literal["exact", "sparse"]
LOST = 3e-4


@dataclass(frozen=True, slots=True)
class Sparse:
    """Orthonormal or zero rows [h, D], stored by their largest entries.

    All entries are stored if that takes less memory.
    """

    shape: tuple[int, int]
    counts: Tensor  # [h] int32: entries of each row
    columns: Tensor | None  # [k] int32, or None: all of them
    values: Tensor  # [k] float32

    @classmethod
    def pack(cls, rows: Tensor) -> "Sparse":
        h, D = rows.shape
        ranked = rows.abs().sort(dim=1, descending=True)
        power = ranked.values.square()
        left = power.flip(1).cumsum(dim=1).flip(1)  # power of this entry and all smaller ones
        keep = left > LOST**2
        counts = keep.sum(dim=1).int()
        if int(counts.sum()) * 8 >= h * D * 4:
            return cls((h, D), counts, None, rows.float())
        columns = ranked.indices[keep]
        owner = torch.arange(h, device=rows.device).repeat_interleave(counts)
        return cls((h, D), counts, columns.int(), rows[owner, columns].float())

    def unpack(self) -> Tensor:
        if self.columns is None:
            rows = self.values.double()
        else:
            rows = torch.zeros(self.shape, dtype=torch.float64, device=self.values.device)
            owner = torch.arange(len(self), device=rows.device).repeat_interleave(self.counts)
            rows[owner, self.columns.long()] = self.values.double()
        straighten = Duplicates("skip", tolerance=0.5)  # the rows are nearly orthonormal, or zero
        return find_directions(rows[None], None, straighten, _no_noise).vectors[0]

    def to(self, device: torch.device) -> "Sparse":
        columns = None if self.columns is None else self.columns.to(device)
        return Sparse(self.shape, self.counts.to(device), columns, self.values.to(device))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        columns = 0 if self.columns is None else self.columns.nbytes
        return self.counts.nbytes + self.values.nbytes + columns


@dataclass(slots=True)
class Explored:
    """The directions that the samples of each prompt explored, by step.

    One run fills it, and later runs continue from it.
    """

    form: Form = "exact"  # "exact" keeps float64; "sparse" keeps the largest entries in float32
    feature: str | None = None  # the feature of the directions; set when the first are added
    steps: dict[int, list[Tensor | Sparse]] = field(default_factory=dict)
    """For each step, the directions [h, D] of every prompt."""

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ValueError(f"form must be one of {', '.join(get_args(Form))}, not {self.form!r}")

    def rows(self, index: int, feature: str, groups: int) -> Tensor:
        """Return the directions [G, h, D] of one step.

        Raises ValueError if they were recorded for another feature or number of prompts.
        """
        self.samples_at(index)
        if self.feature != feature:
            raise ValueError(f"history was made with feature {self.feature}, not {feature}")
        if len(self.steps[index]) != groups:
            raise ValueError(
                f"history was made with {len(self.steps[index])} prompts, not {groups}"
            )
        return torch.stack([x if isinstance(x, Tensor) else x.unpack() for x in self.steps[index]])

    def with_step(self, index: int, feature: str, rows: Tensor) -> "Explored":
        """Return a copy with the rows [G, h, D] of one more step."""
        kept: list[Tensor | Sparse] = [
            Sparse.pack(r) if self.form == "sparse" else r.clone() for r in rows
        ]
        return Explored(self.form, feature, {**self.steps, index: kept})

    def take(self, groups: Sequence[int]) -> "Explored":
        """Return the directions of some of the prompts."""
        steps = {i: [rows[g] for g in groups] for i, rows in self.steps.items()}
        return Explored(self.form, self.feature, steps)

    def to(self, device: torch.device) -> "Explored":
        """Return a copy on another device."""
        steps = {i: [x.to(device) for x in rows] for i, rows in self.steps.items()}
        return Explored(self.form, self.feature, steps)

    def samples_at(self, index: int) -> int:
        """Return how many samples of each prompt are remembered at a step."""
        if index not in self.steps:
            raise ValueError(f"history has no step {index}; it holds {len(self.steps)} steps")
        return len(self.steps[index][0])

    @property
    def nbytes(self) -> int:
        """Bytes of all steps and prompts together."""
        return sum(x.nbytes for rows in self.steps.values() for x in rows)


def _no_noise(k: int, size: int) -> Tensor:
    raise AssertionError("duplicates are skipped here")

"""Attention to keys and values of several sources, some of them shared by the samples of a prompt.

What is shared is held once. The queries of all samples that share it are rows of one matrix, so it
is read once, too, and never repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

ALIGNED = 8  # rows of weights begin at multiples of this, where fast kernels can read them


@dataclass(frozen=True, slots=True)
class Members:
    """Which of R samples share each of P rows of keys and values."""

    samples: Tensor  # [P, m]: the samples of each row; those with fewer repeat some sample
    place: Tensor  # [R]: where each sample is among them

    @classmethod
    def of(cls, owners: Sequence[int], device: torch.device) -> "tuple[list[int], Members]":
        """Return the rows that are in use, ascending, and their members.

        owners: the row of each sample.
        """
        rows = sorted(set(owners))
        groups = [[i for i, owner in enumerate(owners) if owner == row] for row in rows]
        most = max(len(group) for group in groups)
        samples = [group + [0] * (most - len(group)) for group in groups]
        place = {i: g * most + j for g, group in enumerate(groups) for j, i in enumerate(group)}
        order = [place[i] for i in range(len(owners))]
        return rows, cls(torch.tensor(samples, device=device), torch.tensor(order, device=device))

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply x [R, heads, M, K] by the rows y [P, heads, K, N] of its samples."""
        if len(y) == 1:  # of one prompt: nothing has to be gathered
            rows: Tensor = x.transpose(0, 1).flatten(1, 2) @ y[0]
            every: Tensor = rows.unflatten(1, (len(x), -1)).transpose(0, 1)
            return every
        together = x[self.samples.to(x.device)].transpose(1, 2).flatten(2, 3) @ y
        most = self.samples.shape[1]
        apart = together.unflatten(2, (most, -1)).transpose(1, 2).flatten(0, 1)
        own: Tensor = apart[self.place.to(x.device)]
        return own


class KeptMembers:
    """The members of rows, kept between steps: copies from the host would wait for the device.

    Those of all samples are kept beside those of some, since recorded steps read them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.kept: dict[bool, tuple[tuple[int, ...], Tensor, Members]] = {}

    def of(self, owners: tuple[int, ...], every: bool) -> tuple[Tensor, Members]:
        """Return the rows in use [P], ascending, and their members.

        owners: the row of each sample, of all samples or of some.
        """
        found = self.kept.get(every)
        if found is None or found[0] != owners:
            rows, members = Members.of(owners, self.device)
            found = owners, torch.tensor(rows, device=self.device), members
            self.kept[every] = found
        return found[1:]


@dataclass(frozen=True, slots=True)
class Source:
    """Keys and values [R, key heads, S, head], or [P, key heads, S, head] if they are shared."""

    keys: Tensor
    values: Tensor
    members: Members | None = None

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y if self.members is None else self.members.product(x, y)


def attend(q: Tensor, sources: Sequence[Source], mask: Tensor | None) -> Tensor:
    """Return the attention of q [R, heads, Q, head] to all sources together.

    mask: [R, 1, Q or 1, S], False if hidden, over the positions of all sources; None: all visible.
    """
    queries, scale = q.shape[2], q.shape[3] ** -0.5
    q = q.unflatten(1, (sources[0].keys.shape[1], -1)).flatten(2, 3)  # heads with a key are rows
    products = [source.product(q, source.keys.mT) for source in sources]
    weights = _weigh(products, mask, queries, scale)
    attended, first = [], 0
    for source, size in zip(sources, (x.shape[3] for x in products), strict=True):
        attended.append(source.product(weights[..., first : first + size], source.values))
        first += size
    result: Tensor = sum(attended[1:], attended[0]).unflatten(2, (-1, queries)).flatten(1, 2)
    return result


def _weigh(products: Sequence[Tensor], mask: Tensor | None, queries: int, scale: float) -> Tensor:
    """Compute `weights_of`, on a GPU in one kernel."""
    if _fusible(products[0].device):
        from .fused_softmax import DTYPES, SOURCES, fused_weights

        if products[0].dtype in DTYPES and len(products) <= SOURCES:
            return fused_weights(products, mask, queries, scale, ALIGNED)
    return weights_of(products, mask, queries, scale)


@cache
def _fusible(device: torch.device) -> bool:
    """Whether Triton's kernels run there."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def weights_of(
    products: Sequence[Tensor], mask: Tensor | None, queries: int, scale: float
) -> Tensor:
    """Return the softmax over the products of queries with the keys of all sources.

    products: [R, key heads, rows, S] each, where the queries of every head are rows.
    Returns [R, key heads, rows, S], with some zeros behind them.
    """
    missing = -sum(x.shape[3] for x in products) % ALIGNED
    space = products[0].new_full((*products[0].shape[:3], missing), -torch.inf)
    scores = torch.cat([*products, space], dim=-1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale
    if mask is not None:
        hidden = F.pad(~mask[:, :, None].to(scores.device), (0, missing), value=True)
        scores = scores.unflatten(2, (-1, queries)).masked_fill(hidden, -torch.inf).flatten(2, 3)
    return scores.softmax(dim=-1).to(products[0].dtype)

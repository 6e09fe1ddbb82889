"""Repulsion in max-pooled features without autograd: two passes over the logits, one tile of samples at a time.

README.md in this folder derives it. Shapes: G groups of n samples, S positions, V vocabulary; inside a tile T samples, M masked
rows each (rows of samples with fewer are padded and marked).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .directions import Duplicates, find_directions
from .reference import Batch, Repel

TILE_ELEMENTS = 1 << 23  # of [T, M, V]


@dataclass(frozen=True, slots=True)
class Rows:
    """What one pass over the masked rows of T samples leaves behind."""

    position: Tensor  # [T, M] int64: where a row stands in the canvas
    valid: Tensor  # [T, M] bool: a masked row, not padding
    largest: Tensor  # [T, M] largest logit
    likeliest: Tensor  # [T, M] int64: its column
    total: Tensor  # [T, M] float64: sum of exp(x - largest)
    rest: Tensor  # [T, M] float64: the same without the likeliest
    power: Tensor  # [T, M] float64: sum of squared probabilities, without the likeliest and the protected
    feature: Tensor  # [T, V] largest probability in each column
    owner: Tensor  # [T, V] int16: the row that has it, M where a committed token has

    @property
    def quality(self) -> Tensor:
        """[T]: mean probability of the likeliest token."""
        peaks = (1 / self.total).where(self.valid, 0.0)
        return peaks.sum(dim=1) / self.valid.sum(dim=1).clamp(min=1)


def repel(logits: Tensor, tokens: Tensor, masked: Tensor, alpha: Tensor, how: Repel) -> Tensor:
    """The same contract as `reference.repel`, for max-pooled probabilities and objectives with a slope."""
    if how.sequential:
        return _one_by_one(logits, tokens, masked, alpha, how)
    guided = logits.clone(memory_format=torch.contiguous_format)
    _push(guided, logits, tokens, masked, alpha, None, how)
    return guided


def _one_by_one(logits: Tensor, tokens: Tensor, masked: Tensor, alpha: Tensor, how: Repel) -> Tensor:
    guided, earlier = logits.clone(memory_format=torch.contiguous_format), None
    keep = Duplicates("skip", how.duplicates.tolerance)
    for k in range(logits.shape[1]):
        one = slice(k, k + 1)
        mine = how.for_sample(k)
        _push(guided[:, one], logits[:, one], tokens[:, one], masked[:, one], alpha[:, one], earlier, mine)
        after = _features(_observe_all(guided[:, one], tokens[:, one], masked[:, one], mine), logits.shape[0], 1)
        earlier = after.new_zeros(len(after), 0, after.shape[2]).double() if earlier is None else earlier
        earlier = torch.cat([earlier, find_directions(after, earlier, keep, mine.noise).vectors], dim=1)
    return guided


def _push(
    guided: Tensor, logits: Tensor, tokens: Tensor, masked: Tensor, alpha: Tensor, earlier: Tensor | None, how: Repel
) -> None:
    """Write the pushed rows of `logits` [G, n, S, V] into `guided`."""
    G, n, S, V = logits.shape
    seen = _observe_all(logits, tokens, masked, how)
    features = _features(seen, G, n)
    earlier = features.new_zeros(G, 0, V) if earlier is None else earlier
    quality = torch.cat([rows.quality for rows in seen]).view(G, n)
    assert how.slope is not None
    by_feature, by_quality = how.slope(Batch(features, quality, earlier, how.duplicates, how.noise))
    into, x, by_feature = guided.view(-1, S, V), logits.flatten(0, 1), by_feature.view(-1, V)
    by_quality, alpha = by_quality.flatten(), alpha.flatten()
    for rows, tile in zip(seen, _tiles(masked, V), strict=True):
        _update(into[tile], x[tile], by_feature[tile], by_quality[tile], alpha[tile], rows, how)


def _tiles(masked: Tensor, V: int) -> Iterator[slice]:
    """Slices of the G * n samples, few enough at a time."""
    samples, M = masked.shape[0] * masked.shape[1], max(int(masked.sum(dim=-1).max()), 1)
    size = max(1, TILE_ELEMENTS // (M * V))
    return (slice(i, i + size) for i in range(0, samples, size))


def _features(seen: list[Rows], G: int, n: int) -> Tensor:
    features: Tensor = torch.cat([rows.feature for rows in seen]).unflatten(0, (G, n))
    return features


def _observe_all(logits: Tensor, tokens: Tensor, masked: Tensor, how: Repel) -> list[Rows]:
    x, t, m = logits.flatten(0, 1), tokens.flatten(0, 1), masked.flatten(0, 1)
    M = max(int(masked.sum(dim=-1).max()), 1)
    return [_observe(x[tile], t[tile], m[tile], M, how) for tile in _tiles(masked, logits.shape[-1])]


def _observe(logits: Tensor, tokens: Tensor, masked: Tensor, M: int, how: Repel) -> Rows:
    """First pass: softmax statistics, features and owners of a tile [T, S, V]."""
    position = masked.byte().argsort(dim=1, descending=True, stable=True)[:, :M]
    valid = masked.gather(1, position)
    x = _gather(logits, position, valid)  # [T, M, V], ours to overwrite
    largest, likeliest = x.max(dim=-1)
    x.sub_(largest[..., None]).exp_().scatter_(2, likeliest[..., None], 0.0)
    rest = x.sum(dim=-1).double()
    total = 1 + rest
    held = x[..., how.protected]
    x[..., how.protected] = 0.0
    power = (torch.linalg.vector_norm(x, dim=-1).double() / total).square()
    x[..., how.protected] = held
    x.scatter_(2, likeliest[..., None], 1.0).div_(total[..., None].to(x.dtype)).mul_(valid[..., None])
    if how.top_k is not None and how.top_k < x.shape[-1]:
        _truncate(x, how.top_k)
    feature, owner = x.max(dim=1)
    owner = owner.to(torch.int16)
    sample, committed = (~masked).nonzero(as_tuple=True)
    columns = tokens[sample, committed]
    feature[sample, columns] = 1.0
    owner[sample, columns] = M
    return Rows(position, valid, largest, likeliest, total, rest, power, feature, owner)


def _gather(logits: Tensor, position: Tensor, valid: Tensor) -> Tensor:
    """Rows of a tile as float32 or float64, copied; padding is 0, for it may hold anything."""
    samples = torch.arange(len(logits), device=logits.device)[:, None]
    rows = logits[samples, position].to(torch.promote_types(logits.dtype, torch.float32))
    return rows if valid.all() else rows.masked_fill_(~valid[..., None], 0.0)


def _truncate(x: Tensor, k: int) -> None:
    """Zero all but the k largest of each row, lowest column first on ties."""
    level = x.topk(k, dim=-1).values[..., -1:]
    above, ties = x > level, x == level
    room = k - above.sum(dim=-1, keepdim=True)
    x.masked_fill_(~(above | (ties & (ties.cumsum(dim=-1) <= room))), 0.0)


def _update(
    guided: Tensor, logits: Tensor, by_feature: Tensor, by_quality: Tensor, alpha: Tensor, rows: Rows, how: Repel
) -> None:
    """Second pass: write the pushed rows of a tile; guided and logits [T, S, V], by_feature [T, V], the others [T]."""
    T, M = rows.valid.shape
    owner = rows.owner.long()
    peak = 1 / rows.total  # [T, M] probability of the likeliest
    slope = (by_quality / rows.valid.sum(dim=1).clamp(min=1))[:, None]  # dL/dP at the likeliest, from quality ...
    owns = owner.gather(1, rows.likeliest) == torch.arange(M, device=owner.device)
    slope = slope + by_feature.gather(1, rows.likeliest).where(owns, 0.0)  # ... and from the feature

    def per_owner(columns: Tensor) -> Tensor:  # [T, V] -> [T, M]
        return torch.zeros(T, M + 1, dtype=columns.dtype, device=columns.device).scatter_add_(1, owner, columns)[:, :M]

    pull = rows.feature.double() * by_feature  # [T, V]: P dL/dP where owned
    sample, row = owns.nonzero(as_tuple=True)
    pull[sample, rows.likeliest[sample, row]] = 0.0  # the likeliest is accounted for on its own
    pulled = per_owner(pull)
    mean = pulled + peak * slope  # sum of P dL/dP
    at_peak = peak * (rows.rest * peak * slope - pulled)  # P (dL/dP - mean) at the likeliest, without cancellation

    free = pull.index_fill(1, how.protected, 0.0)
    shielded = torch.isin(rows.likeliest, how.protected)
    norm2 = mean.square() * rows.power - 2 * mean * per_owner(rows.feature * free) + per_owner(free.square())
    norm2 = (norm2 + at_peak.square().where(~shielded, 0.0)).clamp(min=0).where(rows.valid, 0.0)
    largest = norm2.amax(dim=1).sqrt()
    force = alpha if how.raw_gradient else alpha / largest.clamp(min=1e-8)  # [T]

    x = _gather(logits, rows.position, rows.valid)
    exact = x.gather(2, rows.likeliest[..., None]).squeeze(2).double() - force[:, None] * at_peak
    held = x[..., how.protected]
    weight = (x - rows.largest[..., None]).exp_()
    x.addcmul_(weight, (force[:, None] * mean * peak)[..., None].to(x.dtype))
    owned = (-force[:, None] * pull).where(owner < M, 0.0).to(x.dtype)
    x.scatter_add_(1, owner.clamp(max=M - 1)[:, None], owned[:, None])
    x.scatter_(2, rows.likeliest[..., None], exact[..., None].to(x.dtype))
    x[..., how.protected] = held
    sample, row = rows.valid.nonzero(as_tuple=True)
    guided[sample, rows.position[sample, row]] = x[sample, row].to(guided.dtype)

"""Repulsion in max-pooled features without autograd: two tiled passes over the logits.

docs/kernels.md has the derivation. Shapes: G groups of n samples, S positions, V vocabulary; T
samples at a time, M masked rows each (samples with fewer are padded, and the padding is marked). A
tile is [T, some rows, V].
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.noise import tile_elements
from .contract import Batch, Repel
from .directions import Duplicates, extend, find_directions

TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of one pass over the masked rows of T samples."""

    position: Tensor  # [T, M] int64: position of a row in the canvas
    valid: Tensor  # [T, M] bool: a masked row, not padding
    largest: Tensor  # [T, M] largest logit
    likeliest: Tensor  # [T, M] int64: its column
    rest: Tensor  # [T, M] float64: sum of exp(x - largest) over the other columns
    # [T, M] float64: sum of squared probabilities, without the likeliest and the protected.
    power: Tensor
    feature: Tensor  # [T, V] largest probability in each column
    # [T, V] int16, or int32 for very many rows: the row that has it, or M for a committed token.
    owner: Tensor

    @property
    def peak(self) -> Tensor:
        """[T, M]: probability of the likeliest token."""
        return 1 / (1 + self.rest)

    @property
    def quality(self) -> Tensor:
        """[T]: mean probability of the likeliest token."""
        return self.peak.where(self.valid, 0.0).sum(dim=1) / self.valid.sum(dim=1).clamp(min=1)


def repel(
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> tuple[Tensor, Tensor | None]:
    """Do `reference.repel` for max-pooled probabilities and objectives with a slope."""
    pushed = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if not masked.all():
        pushed.copy_(logits)  # committed rows stay
    if not how.sequential:
        return pushed, _push(pushed, logits, tokens, masked, alpha, earlier, how)
    keep = Duplicates("skip", how.duplicates.tolerance)
    for k in range(logits.shape[1]):
        one, mine = slice(k, k + 1), how.for_sample(k)
        x, here, out = logits[:, one], (tokens[:, one], masked[:, one]), pushed[:, one]
        _push(out, x, *here, alpha[:, one], earlier, mine)
        after, _ = _observe_all(out, *here, mine, _buffers(x, masked[:, one]))
        earlier = extend(earlier, find_directions(after, earlier, keep, mine.noise).vectors)
    assert earlier is not None
    return pushed, earlier[:, -logits.shape[1] :]


def _push(
    pushed: Tensor,
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> Tensor | None:
    """Write the pushed rows of logits [G, n, S, V] into `pushed`; return directions if wanted."""
    G, n, S, V = logits.shape
    buffers = _buffers(logits, masked)
    features, seen = _observe_all(logits, tokens, masked, how, buffers)
    quality = torch.cat([rows.quality for rows in seen]).view(G, n)
    assert how.slope is not None
    batch = Batch(features, quality, earlier, how.duplicates, how.noise)
    by_feature, by_quality = how.slope(batch)
    into, x, by_feature = pushed.view(-1, S, V), logits.flatten(0, 1), by_feature.view(-1, V)
    by_quality, alpha = by_quality.flatten(), how.eased(alpha, batch).flatten()
    for rows, some in zip(seen, _samples(masked, V), strict=True):
        _update(
            into[some], x[some], by_feature[some], by_quality[some], alpha[some], rows, how, buffers
        )
    return batch.directions.vectors if how.remember else None


def _most_masked(masked: Tensor) -> int:
    return max(int(masked.sum(dim=-1).max()), 1)


def _samples(masked: Tensor, V: int) -> Iterator[slice]:
    """Yield slices of the G * n samples: as many at a time as fit a tile, at least one."""
    T = max(1, tile_elements(masked.device, TILE_ELEMENTS) // (_most_masked(masked) * V))
    return (slice(i, i + T) for i in range(0, masked.shape[0] * masked.shape[1], T))


def _parts(position: Tensor, V: int) -> Iterator[slice]:
    """Yield slices of the M rows of T samples: as many at a time as fit a tile, at least one."""
    T, M = position.shape
    R = max(1, tile_elements(position.device, TILE_ELEMENTS) // (T * V))
    return (slice(i, min(i + R, M)) for i in range(0, M, R))


def _buffers(logits: Tensor, masked: Tensor) -> Tensor:
    """Allocate two tiles once: new pages for every tile would cost more than the arithmetic."""
    G, n, _, V = logits.shape
    tile = max(tile_elements(logits.device, TILE_ELEMENTS), V)
    elements = min(G * n * _most_masked(masked) * V, tile)
    wide = torch.promote_types(logits.dtype, torch.float32)
    return torch.empty(2, elements, dtype=wide, device=logits.device)


def _observe_all(
    logits: Tensor, tokens: Tensor, masked: Tensor, how: Repel, buffers: Tensor
) -> tuple[Tensor, list[Rows]]:
    """Return features [G, n, V], and the `Rows` of some samples at a time with views of them."""
    x, t, m = logits.flatten(0, 1), tokens.flatten(0, 1), masked.flatten(0, 1)
    M, V = _most_masked(masked), logits.shape[-1]
    features = buffers.new_empty(*logits.shape[:2], V)
    v = features.view(-1, V)
    return features, [
        _observe(x[some], t[some], m[some], M, v[some], how, buffers[0])
        for some in _samples(masked, V)
    ]


def _observe(
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    M: int,
    feature: Tensor,
    how: Repel,
    buffer: Tensor,
) -> Rows:
    """First pass over [T, S, V]: softmax statistics, owners, and features, written in place."""
    T, _, V = logits.shape
    position = masked.byte().argsort(dim=1, descending=True, stable=True)[:, :M]
    valid = masked.gather(1, position)
    feature.fill_(-1.0)
    owner = torch.zeros(T, V, dtype=_row_type(M), device=logits.device)
    statistics = []
    for part in _parts(position, V):
        x = _gather(logits, position[:, part], valid[:, part], buffer)
        statistics.append(_softmax(x, valid[:, part], how))
        strongest = x.amax(dim=1)
        row = (_first_row(x, strongest) + part.start).to(owner.dtype)
        owner = torch.where(strongest > feature, row, owner)  # the first part on ties
        torch.maximum(strongest, feature, out=feature)
    sample, committed = (~masked & (tokens >= 0)).nonzero(as_tuple=True)  # ABSENT has no column
    columns = tokens[sample, committed]
    feature[sample, columns] = 1.0
    owner[sample, columns] = M
    largest, likeliest, rest, power = (torch.cat(s, dim=1) for s in zip(*statistics, strict=True))
    return Rows(position, valid, largest, likeliest, rest, power, feature, owner)


def _gather(logits: Tensor, position: Tensor, valid: Tensor, into: Tensor) -> Tensor:
    """Copy rows of [T, S, V] into the buffer as float32 or float64; padding becomes 0."""
    T, R = position.shape
    S, V = logits.shape[1:]
    rows = into[: T * R * V].view(T, R, V)
    if logits.is_contiguous() and logits.dtype == into.dtype:
        flat = position + S * torch.arange(T, device=logits.device)[:, None]
        torch.index_select(logits.view(-1, V), 0, flat.flatten(), out=rows.view(-1, V))
    else:
        rows.copy_(logits[torch.arange(T, device=logits.device)[:, None], position])
    return rows if valid.all() else rows.masked_fill_(~valid[..., None], 0.0)


def _write(pushed: Tensor, position: Tensor, valid: Tensor, rows: Tensor) -> None:
    """The inverse of `_gather`."""
    if valid.all():
        pushed[torch.arange(len(pushed), device=pushed.device)[:, None], position] = rows.to(
            pushed.dtype
        )
    else:
        sample, row = valid.nonzero(as_tuple=True)
        pushed[sample, position[sample, row]] = rows[sample, row].to(pushed.dtype)


def _row_type(rows: int) -> torch.dtype:
    return torch.int16 if rows < torch.iinfo(torch.int16).max else torch.int32


def _first_row(x: Tensor, strongest: Tensor) -> Tensor:
    """Return the first row of [T, R, V] that reaches the column's maximum, as [T, V].

    This is several times as fast as max with indices.
    """
    R = x.shape[1]
    rank = torch.arange(R, 0, -1, dtype=_row_type(R), device=x.device)[:, None]
    return R - ((x == strongest[:, None]) * rank).amax(dim=1)


def _first_column(x: Tensor, block: int = 512) -> Tensor:
    """Return the first column that reaches the row's maximum, [T, R] int64.

    Taking the argmax over blocks and then inside one is ten times as fast as a plain argmax.
    """
    V = x.shape[-1]
    whole = V // block * block
    if whole == 0:
        return x.argmax(dim=-1)
    tops = [x[..., :whole].unflatten(-1, (-1, block)).amax(dim=-1)]
    if whole < V:
        tops.append(x[..., whole:].amax(dim=-1, keepdim=True))
    start = torch.cat(tops, dim=-1).argmax(dim=-1, keepdim=True) * block
    window = (start + torch.arange(block, device=x.device)).clamp(max=V - 1)
    return (start + x.gather(-1, window).argmax(dim=-1, keepdim=True)).squeeze(-1)


def _softmax(x: Tensor, valid: Tensor, how: Repel) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Turn a tile of logits into the probabilities that count, in place.

    Returns largest, likeliest, rest and power of each row.
    """
    likeliest, protected = _first_column(x), how.protected_on(x.device)
    top = likeliest[..., None]
    largest = x.gather(2, top).squeeze(2)
    x.sub_(largest[..., None]).exp_().scatter_(2, top, 0.0)
    rest = x.sum(dim=-1).double()
    held = x[..., protected]
    x[..., protected] = 0.0
    power = (torch.linalg.vector_norm(x, dim=-1).double() / (1 + rest)).square()
    x[..., protected] = held
    x.scatter_(2, top, 1.0).mul_((valid / (1 + rest))[..., None].to(x.dtype))
    if how.top_k is not None and how.top_k < x.shape[-1]:
        truncate(x, how.top_k)
    return largest, likeliest, rest, power


def truncate(x: Tensor, k: int) -> Tensor:
    """Zero all but the k largest of each row in place; ties go to the lowest column."""
    level = x.topk(k, dim=-1).values[..., -1:]
    above, ties = x > level, x == level
    room = k - above.sum(dim=-1, keepdim=True)
    return x.masked_fill_(~(above | (ties & (ties.cumsum(dim=-1) <= room))), 0.0)


def _update(
    pushed: Tensor,
    logits: Tensor,
    by_feature: Tensor,
    by_quality: Tensor,
    alpha: Tensor,
    rows: Rows,
    how: Repel,
    buffers: Tensor,
) -> None:
    """Second pass: write the pushed rows.

    pushed and logits are [T, S, V], by_feature is [T, V], by_quality and alpha are [T].
    """
    T, M = rows.valid.shape
    V = logits.shape[-1]
    owner, peak, protected = rows.owner.long(), rows.peak, how.protected_on(logits.device)
    # dL/dP at the likeliest token, from quality and from the feature.
    slope = (by_quality / rows.valid.sum(dim=1).clamp(min=1))[:, None]
    owns = owner.gather(1, rows.likeliest) == torch.arange(M, device=owner.device)
    slope = slope + by_feature.gather(1, rows.likeliest).where(owns, 0.0)

    def per_owner(columns: Tensor) -> Tensor:  # [T, V] -> [T, M]
        sums = torch.zeros(T, M + 1, dtype=columns.dtype, device=columns.device)
        return sums.scatter_add_(1, owner, columns)[:, :M]

    pull = rows.feature * by_feature  # [T, V]: P dL/dP where owned
    sample, row = owns.nonzero(as_tuple=True)
    pull[sample, rows.likeliest[sample, row]] = 0.0  # the likeliest is computed separately
    pulled = per_owner(pull)
    mean = pulled + peak * slope  # sum of P dL/dP
    # P (dL/dP - mean) at the likeliest, without cancellation.
    at_peak = peak * (rows.rest * peak * slope - pulled)

    free = pull.index_fill(1, protected, 0.0)
    shielded = torch.isin(rows.likeliest, protected)
    norm2 = (
        mean.square() * rows.power
        - 2 * mean * per_owner(rows.feature * free)
        + per_owner(free.square())
    )
    norm2 = (norm2 + at_peak.square().where(~shielded, 0.0)).clamp(min=0).where(rows.valid, 0.0)
    if not how.raw_gradient:
        alpha = alpha / norm2.amax(dim=1).sqrt().clamp(min=1e-8)
    force = alpha[:, None]

    at_peak, even, owned = force * at_peak, force * mean * peak, -force * pull
    for part in _parts(rows.position, V):
        x = _gather(logits, rows.position[:, part], rows.valid[:, part], buffers[0])
        top = rows.likeliest[:, part, None]
        exact = x.gather(2, top) - at_peak[:, part, None].to(x.dtype)
        held = x[..., protected]
        weight = torch.sub(
            x, rows.largest[:, part, None], out=buffers[1][: x.numel()].view_as(x)
        ).exp_()
        x.addcmul_(weight, even[:, part, None].to(x.dtype))
        here = (owner - part.start)[:, None]
        inside = (here >= 0) & (here < x.shape[1]) & (owner < M)[:, None]
        x.scatter_add_(
            1, here.clamp(0, x.shape[1] - 1), owned[:, None].where(inside, 0.0).to(x.dtype)
        )
        x.scatter_(2, top, exact)
        x[..., protected] = held
        _write(pushed, rows.position[:, part], rows.valid[:, part], x)

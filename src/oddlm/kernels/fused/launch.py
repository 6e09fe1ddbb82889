"""Repulsion and sampling on a GPU: the closed form as fused kernels.

They read the logits three times and write no array of their size, except for the pushed logits if
those are asked for. Shapes as in closed_form.py; B = G * n samples. Nothing here waits for the
device.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ...core.step import Step
from ..contract import Coordinates, Repel
from ..directions import Duplicates, extend
from . import algebra
from . import passes as device
from .arrays import Columns, Drawn, Push, Rows, columns_of

CELL = 512  # rows are padded to a multiple of this
CHUNK = 4096  # columns that one program sums by owner
NEEDS = {None: 0, "margin": 1, "entropy": 2}

# Logits [G, n, m, V] and their positions [G, n, m]; None means all positions, m = S.
Lines = tuple[Tensor, Tensor | None]


def repel(
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
) -> tuple[Tensor, Tensor | None]:
    """The same contract as `closed_form.repel`."""
    push, added = plan(logits, tokens, masked, alpha, earlier, how)
    pushed = write(logits.flatten(0, 1), masked.flatten(0, 1), push)
    return pushed.view(logits.shape), added


def plan(
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
    positions: Tensor | None = None,
    never: tuple[int, ...] = (),
) -> tuple[Push, Tensor | None]:
    """Plan the push of logits [G, n, S, V]; return it with the directions added, if wanted.

    Arguments are those of `reference.repel`. With positions [G * n, m], the logits are [G, n, m, V]
    at the masked positions of each sample, in ascending order.
    """
    columns = columns_of(logits.shape[-1], never, how.protected, logits.device)
    lines = logits, None if positions is None else positions.view(logits.shape[:3])
    with _current(logits):
        make = _plan_one_by_one if how.sequential else _plan
        return make(lines, tokens, masked, alpha, earlier, how, columns)


def _plan_one_by_one(
    lines: Lines,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
    columns: Columns,
) -> tuple[Push, Tensor | None]:
    """Plan one sample at a time, each against the others as they are after their own push."""
    pushes = []
    logits, positions = lines
    for k in range(logits.shape[1]):
        one = slice(k, k + 1)
        part = (
            (logits[:, one], None if positions is None else positions[:, one]),
            tokens[:, one],
            masked[:, one],
        )
        mine = how.for_sample(k)
        push, _ = _plan(*part, alpha[:, one], earlier, mine, columns)
        pushes.append(push)
        rows = _make_rows(part[0][0], earlier)
        _observe(*part, mine, columns, rows, push)
        skip = Duplicates("skip", how.duplicates.tolerance)
        found = _coordinates(rows, torch.zeros_like(alpha[:, one]), 1, skip)
        earlier = extend(earlier, _vectors(found, rows, logits.shape[-1]))
    assert earlier is not None
    return _join(pushes), earlier[:, -len(pushes) :]


def draw(
    logits: Tensor,
    positions: Tensor | None,
    step: Step,
    push: Push | None,
    *,
    temperature: float,
    needs: str | None,
) -> Drawn:
    """Draw tokens by Gumbel-max at the open positions of logits [B, S, V].

    With positions [B, m], the logits are [B, m, V] at these positions.
    """
    B, M, V = logits.shape
    S = step.tokens.shape[1]
    logits = _last_dense(logits)
    columns = columns_of(V, step.never, (), logits.device) if push is None else push.columns
    tokens = step.tokens.clone(memory_format=torch.contiguous_format)
    figures = torch.zeros(5, B, S, dtype=torch.float64, device=logits.device).unbind()
    with _current(logits):
        device.draw_tokens[(B * M,)](
            logits, logits.stride(0), logits.stride(1), _some(positions, logits), _flat(step.open),
            columns.flags, columns.busy,
            *_of(push, logits), logits if push is None else push.rest,
            step.seeds, step.n, step.first_sample, step.index, temperature,
            tokens, *figures,
            S, M, V=V, SOME=positions is not None, PUSHED=push is not None,
            HOT=temperature > 0, NEEDS=NEEDS[needs], BLOCK=_block(V, 2048), num_warps=8,
        )  # fmt: skip
    return Drawn(tokens, *figures)


def write(logits: Tensor, masked: Tensor, push: Push) -> Tensor:
    """Return the pushed logits [B, S, V]; committed rows are unchanged."""
    B, S, V = logits.shape
    logits = _last_dense(logits)
    pushed = torch.empty_like(logits, memory_format=torch.contiguous_format)
    block = _block(V, 2048)
    with _current(logits):
        device.write_rows[(B * S, _parts(V, block))](
            logits, logits.stride(0), logits.stride(1), _flat(masked), push.columns.flags,
            *_of(push, logits), pushed, S, V=V, BLOCK=block, num_warps=8,
        )  # fmt: skip
    return pushed


def _plan(
    lines: Lines,
    tokens: Tensor,
    masked: Tensor,
    alpha: Tensor,
    earlier: Tensor | None,
    how: Repel,
    columns: Columns,
) -> tuple[Push, Tensor | None]:
    logits = lines[0]
    n, V = logits.shape[1], logits.shape[-1]
    rows = _make_rows(logits, earlier)
    seen = _observe(lines, tokens, masked, how, columns, rows, None)
    if how.probes:
        rows[:, n : 2 * n, :V] = torch.stack([how.noise(k, V) for k in range(n)], dim=1)
    found = _coordinates(rows, seen.quality.view(alpha.shape), n, how.duplicates)
    assert how.weigh is not None
    weights = how.weigh(found)
    alpha = how.eased(alpha, found)
    pull = _combine(weights.by_feature, rows, weights.rough, seen, V)
    here, M = masked.flatten(0, 1), logits.shape[2]
    at_peak, even, force = _forces(
        rows, pull, seen, here, M, columns, weights.by_quality, alpha, how.raw_gradient
    )
    push = Push(
        largest=seen.largest,
        likeliest=seen.likeliest,
        rest=seen.rest,
        at_peak=at_peak,
        even=even,
        force=force,
        pull=pull,
        owner=seen.owner,
        columns=columns,
    )
    return push, _vectors(found, rows, V) if how.remember else None


def _make_rows(logits: Tensor, earlier: Tensor | None) -> Tensor:
    """Return rows [G, n + n + h, W]: space for features and draws, then the earlier directions."""
    G, n, _, V = logits.shape
    h = 0 if earlier is None else earlier.shape[1]
    rows = torch.empty(
        G, 2 * n + h, _parts(V, CELL) * CELL, dtype=torch.float32, device=logits.device
    )
    if earlier is not None:
        rows[:, 2 * n :, :V], rows[:, 2 * n :, V:] = earlier, 0.0
    return rows


def _observe(
    lines: Lines,
    tokens: Tensor,
    masked: Tensor,
    how: Repel,
    columns: Columns,
    rows: Tensor,
    push: Push | None,
) -> Rows:
    """Measure the logits, pushed if there is a push, and write features and draws into `rows`."""
    logits, positions = lines
    G, n, M, V = logits.shape
    S, W = tokens.shape[2], rows.shape[2]
    x, here = _last_dense(logits.flatten(0, 1)), _flat(masked.flatten(0, 1))
    figures = torch.zeros(6, G * n, S, dtype=torch.float32, device=x.device)
    largest, rest, power, share_log, peaks, likeliest = figures.unbind()
    likeliest = likeliest.view(torch.int32)
    strides = x.stride(0), x.stride(1)
    kind = {"SOME": positions is not None, "PUSHED": push is not None}
    device.measure_rows[(G * n * M,)](
        x, *strides, _some(positions, x), here,
        columns.flags, columns.busy, columns.protected, len(columns.protected),
        *_of(push, x), largest, likeliest, rest, power, share_log,
        S, M, V=V, BLOCK=_block(V, 2048), num_warps=8, **kind,
    )  # fmt: skip
    order = torch.empty(G * n, S, dtype=torch.int64, device=x.device)
    counts = torch.empty(G * n, dtype=torch.int32, device=x.device)
    owner = torch.zeros(
        G * n, W, dtype=torch.int16 if S < 1 << 15 else torch.int32, device=x.device
    )
    quality = torch.empty(G * n, dtype=torch.float64, device=x.device)
    algebra.survey[(G * n,)](
        here, tokens.flatten(0, 1).contiguous(), rest, order, counts, quality, owner, W, S,
        BLOCK=_lanes(S), num_warps=4,
    )  # fmt: skip
    block = _block(V, 512)
    device.pool_columns[(G * n, _parts(W, block))](
        x, *strides, order, counts, columns.flags, *_of(push, x), largest, rest, share_log,
        how.seeds, how.first_sample, how.step,
        rows, rows.stride(0), rows.stride(1), owner, W,
        S, n, V=V, BLOCK=block, UNROLL=4, num_warps=4, **kind,
    )  # fmt: skip
    return Rows(largest, likeliest, rest, power, peaks, owner, order, counts, quality)


def _inner(rows: Tensor) -> Tensor:
    """Return the inner products of the rows, [G, N, N] float64, summed in a fixed order."""
    G, N, W = rows.shape
    tile, length = 32, CELL if N <= 32 else 4 * CELL
    if W % length:
        length = CELL
    parts = torch.empty(G, W // length, N, N, dtype=torch.float64, device=rows.device)
    algebra.multiply_rows[(_parts(N, tile) ** 2, W // length, G)](
        rows,
        rows.stride(0),
        rows.stride(1),
        parts,
        N,
        W // length,
        LENGTH=length,
        TILE=tile,
        BLOCK=64,
        num_warps=4,
    )
    return parts.sum(dim=1)


def _coordinates(rows: Tensor, quality: Tensor, n: int, rule: Duplicates) -> Coordinates:
    """Find directions by Gram-Schmidt on inner products, without the vectors themselves.

    This is `directions.find_directions` in coordinates.
    """
    G, N, _ = rows.shape
    h = N - 2 * n
    inner = _inner(rows)
    basis, inner_basis = inner.new_empty(2, G, h + n, N).unbind()
    if h:
        basis[:, :h] = torch.eye(N, dtype=torch.float64, device=rows.device)[2 * n :]
        inner_basis[:, :h] = inner[:, 2 * n :]
    pushed, duplicate = torch.empty(2, G, n, dtype=torch.bool, device=rows.device).unbind()
    residual = torch.empty(G, n, dtype=torch.float64, device=rows.device)
    many = N > 64
    algebra.find_directions[(G,)](
        inner, basis, inner_basis, _flat(pushed), _flat(duplicate), residual,
        n, h, N, rule.tolerance,
        BREAK=rule.mode == "break", P=_lanes(N),
        TILE=32 if many else 16, num_warps=8 if many else 4,
    )  # fmt: skip
    return Coordinates(inner, quality, basis[:, h:], pushed, duplicate, residual, rule)


def _vectors(found: Coordinates, rows: Tensor, V: int) -> Tensor:
    """Return the directions as vectors, [G, n, V] float64."""
    return found.basis @ rows[..., :V].double()


def _combine(weights: Tensor, rows: Tensor, rough: Tensor | None, seen: Rows, V: int) -> Tensor:
    """Return feature * (weights @ rows), [B, W], but zero at the likeliest columns.

    Writes what would be there to `seen.peaks`.
    """
    G, n, N = weights.shape
    pull = torch.empty(G * n, rows.shape[2], dtype=torch.float32, device=rows.device)
    block, tile = 64, 16 if n <= 16 else 32
    algebra.combine_rows[(_parts(V, block), _parts(n, tile), G)](
        weights.contiguous(), rows, rows.stride(0), rows.stride(1),
        weights if rough is None else rough.contiguous(),
        seen.likeliest, seen.owner, seen.owner.stride(0), pull, pull.stride(0), seen.peaks,
        seen.peaks.shape[1], n, N,
        V=V, ROUGH=rough is not None, TILE=tile, DEPTH=16, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return pull


def _forces(
    rows: Tensor,
    pull: Tensor,
    seen: Rows,
    masked: Tensor,
    M: int,
    columns: Columns,
    by_quality: Tensor,
    alpha: Tensor,
    raw: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of the likeliest column, the gain of the others [B, S], and the force [B].

    No sample has more than M masked rows.
    """
    B, S = masked.shape
    V, n = len(columns.flags), alpha.shape[1]
    at_peak, even = torch.empty(2, B, S, dtype=torch.float32, device=pull.device).unbind()
    force = torch.empty(B, dtype=torch.float32, device=pull.device)
    tile, block, chunks = 8, 512, _parts(V, CHUNK)
    sums = torch.empty(B, chunks, 3, S, dtype=torch.float64, device=pull.device)  # of masked rows
    algebra.sum_by_owner[(B, _parts(M, tile), chunks)](
        rows, rows.stride(0), rows.stride(1), pull, pull.stride(0),
        seen.owner, seen.owner.stride(0), columns.flags, sums, seen.order, seen.counts,
        S, n, chunks, V=V, LENGTH=min(CHUNK, _parts(V, block) * block),
        TILE=tile, BLOCK=block, num_warps=4,
    )  # fmt: skip
    algebra.set_forces[(B,)](
        sums, seen.peaks, seen.likeliest, seen.rest, seen.power, _flat(masked), columns.flags,
        by_quality.double().contiguous(), alpha.double().contiguous(), at_peak, even, force,
        S, chunks, RAW=raw, BLOCK=_lanes(S), num_warps=4,
    )  # fmt: skip
    return at_peak, even, force


def _join(pushes: list[Push]) -> Push:
    """Join the pushes of sample 0, 1, ... of each group into the push of all of them."""

    def join(name: str) -> Tensor:
        return torch.stack([getattr(push, name) for push in pushes], dim=1).flatten(0, 1)

    return Push(
        **{f.name: join(f.name) for f in fields(Push) if f.name != "columns"},
        columns=pushes[0].columns,
    )


def _of(push: Push | None, instead: Tensor) -> tuple[Any, ...]:
    """Return a push as kernel arguments; without one, `instead` takes the place of its arrays."""
    if push is None:
        return (*[instead] * 7, 0)
    pull, owner = push.pull, push.owner
    row_fields = push.largest, push.likeliest, push.at_peak, push.even, push.force
    return (*row_fields, pull, owner, pull.stride(0))


def _some(positions: Tensor | None, instead: Tensor) -> Tensor:
    """Return the positions as a kernel argument, or `instead` if there are none."""
    return instead if positions is None else positions.contiguous()


def _current(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device current: Triton launches there, whatever its arguments are on."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _last_dense(logits: Tensor) -> Tensor:
    return logits if logits.stride(-1) == 1 else logits.contiguous()


def _flat(flags: Tensor) -> Tensor:
    """Booleans as bytes."""
    return flags.contiguous().view(torch.uint8)


def _lanes(S: int) -> int:
    """Return the lanes of a program that holds S numbers at a time."""
    return max(16, _power(S))


def _block(V: int, most: int) -> int:
    return max(16, min(_power(V), most))


def _parts(size: int, part: int) -> int:
    """Return how many parts cover a size. (Triton's functions for this are slow on the host.)"""
    return -(-size // part)


def _power(size: int) -> int:
    """Return the least power of two that is not below a size."""
    return 1 << (size - 1).bit_length()

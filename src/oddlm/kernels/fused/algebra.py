"""The GPU kernels between the passes over the logits.

They compute positions, inner products, directions and forces. Conventions are those of `passes.py`.
"""

import triton
import triton.language as tl

from .passes import PROTECTED, load_flags


@triton.jit
def survey(
    masked, tokens, rest, order, counts, quality, owner, stride_owner, S, BLOCK: tl.constexpr
):
    """List, count and rate the masked positions; set S as the owner of committed tokens.

    One sample per program. ABSENT (-1) owns no column. quality [samples] float64 is the mean
    probability of the likeliest token.
    """
    sample = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, BLOCK)
    row = sample * S + position
    valid = position < S
    here = tl.load(masked + row, mask=valid, other=0) != 0
    count = tl.sum(here.to(tl.int32), axis=0)
    rank = tl.cumsum(here.to(tl.int32), axis=0) - 1
    tl.store(order + sample * S + rank, position.to(tl.int64), mask=here)
    tl.store(counts + sample, count)
    peak = 1.0 / (1.0 + tl.load(rest + row, mask=here, other=0.0).to(tl.float64))
    tl.store(quality + sample, tl.sum(tl.where(here, peak, 0.0), axis=0) / tl.maximum(count, 1))
    written = valid & (here == 0)
    token = tl.load(tokens + row, mask=written, other=0)
    tl.store(
        owner + sample * stride_owner + token,
        tl.zeros([BLOCK], tl.int32) + S,
        mask=written & (token >= 0),
    )


@triton.jit(do_not_specialize=["N", "chunks"])
def multiply_rows(
    rows, stride_group, stride_row, parts, N, chunks,
    LENGTH: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """parts [G, chunks, N, N]: inner products of the rows over one chunk of columns, in float64."""
    tiles = tl.cdiv(N, TILE)
    i = (tl.program_id(0) // tiles) * TILE + tl.arange(0, TILE)
    j = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    chunk = tl.program_id(1)
    group = tl.program_id(2).to(tl.int64)
    rows += group * stride_group + chunk * LENGTH
    total = tl.zeros([TILE, TILE], tl.float64)
    for start in range(0, LENGTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        a = tl.load(
            rows + i[:, None] * stride_row + column[None, :], mask=(i < N)[:, None], other=0.0
        )
        b = tl.load(
            rows + j[:, None] * stride_row + column[None, :], mask=(j < N)[:, None], other=0.0
        )
        total = tl.dot(a.to(tl.float64), tl.trans(b.to(tl.float64)), total, out_dtype=tl.float64)
    place = parts + (group * chunks + chunk) * N * N + i[:, None] * N + j[None, :]
    tl.store(place, total, mask=(i < N)[:, None] & (j < N)[None, :])


@triton.jit
def residual(inner, basis, inner_basis, start, size, upto, N, P: tl.constexpr, TILE: tl.constexpr):
    """Remove the components of unit row `start` along the first `upto` basis rows, twice.

    Returns the coefficients, the inner products with all rows, and the norm.
    """
    axis = tl.arange(0, P)
    within = axis < N
    x = tl.where(axis == start, 1.0 / size, 0.0).to(tl.float64)
    y = tl.load(inner + start * N + axis, mask=within, other=0.0) / size
    for _ in tl.static_range(2):
        x_before = x
        j = 0
        while j < upto:
            rows = j + tl.arange(0, TILE)
            cell = rows[:, None] * N + axis[None, :]
            valid = (rows < upto)[:, None] & within[None, :]
            b = tl.load(basis + cell, mask=valid, other=0.0)
            by = tl.load(inner_basis + cell, mask=valid, other=0.0)
            along = tl.sum(by * x_before[None, :], axis=1)
            x -= tl.sum(along[:, None] * b, axis=0)
            y -= tl.sum(along[:, None] * by, axis=0)
            j += TILE
    return x, y, tl.sqrt(tl.maximum(tl.sum(x * y, axis=0), 0.0))


@triton.jit(do_not_specialize=["n", "h", "N"])
def find_directions(
    inner, basis, inner_basis, pushed, duplicate, residuals, n, h, N, tolerance,
    BREAK: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Gram-Schmidt in the coordinates of the rows [features; draws; earlier].

    One group per program. inner [N, N] holds their inner products, basis [h + n, N] the
    coefficients, and inner_basis is basis @ inner; the first h rows of both are given. pushed,
    duplicate and residuals [n] are those of `Coordinates`.
    """
    group = tl.program_id(0).to(tl.int64)
    inner += group * N * N
    basis += group * (h + n) * N
    inner_basis += group * (h + n) * N
    axis = tl.arange(0, P)
    earlier = tl.load(inner + axis * N + axis, mask=(axis >= 2 * n) & (axis < N), other=0.0) > 0
    others = tl.sum(earlier.to(tl.int32), axis=0)
    k = 0
    while k < n:
        own = tl.sqrt(tl.maximum(tl.load(inner + k * N + k), 0.0))
        size = tl.where(own > 0, tl.maximum(own, 1e-12), 1.0)
        x, y, left = residual(inner, basis, inner_basis, k, size, h + k, N, P, TILE)
        tl.store(residuals + group * n + k, left)
        new = left > tolerance
        same = (left <= tolerance) & (own > 0)
        if BREAK:  # noqa: SIM102 -- known when compiling; the other is not
            if same:
                own = tl.sqrt(tl.maximum(tl.load(inner + (n + k) * N + n + k), 0.0))
                size = tl.where(own > 0, tl.maximum(own, 1e-12), 1.0)
                x, y, left = residual(inner, basis, inner_basis, n + k, size, h + k, N, P, TILE)
                new = left > tolerance
        scale = tl.where(new, 1.0 / tl.maximum(left, 1e-12), 0.0)
        tl.store(basis + (h + k) * N + axis, x * scale, mask=axis < N)
        tl.store(inner_basis + (h + k) * N + axis, y * scale, mask=axis < N)
        tl.store(pushed + group * n + k, (new & (others > 0)).to(tl.uint8))
        tl.store(duplicate + group * n + k, same.to(tl.uint8))
        others += new.to(tl.int32)
        tl.debug_barrier()
        k += 1


@triton.jit(do_not_specialize=["n", "N"])
def combine_rows(
    weights, rows, stride_group, stride_row, rough, likeliest, owner, stride_owner,
    pull, stride_pull, peaks, S, n, N, V: tl.constexpr,
    ROUGH: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute pull = feature * (weights @ rows), internally in float64.

    The pull of a row at its likeliest column, if it owns that, goes to peaks [samples, S] instead.
    ROUGH: the features of duplicates are multiplied by 1 + rough * noise.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < V
    k = tl.program_id(1) * TILE + tl.arange(0, TILE)
    group = tl.program_id(2).to(tl.int64)
    rows += group * stride_group
    total = tl.zeros([TILE, BLOCK], tl.float64)
    j = 0
    while j < N:
        row = j + tl.arange(0, DEPTH)
        weight = tl.load(
            weights + (group * n + k)[:, None] * N + row[None, :],
            mask=(k < n)[:, None] & (row < N)[None, :],
            other=0.0,
        )
        part = tl.load(
            rows + row[:, None] * stride_row + column[None, :],
            mask=(row < N)[:, None] & inside[None, :],
            other=0.0,
        )
        total = tl.dot(weight, part.to(tl.float64), total, out_dtype=tl.float64)
        j += DEPTH
    cell = k.to(tl.int64)[:, None] * stride_row + column[None, :]
    valid = (k < n)[:, None] & inside[None, :]
    feature = tl.load(rows + cell, mask=valid, other=0.0).to(tl.float64)
    result = feature * total
    if ROUGH:
        draw = tl.load(rows + n * stride_row + cell, mask=valid, other=0.0).to(tl.float64)
        result += tl.load(rough + group * n + k, mask=k < n, other=0.0)[:, None] * draw * total
    result = result.to(tl.float32)
    sample = (group * n + k)[:, None]
    who = tl.load(owner + sample * stride_owner + column[None, :], mask=valid, other=0)
    row = sample * S + who.to(tl.int32)
    best = tl.load(likeliest + row, mask=valid & (who < S), other=-1)
    peak = valid & (best == column[None, :])
    tl.store(peaks + row, result, mask=peak)
    tl.store(pull + sample * stride_pull + column[None, :], tl.where(peak, 0.0, result), mask=valid)


@triton.jit
def sum_by_owner(
    rows, stride_group, stride_row, pull, stride_pull, owner, stride_owner,
    table, sums, order, counts,
    S, n, chunks, V: tl.constexpr, LENGTH: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum w, and v w and w^2 without protected columns, over the columns that each row owns.

    The result is sums [sample, chunk, 3, S]. A lane adds few numbers, in float32; the lanes are
    added in float64.
    """
    sample = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILE
    count = tl.load(counts + sample)
    if first < count:
        rank = first + tl.arange(0, TILE)
        position = tl.load(order + sample * S + rank, mask=rank < count, other=-1).to(tl.int32)
        chunk = tl.program_id(2)
        feature = rows + (sample // n) * stride_group + (sample % n) * stride_row
        w_sum = tl.zeros([TILE, BLOCK], tl.float32)
        vw_sum = tl.zeros([TILE, BLOCK], tl.float32)
        ww_sum = tl.zeros([TILE, BLOCK], tl.float32)
        for start in range(0, LENGTH, BLOCK):
            column = chunk * LENGTH + start + tl.arange(0, BLOCK)
            inside = column < V
            w = tl.load(pull + sample * stride_pull + column, mask=inside, other=0.0)
            v = tl.load(feature + column, mask=inside, other=0.0)
            who = tl.load(owner + sample * stride_owner + column, mask=inside, other=S).to(tl.int32)
            w_free = tl.where((load_flags(table, column, inside) & PROTECTED) != 0, 0.0, w)
            mine = (who[None, :] == position[:, None]).to(
                tl.float32
            )  # a factor, since adding a product is one operation
            w_sum += mine * w[None, :]
            vw_sum += mine * (v * w_free)[None, :]
            ww_sum += mine * (w_free * w_free)[None, :]
        out = sums + (sample * chunks + chunk) * 3 * S + position
        valid = position >= 0
        tl.store(out, tl.sum(w_sum.to(tl.float64), axis=1), mask=valid)
        tl.store(out + S, tl.sum(vw_sum.to(tl.float64), axis=1), mask=valid)
        tl.store(out + 2 * S, tl.sum(ww_sum.to(tl.float64), axis=1), mask=valid)


@triton.jit
def set_forces(
    sums, peaks, likeliest, rest, power, masked, table, by_quality, alpha, at_peak, even, force,
    S, chunks, RAW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn the sums by owner into the gains and losses of each row, one sample per program."""
    sample = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, BLOCK)
    valid = position < S
    row = sample * S + position
    here = tl.load(masked + row, mask=valid, other=0) != 0
    own = tl.zeros([BLOCK], tl.float64)
    own_v = tl.zeros([BLOCK], tl.float64)
    own_w = tl.zeros([BLOCK], tl.float64)
    i = 0
    while i < chunks:
        part = sums + (sample * chunks + i) * 3 * S + position
        own += tl.load(part, mask=here, other=0.0)
        own_v += tl.load(part + S, mask=here, other=0.0)
        own_w += tl.load(part + 2 * S, mask=here, other=0.0)
        i += 1
    count = tl.maximum(tl.sum(here.to(tl.int32), axis=0), 1)
    left = tl.load(rest + row, mask=valid, other=0.0).to(tl.float64)
    peak = 1.0 / (1.0 + left)
    slope = (
        tl.load(by_quality + sample) / count
        + tl.load(peaks + row, mask=valid, other=0.0).to(tl.float64) / peak
    )
    mean = own + peak * slope  # sum of P dL/dP
    lost = peak * (
        left * peak * slope - own
    )  # P (dL/dP - mean) at the likeliest, without cancellation
    shielded = (
        load_flags(table, tl.load(likeliest + row, mask=valid, other=0), valid) & PROTECTED
    ) != 0
    square = (
        mean * mean * tl.load(power + row, mask=valid, other=0.0).to(tl.float64)
        - 2.0 * mean * own_v
        + own_w
    )
    square += tl.where(shielded, 0.0, lost * lost)
    strength = tl.load(alpha + sample)
    if not RAW:
        longest = tl.sqrt(tl.max(tl.where(here, tl.maximum(square, 0.0), 0.0), axis=0))
        strength = strength / tl.maximum(longest, 1e-8)
    tl.store(at_peak + row, (strength * lost).to(tl.float32), mask=valid)
    tl.store(even + row, (strength * mean * peak).to(tl.float32), mask=valid)
    tl.store(force + sample, strength.to(tl.float32))

"""The code that runs on the GPU; `triton.py` launches it, README.md derives it.

Rows are the positions of samples: row = sample * S + position. `table` holds one byte per column, NEVER and PROTECTED flags.
Sums run in a fixed order (no atomics), so that two runs give the same bits. Loops over columns have constant bounds.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(1)  # never written: counts as -inf
PROTECTED = tl.constexpr(2)  # never pushed
GOLDEN = tl.constexpr(0x9E3779B9)
MIX_1 = tl.constexpr(0xED5AD4BB)
MIX_2 = tl.constexpr(0xAC4C1B51)
MIX_3 = tl.constexpr(0x31848BAB)
TAU = tl.constexpr(6.283185307179586)


@triton.jit
def bits(key, column):
    """`noise._bits`: uint32."""
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    x = column.to(tl.uint32) * GOLDEN + low
    x = ((x ^ (x >> 17)) * MIX_1) ^ high
    x = ((x ^ (x >> 11)) * MIX_2) ^ high
    x = ((x ^ (x >> 15)) * MIX_3) ^ high
    return x ^ (x >> 14)


@triton.jit
def exponential(key, column):
    """`noise._exponential`; log1p by Kahan's correction, since u / (1 - w) makes up for what w = 1 - u has lost."""
    u = ((bits(key, column) >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10
    u = tl.minimum(u, 0.99999994)
    w = 1.0 - u
    lost = tl.where(w == 1.0, 1.0, 1.0 - w)
    return tl.where(w == 1.0, u, -tl.log(w) * (u / lost))


@triton.jit
def gumbel(key, column):
    return -tl.log(exponential(key, column))


@triton.jit
def normal(key, second_key, column):
    """`noise.normal`; second_key addresses the angle."""
    angle = (bits(second_key, column) >> 1).to(tl.float32) * (TAU * 4.656612873077393e-10)
    return tl.sqrt(2.0 * exponential(key, column)) * tl.cos(angle)


@triton.jit
def load_logits(x, table, column, inside):
    """Logits as float32, -inf where never written or outside; and the table's flags."""
    flags = tl.load(table + column, mask=inside, other=1).to(tl.int32)
    value = tl.load(x + column, mask=inside, other=-float("inf")).to(tl.float32)
    return tl.where((flags & NEVER) != 0, -float("inf"), value), flags


@triton.jit
def pushed(x, flags, column, inside, position, largest, likeliest, at_peak, even, force, pull, owner):
    """x' = x + f m P - f w [owned], the exact value at the likeliest column, protected columns as they were."""
    mine = tl.load(owner + column, mask=inside, other=0).to(tl.int32) == position
    own = tl.load(pull + column, mask=inside, other=0.0)
    moved = x + tl.exp(x - largest) * even - tl.where(mine, force * own, 0.0)
    moved = tl.where(column == likeliest, x - at_peak, moved)
    return tl.where((flags & PROTECTED) != 0, x, moved)


@triton.jit
def row_of_push(row, sample, largest, likeliest, at_peak, even, force):
    """What `pushed` needs of a row."""
    return (
        tl.load(largest + row),
        tl.load(likeliest + row),
        tl.load(at_peak + row),
        tl.load(even + row),
        tl.load(force + sample),
    )


@triton.jit
def measure_rows(
    logits, stride_sample, stride_position, masked, table,
    push_largest, push_likeliest, at_peak, even, force, pull, owner, stride_pull,
    largest, likeliest, rest, power,
    S, V: tl.constexpr, PUSHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Softmax statistics of every masked row, in one pass: each lane keeps its own maximum and leaves it out of its sums."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(masked + row) != 0:
        sample, position = row // S, (row % S).to(tl.int32)
        x_row = logits + sample * stride_sample + (row % S) * stride_position
        if PUSHED:
            a, b, c, d, e = row_of_push(row, sample, push_largest, push_likeliest, at_peak, even, force)
            pull_row, owner_row = pull + sample * stride_pull, owner + sample * stride_pull
        lane = tl.arange(0, BLOCK)
        top = tl.full([BLOCK], -float("inf"), tl.float32)
        where = tl.full([BLOCK], 0, tl.int32)
        top_free = tl.full([BLOCK], 0.0, tl.float32)  # 1 where the lane's maximum is not protected
        sum1 = tl.full([BLOCK], 0.0, tl.float32)
        sum2 = tl.full([BLOCK], 0.0, tl.float32)
        for start in range(0, V, BLOCK):
            column = start + lane
            inside = column < V
            x, flags = load_logits(x_row, table, column, inside)
            if PUSHED:
                x = pushed(x, flags, column, inside, position, a, b, c, d, e, pull_row, owner_row)
            free = tl.where((flags & PROTECTED) != 0, 0.0, 1.0)
            up = x > top
            weight = tl.where(x == -float("inf"), 0.0, tl.exp(tl.where(up, top - x, x - top)))
            sum1 = tl.where(up, (sum1 + 1.0) * weight, sum1 + weight)
            sum2 = tl.where(up, (sum2 + top_free) * weight * weight, sum2 + free * weight * weight)
            where = tl.where(up, column, where)
            top_free = tl.where(up, free, top_free)
            top = tl.where(up, x, top)
        best = tl.max(top, axis=0)
        first = tl.min(tl.where(top == best, where, V), axis=0)
        weight = tl.where(top == -float("inf"), 0.0, tl.exp(top - best))
        mine = tl.where(where == first, 0.0, weight)  # the likeliest column itself stays out
        mine = tl.where(top == -float("inf"), 0.0, mine)
        total = tl.sum(sum1 * weight + mine, axis=0)
        squares = tl.sum(sum2 * weight * weight + mine * mine * top_free, axis=0)
        tl.store(largest + row, best)
        tl.store(likeliest + row, first)
        tl.store(rest + row, total)
        tl.store(power + row, squares / ((1.0 + total) * (1.0 + total)))


@triton.jit
def pool_columns(
    logits, stride_sample, stride_position, order, counts, table,
    push_largest, push_likeliest, at_peak, even, force, pull, push_owner, stride_pull,
    largest, rest, keys, second_keys,
    rows, stride_group, stride_row, owner, stride_owner,
    S, n, V: tl.constexpr, PUSHED: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Features and draws: the largest probability of each column over a sample's masked rows, who has it, and it times noise.
    `owner` comes in holding S where a committed token owns the column.
    """
    sample = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < V
    count = tl.load(counts + sample)
    best = tl.full([BLOCK], 0.0, tl.float32)
    who = tl.full([BLOCK], 0, tl.int32)
    i = 0
    while i < count:
        for j in tl.static_range(UNROLL):
            valid = i + j < count
            position = tl.load(order + sample * S + i + j, mask=valid, other=0)
            row = sample * S + position
            x, flags = load_logits(logits + sample * stride_sample + position * stride_position, table, column, inside & valid)
            if PUSHED:
                a, b, c, d, e = row_of_push(row, sample, push_largest, push_likeliest, at_peak, even, force)
                x = pushed(
                    x, flags, column, inside & valid, position, a, b, c, d, e,
                    pull + sample * stride_pull, push_owner + sample * stride_pull,
                )  # fmt: skip
            share = 1.0 / (1.0 + tl.load(rest + row, mask=valid, other=0.0))
            probability = tl.exp(x - tl.load(largest + row, mask=valid, other=0.0)) * share
            more = (probability > best) & valid
            best = tl.where(more, probability, best)
            who = tl.where(more, position.to(tl.int32), who)
        i += UNROLL
    held = tl.load(owner + sample * stride_owner + column, mask=inside, other=0).to(tl.int32) == S
    best = tl.where(held, 1.0, best)
    tl.store(owner + sample * stride_owner + column, tl.where(held, S, who), mask=inside)
    feature = rows + (sample // n) * stride_group + (sample % n) * stride_row
    tl.store(feature + column, best, mask=inside)
    noise = normal(tl.load(keys + sample), tl.load(second_keys + sample), column)
    tl.store(feature + n * stride_row + column, best * noise, mask=inside)


@triton.jit
def residual(inner, basis, inner_basis, start, size, upto, N, P: tl.constexpr, TILE: tl.constexpr):
    """Row `start`, made a unit vector, less its components along the first `upto` basis rows, twice: coefficients, inner
    products with all rows, and the length.
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


@triton.jit
def find_directions(
    inner, basis, inner_basis, kept, duplicate, n, h, N, tolerance,
    BREAK: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Gram-Schmidt in the coordinates of the rows [features; draws; earlier], one group per program.

    inner [N, N] their inner products; basis [h + n, N] coefficients and inner_basis = basis @ inner, whose first h rows are
    there already; kept and duplicate [n].
    """
    group = tl.program_id(0).to(tl.int64)
    inner += group * N * N
    basis += group * (h + n) * N
    inner_basis += group * (h + n) * N
    axis = tl.arange(0, P)
    k = 0
    while k < n:
        own = tl.sqrt(tl.maximum(tl.load(inner + k * N + k), 0.0))
        size = tl.where(own > 0, tl.maximum(own, 1e-12), 1.0)
        x, y, left = residual(inner, basis, inner_basis, k, size, h + k, N, P, TILE)
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
        tl.store(kept + group * n + k, new.to(tl.int8))
        tl.store(duplicate + group * n + k, same.to(tl.int8))
        tl.debug_barrier()
        k += 1


@triton.jit
def combine_rows(
    weights, rows, stride_group, stride_row, rough, pull, stride_pull, n, N, V: tl.constexpr,
    ROUGH: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """pull = feature * (weights @ rows), in float64 inside; rough: duplicates whose features are roughened by their noise."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < V
    k = tl.program_id(1) * TILE + tl.arange(0, TILE)
    group = tl.program_id(2).to(tl.int64)
    rows += group * stride_group
    total = tl.zeros([TILE, BLOCK], tl.float64)
    j = 0
    while j < N:
        weight = tl.load(weights + (group * n + k) * N + j, mask=k < n, other=0.0)
        total += weight[:, None] * tl.load(rows + j * stride_row + column, mask=inside, other=0.0).to(tl.float64)[None, :]
        j += 1
    cell = k.to(tl.int64)[:, None] * stride_row + column[None, :]
    valid = (k < n)[:, None] & inside[None, :]
    feature = tl.load(rows + cell, mask=valid, other=0.0).to(tl.float64)
    result = feature * total
    if ROUGH:
        draw = tl.load(rows + n * stride_row + cell, mask=valid, other=0.0).to(tl.float64)
        result += tl.load(rough + group * n + k, mask=k < n, other=0.0)[:, None] * draw * total
    place = (group * n + k)[:, None] * stride_pull + column[None, :]
    tl.store(pull + place, result.to(tl.float32), mask=valid)


@triton.jit
def sum_by_owner(
    rows, stride_group, stride_row, pull, stride_pull, owner, stride_owner, likeliest, table, sums,
    S, n, chunks, V: tl.constexpr, LENGTH: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums [sample, chunk, 4, S] over the columns that each row owns: of w, of v w and w^2 without protected columns, all three
    without the likeliest column, and w there.
    """
    sample = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * TILE + tl.arange(0, TILE)
    chunk = tl.program_id(2)
    feature = rows + (sample // n) * stride_group + (sample % n) * stride_row
    peak = tl.load(likeliest + sample * S + position, mask=position < S, other=-1)
    w_sum = tl.zeros([TILE, BLOCK], tl.float64)
    vw_sum = tl.zeros([TILE, BLOCK], tl.float64)
    ww_sum = tl.zeros([TILE, BLOCK], tl.float64)
    peak_sum = tl.zeros([TILE, BLOCK], tl.float64)
    for start in range(0, LENGTH, BLOCK):
        column = chunk * LENGTH + start + tl.arange(0, BLOCK)
        inside = column < V
        w = tl.load(pull + sample * stride_pull + column, mask=inside, other=0.0).to(tl.float64)
        v = tl.load(feature + column, mask=inside, other=0.0).to(tl.float64)
        who = tl.load(owner + sample * stride_owner + column, mask=inside, other=S).to(tl.int32)
        free = (tl.load(table + column, mask=inside, other=2).to(tl.int32) & PROTECTED) == 0
        w_free = tl.where(free, w, 0.0)
        mine = who[None, :] == position[:, None]
        likely = column[None, :] == peak[:, None]
        count = mine & (likely == 0)
        w_sum += tl.where(count, w[None, :], 0.0)
        vw_sum += tl.where(count, (v * w_free)[None, :], 0.0)
        ww_sum += tl.where(count, (w_free * w_free)[None, :], 0.0)
        peak_sum += tl.where(mine & likely, w[None, :], 0.0)
    out = sums + (sample * chunks + chunk) * 4 * S + position
    valid = position < S
    tl.store(out, tl.sum(w_sum, axis=1), mask=valid)
    tl.store(out + S, tl.sum(vw_sum, axis=1), mask=valid)
    tl.store(out + 2 * S, tl.sum(ww_sum, axis=1), mask=valid)
    tl.store(out + 3 * S, tl.sum(peak_sum, axis=1), mask=valid)


@triton.jit
def draw_tokens(
    logits, stride_sample, stride_position, opened, table,
    push_largest, push_likeliest, at_peak, even, force, pull, owner, stride_pull,
    keys, temperature,
    token, chosen, chosen_base, largest, rest, extra,
    S, V: tl.constexpr, PUSHED: tl.constexpr, HOT: tl.constexpr, NEEDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gumbel-max and softmax statistics of every open row; the pushed logits exist in registers only.

    NEEDS: 1 also the second largest logit, 2 also the sum of weight * depth for the entropy, in `extra`.
    """
    row = tl.program_id(0).to(tl.int64)
    if tl.load(opened + row) != 0:
        sample, position = row // S, (row % S).to(tl.int32)
        x_row = logits + sample * stride_sample + (row % S) * stride_position
        if PUSHED:
            a, b, c, d, e = row_of_push(row, sample, push_largest, push_likeliest, at_peak, even, force)
            pull_row, owner_row = pull + sample * stride_pull, owner + sample * stride_pull
        key = tl.load(keys + row)
        lane = tl.arange(0, BLOCK)
        score = tl.full([BLOCK], -float("inf"), tl.float32)
        pick = tl.full([BLOCK], V, tl.int32)
        value = tl.full([BLOCK], -float("inf"), tl.float32)
        base = tl.full([BLOCK], -float("inf"), tl.float32)
        top = tl.full([BLOCK], -float("inf"), tl.float32)
        sum1 = tl.full([BLOCK], 0.0, tl.float32)
        more = tl.full([BLOCK], -float("inf") if NEEDS == 1 else 0.0, tl.float32)
        for start in range(0, V, BLOCK):
            column = start + lane
            inside = column < V
            x, flags = load_logits(x_row, table, column, inside)
            y = x
            if PUSHED:
                y = pushed(x, flags, column, inside, position, a, b, c, d, e, pull_row, owner_row)
            noisy = y
            if HOT:
                noisy = y + temperature * gumbel(key, column)
            better = noisy > score
            score = tl.where(better, noisy, score)
            pick = tl.where(better, column, pick)
            value = tl.where(better, y, value)
            base = tl.where(better, x, base)
            up = y > top
            gap = tl.where(y == -float("inf"), -float("inf"), tl.where(up, top - y, y - top))
            weight = tl.exp(gap)
            if NEEDS == 1:
                more = tl.where(up, top, tl.maximum(more, y))
            if NEEDS == 2:
                depth = tl.where(weight == 0.0, 0.0, -gap)
                more = tl.where(up, weight * (more + depth * (sum1 + 1.0)), more + weight * depth)
            sum1 = tl.where(up, (sum1 + 1.0) * weight, sum1 + weight)
            top = tl.where(up, y, top)
        best = tl.max(score, axis=0)
        first = tl.min(tl.where(score == best, pick, V), axis=0)
        this = pick == first
        tl.store(token + row, tl.minimum(first, V - 1).to(tl.int64))
        tl.store(chosen + row, tl.max(tl.where(this, value, -float("inf")), axis=0))
        tl.store(chosen_base + row, tl.max(tl.where(this, base, -float("inf")), axis=0))

        peak = tl.max(top, axis=0)
        winner = tl.min(tl.where(top == peak, lane, BLOCK), axis=0)
        fall = tl.where(top == -float("inf"), 0.0, peak - top)
        weight = tl.where(top == -float("inf"), 0.0, tl.exp(-fall))
        others = tl.where(lane == winner, 0.0, weight)
        tl.store(largest + row, peak)
        tl.store(rest + row, tl.sum(sum1 * weight + others, axis=0))
        if NEEDS == 1:
            tl.store(extra + row, tl.max(tl.where(lane == winner, more, top), axis=0))
        if NEEDS == 2:
            tl.store(extra + row, tl.sum(weight * (more + fall * sum1) + others * fall, axis=0))


@triton.jit
def write_rows(
    logits, stride_sample, stride_position, masked, table,
    push_largest, push_likeliest, at_peak, even, force, pull, owner, stride_pull,
    guided, S, V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The pushed logits written out, for those who ask; `guided` [samples, S, V] contiguous holds the others already."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(masked + row) != 0:
        sample, position = row // S, (row % S).to(tl.int32)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < V
        a, b, c, d, e = row_of_push(row, sample, push_largest, push_likeliest, at_peak, even, force)
        x_row = logits + sample * stride_sample + (row % S) * stride_position
        x, flags = load_logits(x_row, table, column, inside)
        pull_row, owner_row = pull + sample * stride_pull, owner + sample * stride_pull
        x = pushed(x, flags, column, inside, position, a, b, c, d, e, pull_row, owner_row)
        tl.store(guided + row * V + column, x.to(guided.dtype.element_ty), mask=inside)

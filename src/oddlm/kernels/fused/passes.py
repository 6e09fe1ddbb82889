"""The GPU kernels that pass over the logits; `launch.py` launches them.

docs/kernels.md has the derivation. Rows are the positions of samples: row = sample * S + position.
Logits have M lines per sample, one for every position or (SOME) for each masked one, whose
`positions` [samples, M] are ascending. `table` holds one byte of NEVER and PROTECTED flags per
column. `busy` holds one byte per BUSY columns that says whether any flag is set there; few blocks
have one, so most skip the table. Sums run in a fixed order (no atomics), so that two runs give the
same bits. Loops over columns have constant bounds.
"""

import triton
import triton.language as tl

NEVER = tl.constexpr(1)  # never written: counts as -inf
PROTECTED = tl.constexpr(2)  # never pushed
BUSY = tl.constexpr(2048)
LOWEST = tl.constexpr(-3.0e38)  # below every logit, and finite: LOWEST - LOWEST is 0
GOLDEN = tl.constexpr(0x9E3779B9)
MIX_1 = tl.constexpr(0xED5AD4BB)
MIX_2 = tl.constexpr(0xAC4C1B51)
MIX_3 = tl.constexpr(0x31848BAB)
TAU = tl.constexpr(6.283185307179586)
LOG2_E = tl.constexpr(1.4426950408889634)
TOKEN = tl.constexpr(0)  # `noise.Purpose`
DIRECTION = tl.constexpr(3)


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
    """`noise._exponential`, with log1p by Kahan's correction for the rounding of w = 1 - u."""
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
def mix64(x):
    """`noise._mix64`."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def mixed(h, part):
    """One part of an address mixed into a key."""
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    return mix64(h * 3 + golden + tl.cast(part, tl.int64).to(tl.uint64, bitcast=True))


@triton.jit
def key_of(seed, sample, step, purpose: tl.constexpr, position):
    """`noise.key`: int64."""
    h = mixed(tl.full([], 0, tl.uint64), seed)
    h = mixed(mixed(mixed(mixed(h, sample), step), purpose), position)
    return h.to(tl.int64, bitcast=True)


@triton.jit
def exp(x):
    """`tl.exp` without denormal results, which become 0 here: three operations fewer."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def load_logits(x, column, inside):
    """Logits as float32, -inf outside."""
    return tl.load(x + column, mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def load_flags(table, column, inside):
    return tl.load(table + column, mask=inside, other=0).to(tl.int32)


@triton.jit
def pushed(x, column, inside, position, largest, likeliest, at_peak, even, force, pull, owner):
    """x' = x + f m P - f w [owned], with the exact value at the likeliest column.

    The caller takes care of protected columns.
    """
    mine = tl.load(owner + column, mask=inside, other=0).to(tl.int32) == position
    own = tl.load(pull + column, mask=inside, other=0.0)
    moved = x + exp(x - largest) * even - force * tl.where(mine, own, 0.0)
    return tl.where(column == likeliest, x - at_peak, moved)


@triton.jit
def row_of_push(row, sample, largest, likeliest, at_peak, even, force):
    """Load the five values of a row that `pushed` needs."""
    return (
        tl.load(largest + row),
        tl.load(likeliest + row),
        tl.load(at_peak + row),
        tl.load(even + row),
        tl.load(force + sample),
    )


@triton.jit
def push_free(
    x, column, inside, flags, row, sample, position,
    push_largest, push_likeliest, at_peak, even, force, pull, owner, stride_pull,
):  # fmt: skip
    """`pushed` of one row, or of one row per column, with protected columns unchanged."""
    row_largest, row_likeliest, row_at_peak, row_even, row_force = row_of_push(
        row, sample, push_largest, push_likeliest, at_peak, even, force
    )
    pull, owner = pull + sample * stride_pull, owner + sample * stride_pull
    moved = pushed(
        x, column, inside, position,
        row_largest, row_likeliest, row_at_peak, row_even, row_force, pull, owner,
    )  # fmt: skip
    return tl.where((flags & PROTECTED) != 0, x, moved)


@triton.jit
def whose(line, positions, M, SOME: tl.constexpr):
    """Return the sample and position of a line."""
    position = tl.load(positions + line) if SOME else line % M
    return line // M, position.to(tl.int32)


@triton.jit
def peak_or_nan(largest, rest):
    """The largest logit, or NaN if the row has one, which shows in the sum of the others."""
    largest = tl.where(largest > LOWEST, largest, -float("inf"))
    return tl.where(
        (rest < float("inf")) | (tl.abs(largest) == float("inf")), largest, float("nan")
    )


@triton.jit(do_not_specialize=["M"])
def measure_rows(
    logits, stride_sample, stride_line, positions, masked, table, busy, protected, protected_count,
    push_largest, push_likeliest, at_peak, even, force, pull, owner, stride_pull,
    largest, likeliest, rest, power, share_log,
    S, M, V: tl.constexpr, SOME: tl.constexpr, PUSHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Softmax statistics of every masked row, in one pass.

    Each lane keeps its own maximum and leaves it out of its sums. Protected columns come last, one
    by one, since they count in one sum and not in the other.
    """
    line = tl.program_id(0).to(tl.int64)
    sample, position = whose(line, positions, M, SOME)
    row = sample * S + position
    if tl.load(masked + row) != 0:
        x_row = logits + sample * stride_sample + (line % M) * stride_line
        if PUSHED:
            row_largest, row_likeliest, row_at_peak, row_even, row_force = row_of_push(
                row, sample, push_largest, push_likeliest, at_peak, even, force
            )
            pull_row, owner_row = pull + sample * stride_pull, owner + sample * stride_pull
        lane = tl.arange(0, BLOCK)
        top = tl.full([BLOCK], LOWEST, tl.float32)
        where = tl.full([BLOCK], V, tl.int32)
        sum1 = tl.full([BLOCK], 0.0, tl.float32)
        sum2 = tl.full([BLOCK], 0.0, tl.float32)
        for start in range(0, V, BLOCK):
            column = start + lane
            inside = column < V
            x = load_logits(x_row, column, inside)
            if PUSHED:
                x = pushed(
                    x, column, inside, position,
                    row_largest, row_likeliest, row_at_peak, row_even, row_force,
                    pull_row, owner_row,
                )  # fmt: skip
            if tl.load(busy + start // BUSY) != 0:
                x = tl.where(load_flags(table, column, inside) != 0, -float("inf"), x)
            up = x > top
            weight = exp(-tl.abs(x - top))
            scale = tl.where(up, weight, 1.0)
            sum1 = sum1 * scale + weight  # (sum + 1) * weight, or sum + weight
            sum2 = sum2 * (scale * scale) + weight * weight
            where = tl.where(up, column, where)
            top = tl.where(up, x, top)
        best = tl.max(top, axis=0)
        first = tl.min(tl.where(top == best, where, V), axis=0)
        weight = tl.exp(top - best)
        others = tl.where(where == first, 0.0, weight)  # the likeliest column itself stays out
        others = tl.where(top == LOWEST, 0.0, others)
        total = tl.sum(sum1 * weight + others, axis=0)
        squares = tl.sum(sum2 * weight * weight + others * others, axis=0)
        free = tl.where(best > LOWEST, 1.0, 0.0)  # 1 if the likeliest so far may be pushed
        i = 0
        while i < protected_count:
            extra = tl.load(protected + i)
            value = tl.load(x_row + extra).to(tl.float32)
            above = (value > best) | ((value == best) & (extra < first))
            fade = tl.exp(-tl.abs(value - best))
            total = tl.where(above, total * fade + tl.where(best > LOWEST, fade, 0.0), total + fade)
            squares = tl.where(above, (squares + free) * fade * fade, squares)
            free = tl.where(above, 0.0, free)
            first = tl.where(above, extra, first)
            best = tl.where(above, value, best)
            i += 1
        tl.store(largest + row, peak_or_nan(best, total))
        tl.store(likeliest + row, tl.minimum(first, V - 1))
        tl.store(rest + row, total)
        tl.store(share_log + row, -tl.log(1.0 + total))
        tl.store(power + row, squares / ((1.0 + total) * (1.0 + total)))


@triton.jit(do_not_specialize=["first_sample", "step"])
def pool_columns(
    logits, stride_sample, stride_line, order, counts, table,
    push_largest, push_likeliest, at_peak, even, force, pull, push_owner, stride_pull,
    largest, rest, share_log, seeds, first_sample, step,
    rows, stride_group, stride_row, owner, W,
    S, n, V: tl.constexpr, SOME: tl.constexpr, PUSHED: tl.constexpr, BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute features and draws: the largest probability of each column over the masked rows.

    Also writes the row that owns it, and the probability times noise; columns from V on are zero.
    On entry, `owner` [samples, W] holds S where a committed token owns the column. Rows are
    compared by log-probability, which needs no exponential; the winner's is then computed exactly.
    """
    sample = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < V
    flags = load_flags(table, column, inside)
    count = tl.load(counts + sample)
    x_sample, order_sample = logits + sample * stride_sample, order + sample * S
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    rank = tl.full([BLOCK], -1, tl.int32)
    i = 0
    while i < count:
        for j in tl.static_range(UNROLL):
            valid = i + j < count
            position = tl.load(order_sample + i + j, mask=valid, other=0)
            row = sample * S + position
            line = tl.cast(i + j, tl.int64) if SOME else position
            x = load_logits(x_sample + line * stride_line, column, inside & valid)
            if PUSHED:
                x = push_free(
                    x, column, inside & valid, flags, row, sample, position, push_largest,
                    push_likeliest, at_peak, even, force, pull, push_owner, stride_pull,
                )  # fmt: skip
            x = (
                x
                - tl.load(largest + row, mask=valid, other=0.0)
                + tl.load(share_log + row, mask=valid, other=0.0)
            )
            more = x > best  # never where not valid: -inf
            best = tl.where(more, x, best)
            rank = tl.where(more, i + j, rank)
        i += UNROLL
    found = inside & (rank >= 0)
    who = tl.load(order_sample + rank, mask=found, other=0)
    row = sample * S + who
    x = load_logits(x_sample + (rank.to(tl.int64) if SOME else who) * stride_line, column, found)
    if PUSHED:
        x = push_free(
            x, column, found, flags, row, sample, who,
            push_largest, push_likeliest, at_peak, even, force, pull, push_owner, stride_pull,
        )  # fmt: skip
    share = tl.exp(x - tl.load(largest + row, mask=found, other=0.0)) / (
        1.0 + tl.load(rest + row, mask=found, other=0.0)
    )
    share = tl.where(found & ((flags & NEVER) == 0), share, 0.0)
    held = tl.load(owner + sample * W + column, mask=inside, other=0).to(tl.int32) == S
    share = tl.where(held, 1.0, share)
    tl.store(owner + sample * W + column, tl.where(held, S, who.to(tl.int32)), mask=inside)
    feature = rows + (sample // n) * stride_group + (sample % n) * stride_row
    tl.store(feature + column, share, mask=column < W)
    key = key_of(tl.load(seeds + sample // n), first_sample + sample % n, step, DIRECTION, 0)
    # `noise.second_keys`
    second_key = mix64((key + 1).to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)
    tl.store(
        feature + n * stride_row + column, share * normal(key, second_key, column), mask=column < W
    )


@triton.jit(do_not_specialize=["n", "first_sample", "step", "M"])
def draw_tokens(
    logits, stride_sample, stride_line, positions, opened, table, busy,
    push_largest, push_likeliest, at_peak, even, force, pull, owner, stride_pull, push_rest,
    seeds, n, first_sample, step, temperature,
    token, confidence, logprob, base_logprob, extra, largest,
    S, M, V: tl.constexpr, SOME: tl.constexpr, PUSHED: tl.constexpr, HOT: tl.constexpr,
    NEEDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw a token at every open row by Gumbel-max, with its probability.

    The pushed logits exist in registers only. `extra` is the margin between the two likeliest
    tokens if NEEDS is 1, and the entropy if it is 2.
    """
    line = tl.program_id(0).to(tl.int64)
    sample, position = whose(line, positions, M, SOME)
    row = sample * S + position
    if tl.load(opened + row) != 0:
        x_row = logits + sample * stride_sample + (line % M) * stride_line
        if PUSHED:
            row_largest, row_likeliest, row_at_peak, row_even, row_force = row_of_push(
                row, sample, push_largest, push_likeliest, at_peak, even, force
            )
            pull_row, owner_row = pull + sample * stride_pull, owner + sample * stride_pull
        key = key_of(tl.load(seeds + sample // n), first_sample + sample % n, step, TOKEN, position)
        lane = tl.arange(0, BLOCK)
        score = tl.full([BLOCK], -float("inf"), tl.float32)
        pick = tl.full([BLOCK], V, tl.int32)
        value = tl.full([BLOCK], -float("inf"), tl.float32)
        base = tl.full([BLOCK], -float("inf"), tl.float32)
        top = tl.full([BLOCK], LOWEST, tl.float32)
        sum1 = tl.full([BLOCK], 0.0, tl.float32)
        more = tl.full([BLOCK], LOWEST if NEEDS == 1 else 0.0, tl.float32)
        for start in range(0, V, BLOCK):
            column = start + lane
            inside = column < V
            x = load_logits(x_row, column, inside)
            y = x
            if PUSHED:
                y = pushed(
                    x, column, inside, position,
                    row_largest, row_likeliest, row_at_peak, row_even, row_force,
                    pull_row, owner_row,
                )  # fmt: skip
            if tl.load(busy + start // BUSY) != 0:
                flags = load_flags(table, column, inside)
                y = tl.where((flags & PROTECTED) != 0, x, y)
                y = tl.where((flags & NEVER) != 0, -float("inf"), y)
            noisy = y
            if HOT:
                noisy = y + temperature * gumbel(key, column)
            better = noisy > score
            score = tl.where(better, noisy, score)
            pick = tl.where(better, column, pick)
            if PUSHED:
                base = tl.where(better, x, base)
            if HOT or PUSHED:
                value = tl.where(better, y, value)
            up = y > top
            gap = tl.abs(y - top)
            weight = exp(-gap)
            if NEEDS == 1:
                more = tl.where(up, top, tl.maximum(more, y))
            if NEEDS == 2:
                depth = tl.where(weight == 0.0, 0.0, gap)
                more = tl.where(up, weight * (more + depth * (sum1 + 1.0)), more + weight * depth)
            sum1 = sum1 * tl.where(up, weight, 1.0) + weight
            top = tl.where(up, y, top)
        best = tl.max(score, axis=0)
        first = tl.min(tl.where(score == best, pick, V), axis=0)
        this = pick == first
        if not (HOT or PUSHED):
            value = score
        tl.store(token + row, tl.minimum(first, V - 1).to(tl.int64))

        peak = tl.max(top, axis=0)
        winner = tl.min(tl.where(top == peak, lane, BLOCK), axis=0)
        fall = peak - top
        weight = tl.exp(-fall)
        others = tl.where((lane == winner) | (top == LOWEST), 0.0, weight)
        rest = tl.sum(sum1 * weight + others, axis=0)
        total = 1.0 + rest.to(tl.float64)
        chosen = (tl.max(tl.where(this, value, -float("inf")), axis=0) - peak).to(tl.float64)
        after = chosen - tl.log(total)
        tl.store(largest + row, peak_or_nan(peak, rest))
        tl.store(confidence + row, tl.exp(chosen) / total)
        tl.store(logprob + row, after)
        if PUSHED:
            chosen_base = (tl.max(tl.where(this, base, -float("inf")), axis=0) - row_largest).to(
                tl.float64
            )
            tl.store(
                base_logprob + row,
                chosen_base - tl.log(1.0 + tl.load(push_rest + row).to(tl.float64)),
            )
        else:
            tl.store(base_logprob + row, after)
        if NEEDS == 1:
            second = tl.max(tl.where(lane == winner, more, top), axis=0)
            tl.store(extra + row, (1.0 - tl.exp((second - peak).to(tl.float64))) / total)
        if NEEDS == 2:
            depth = tl.where(weight == 0.0, 0.0, fall)
            depths = tl.sum(weight * (more + depth * sum1) + others * depth, axis=0)
            tl.store(extra + row, tl.log(total) + depths.to(tl.float64) / total)


@triton.jit
def write_rows(
    logits, stride_sample, stride_position, masked, table,
    push_largest, push_likeliest, at_peak, even, force, pull, owner, stride_pull,
    out, S, V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the logits [samples, S, V], those of masked rows pushed."""
    row = tl.program_id(0).to(tl.int64)
    sample, position = row // S, (row % S).to(tl.int32)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < V
    x = load_logits(logits + sample * stride_sample + (row % S) * stride_position, column, inside)
    if tl.load(masked + row) != 0:
        flags = load_flags(table, column, inside)
        x = push_free(
            x, column, inside, flags, row, sample, position,
            push_largest, push_likeliest, at_peak, even, force, pull, owner, stride_pull,
        )  # fmt: skip
    tl.store(out + row * V + column, x.to(out.dtype.element_ty), mask=inside)

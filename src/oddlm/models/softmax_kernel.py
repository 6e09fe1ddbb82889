"""The GPU kernel of `fused_softmax`."""

import triton
import triton.language as tl


@triton.jit
def load_scores(
    column, first, second, third, size_1, size_2, size_3, seen, scale, MASKED: tl.constexpr
):
    """The scaled products of a query with some keys; -inf where hidden, and beyond the last."""
    lowest = -float("inf")
    x = tl.load(first + column, mask=column < size_1, other=lowest).to(tl.float32)
    at = column - size_1
    y = tl.load(second + at, mask=(at >= 0) & (at < size_2), other=lowest).to(tl.float32)
    x = tl.where(at < 0, x, y)
    at = at - size_2
    y = tl.load(third + at, mask=(at >= 0) & (at < size_3), other=lowest).to(tl.float32)
    x = tl.where(at < 0, x, y) * scale
    if MASKED:
        shown = tl.load(seen + column, mask=at < size_3, other=0)
        x = tl.where(shown != 0, x, lowest)
    return x


SIZES = ("size_1", "size_2", "size_3", "total", "heads", "rows", "queries")


@triton.jit(do_not_specialize=SIZES)
def softmax_rows(
    first, second, third,
    sample_1, head_1, row_1, sample_2, head_2, row_2, sample_3, head_3, row_3,
    size_1, size_2, size_3,
    mask, mask_sample, mask_query, weights, heads, rows, queries, total, scale,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the weights of one query: a pass for maximum and sum, and another for the result."""
    line = tl.program_id(0).to(tl.int64)
    sample, head, row = line // (heads * rows), line // rows % heads, line % rows
    first += sample * sample_1 + head * head_1 + row * row_1
    second += sample * sample_2 + head * head_2 + row * row_2
    third += sample * sample_3 + head * head_3 + row * row_3
    seen = mask + sample * mask_sample + (row % queries) * mask_query
    weights += line * total
    lane = tl.arange(0, BLOCK)
    top = tl.full([], -float("inf"), tl.float32)
    added = tl.full([], 0.0, tl.float32)
    start = 0
    while start < total:
        x = load_scores(
            start + lane, first, second, third, size_1, size_2, size_3, seen, scale, MASKED
        )
        higher = tl.maximum(top, tl.max(x, axis=0))
        here = tl.where(x == -float("inf"), 0.0, tl.exp(x - higher))
        before = tl.where(top == -float("inf"), 0.0, added * tl.exp(top - higher))
        added = before + tl.sum(here, axis=0)
        top = higher
        start += BLOCK
    start = 0
    while start < total:
        column = start + lane
        x = load_scores(column, first, second, third, size_1, size_2, size_3, seen, scale, MASKED)
        share = tl.exp(x - top) / added
        tl.store(weights + column, share.to(weights.dtype.element_ty), mask=column < total)
        start += BLOCK

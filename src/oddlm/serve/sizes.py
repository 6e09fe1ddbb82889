"""The sizes of passes: which widths and numbers of rows, and which of these keep the bits.

Arithmetic depends on shapes: more padding or a larger batch can change the last bits of the logits,
and a last bit can change a token. So every shape is a function of the request alone, except for the
number of rows of a pass, which is one of a few sizes. The smallest size is the reference. A larger
one is used at a shape only after a test has shown that it gives the same bits there; these tests
run while the server is idle.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.model import ModelInfo, Query

SIZES = (4, 8, 16)  # rows of a pass: 4 for a single request; CPUs gain nothing beyond 16
SHAPES = 4096  # at most this many shapes are remembered
# If the smallest pass takes longer than this, larger ones gain nothing, and testing them could
# delay a request.
LONG_S = 0.25


class Shape(NamedTuple):
    """The shape that queries in one pass have in common."""

    start: int
    length: int

    @property
    def width(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a query, padded to a shape."""

    tokens: Tensor  # [R, width]
    lengths: Tensor  # [R]: real tokens before shape.start
    nudge: Tensor | None  # [R, shape.start, H]

    @classmethod
    def lay(cls, query: Query, shape: Shape, pad_id: int) -> "Rows":
        left = shape.width - query.tokens.shape[1]
        right = shape.start - left - query.start  # written tokens that count as prompt
        nudge = None if query.nudge is None else F.pad(query.nudge, (0, 0, left, right))
        return cls(
            F.pad(query.tokens, (left, 0), value=pad_id), query.prompt_lengths + right, nudge
        )

    @classmethod
    def join(cls, parts: "Sequence[Rows]") -> "Rows":
        """Concatenate; if some rows have a nudge, the others get one of zeros."""
        tokens = torch.cat([part.tokens for part in parts])
        lengths = torch.cat([part.lengths for part in parts])
        some = next((part.nudge for part in parts if part.nudge is not None), None)
        if some is None:
            return cls(tokens, lengths, None)
        zeros = [some.new_zeros(1).expand(len(part.tokens), *some.shape[1:]) for part in parts]
        nudges = [z if p.nudge is None else p.nudge for p, z in zip(parts, zeros, strict=True)]
        return cls(tokens, lengths, torch.cat(nudges))

    def take(self, first: int, size: int) -> "Rows":
        """Return `size` rows from `first` on, repeating the last row if there are too few."""
        rows = torch.arange(first, first + size, device=self.tokens.device).clamp(
            max=len(self.tokens) - 1
        )
        return Rows(
            self.tokens[rows], self.lengths[rows], None if self.nudge is None else self.nudge[rows]
        )


def width_class(width: int) -> int:
    """Return the width that a canvas or prompt is padded to.

    It is the next multiple of 4, or of about an eighth of the width if that is larger.
    """
    step = max(4, 1 << max(0, width.bit_length() - 4))
    return -(-width // step) * step


def split_rows(rows: int, sizes: Sequence[int], workers: int = 1) -> list[int]:
    """Return the sizes of the passes for `rows` rows: large ones first, the smallest for the rest.

    Only sizes of which every worker gets a full pass are used, or else the smallest size.
    """
    sizes = sorted(sizes)
    sizes = [size for size in sizes if size * workers <= rows] or sizes[:1]
    passes, rest = [], rows
    for size in reversed(sizes):
        passes += [size] * (rest // size)
        rest %= size
    return passes + sizes[:1] * (rest > 0)


class Sizes:
    """The sizes of passes that may be used at each shape."""

    def __init__(
        self,
        sizes: Sequence[int],
        info: ModelInfo,
        compute: Callable[[Rows, Shape], Tensor],
        foreseen: Iterator[Shape],
    ) -> None:
        """Begin with the smallest size for all shapes.

        compute: runs a pass, to test its size.
        foreseen: shapes that may come, tested after those that were seen.
        """
        self.all = tuple(sorted(set(sizes)))
        self.tried = 0  # passes to test sizes
        self.pad_id = 0 if info.mask_id is None else info.mask_id
        self._info, self._compute, self._foreseen = info, compute, foreseen
        self._exact: dict[Shape, tuple[int, ...]] = {}
        self._seen: deque[Shape] = deque()  # shapes of requests are tested first
        self._trial: Iterator[None] | None = None
        self._widest: int | None = None  # no test at this width or beyond: it takes too long
        self.untried = len(self.all) > 1  # whether some size remains to be tested

    def exact(self, shape: Shape) -> tuple[int, ...]:
        """Return the sizes of passes known to be exact at this shape."""
        return self._exact.get(shape, self.all[:1])

    def note(self, shape: Shape) -> None:
        """Note that requests use this shape, so its sizes are to be tested."""
        if (
            shape not in self._exact
            and shape not in self._seen
            and len(self._seen) + len(self._exact) < SHAPES
        ):
            self._seen.append(shape)
            self.untried = len(self.all) > 1

    def try_one(self) -> None:
        """Run one pass that tests a size."""
        while self.untried:
            if self._trial is None:
                if (shape := self._next_shape()) is None:
                    self.untried = False
                    return
                self._trial = self._try(shape)
            try:
                next(self._trial)
            except StopIteration:
                self._trial = None
            else:
                return

    def _next_shape(self) -> Shape | None:
        while (
            shape := self._seen.popleft() if self._seen else next(self._foreseen, None)
        ) in self._exact:
            pass
        return shape

    def _try(self, shape: Shape) -> Iterator[None]:
        """Find the sizes that give the same bits as the smallest, on random tokens.

        Yields after every pass.
        """
        small, large = self.all[0], self.all[-1]
        self._exact[shape] = self.all[:1]
        if self._widest is not None and shape.width >= self._widest:
            return
        rows = _random_rows(shape, large, self._info, self.pad_id)
        bits, times = [], []
        try:
            for first in range(0, large, small):
                began = time.perf_counter()
                bits.append(self._tried(rows.take(first, small), shape))
                times.append(time.perf_counter() - began)
                yield
            if min(times) > LONG_S:  # the minimum, as the first pass of a shape may compile
                self._widest = shape.width
                return
            reference = torch.cat(bits)[:large]
            for size in self.all[1:]:
                if torch.equal(
                    self._tried(rows.take(large - size, size), shape), reference[large - size :]
                ):
                    self._exact[shape] += (size,)
                yield
        except Exception:  # e.g. out of memory: keep the sizes found so far
            self._widest = shape.width

    def _tried(self, rows: Rows, shape: Shape) -> Tensor:
        self.tried += 1
        found = self._compute(rows, shape)
        if found.is_cuda:
            torch.cuda.synchronize(found.device)
        return found


def _random_rows(shape: Shape, count: int, info: ModelInfo, pad_id: int) -> Rows:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(info.vocab_size, (count, shape.width), generator=generator)
    tokens[:, shape.start if shape.length else shape.width // 2 :] = pad_id
    lengths = torch.randint(
        max(1, shape.start // 2), max(1, shape.start) + 1, (count,), generator=generator
    )
    return Rows(tokens.to(info.device), lengths.clamp(max=shape.start).to(info.device), None)

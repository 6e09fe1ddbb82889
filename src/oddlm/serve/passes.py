"""Network passes that several requests share, without one request changing another's answer.

Arithmetic depends on shapes: a prompt padded further, or a larger batch, can change the last bits of the logits, and a last bit
can change a token. So the width of a pass is a function of the request alone, and every pass has one of a few fixed numbers of
rows, those that were seen to give the same bits at this width.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..types import Model

SIZES = (4, 8, 16)  # rows of a pass: small ones for requests alone; CPUs gain nothing beyond the largest
SHAPES = 4096  # as many shapes are remembered


@dataclass(frozen=True, slots=True)
class Call:
    """What a sampler asks of the network."""

    tokens: Tensor  # [B, T]
    start: int
    prompt_lengths: Tensor  # [B]

    @property
    def shape(self) -> tuple[int, int]:
        """(prompt, answer): calls of the same shape can share a pass."""
        return self.start, self.tokens.shape[1] - self.start


def prompt_class(start: int) -> int:
    """The width that a prompt is padded to: the next multiple of 4, or of about an eighth of itself."""
    step = max(4, 1 << max(0, start.bit_length() - 4))
    return -(-start // step) * step


def widen(call: Call, pad_id: int, context: int | None) -> Call:
    """The call at the width of its class; what fills the padding is never read."""
    length = call.tokens.shape[1] - call.start
    start = prompt_class(call.start)
    if context is not None:
        start = max(call.start, min(start, context - length))
    padding = call.tokens.new_full((len(call.tokens), start - call.start), pad_id)
    return Call(torch.cat([padding, call.tokens], dim=1), start, call.prompt_lengths)


def split_rows(rows: int, sizes: Sequence[int], workers: int = 1) -> list[int]:
    """Passes for so many rows: large ones while they fill, then the smallest that holds the rest; some for every worker."""
    sizes = sorted(sizes)
    sizes = [size for size in sizes if size * workers <= rows] or sizes[:1]
    passes, rest = [], rows
    for size in reversed(sizes):
        passes += [size] * (rest // size)
        rest %= size
    return passes + sizes[:1] * (rest > 0)


class SharedPasses:
    """The network, for many calls at a time, in passes of which `workers` run side by side."""

    def __init__(self, model: Model, sizes: Sequence[int] = SIZES, workers: int = 1) -> None:
        self.model, self.sizes, self.workers = model, tuple(sorted(set(sizes))), workers
        self.exact_sizes = lru_cache(SHAPES)(self._exact_sizes)
        self.count = 0
        self._pool = ThreadPoolExecutor(workers, "oddlm-pass")

    def __call__(self, calls: Sequence[Call]) -> list[Tensor | Exception]:
        """The logits of each call, or why there are none; calls of the same shape share passes."""
        shapes: dict[tuple[int, int], list[int]] = {}
        for i, call in enumerate(calls):
            shapes.setdefault(call.shape, []).append(i)
        begun = [(members, self._begin([calls[i] for i in members])) for members in shapes.values()]
        found: dict[int, Tensor | Exception] = {}
        for members, passes in begun:
            try:
                logits = torch.cat([one.result() for one in passes])
            except Exception as error:  # the network's: it concerns these calls alone
                found |= dict.fromkeys(members, error)
                continue
            found |= zip(members, logits.split([len(calls[i].tokens) for i in members]), strict=True)
        return [found[i] for i in range(len(calls))]

    def close(self) -> None:
        self._pool.shutdown()

    def _begin(self, calls: Sequence[Call]) -> "list[Future[Tensor]]":
        """The passes of one shape, under way."""
        start, length = calls[0].shape
        tokens = torch.cat([call.tokens for call in calls])
        lengths = torch.cat([call.prompt_lengths for call in calls])
        try:
            sizes = self.exact_sizes(start, length)
        except Exception as error:
            failed: Future[Tensor] = Future()
            failed.set_exception(error)
            return [failed]
        passes, first = [], 0
        for size in split_rows(len(tokens), sizes, self.workers):
            some = slice(first, first + size)
            passes.append(self._pool.submit(self._forward, tokens[some], start, lengths[some], size))
            first += size
        self.count += len(passes)
        return passes

    @torch.no_grad()
    def _forward(self, tokens: Tensor, start: int, lengths: Tensor, size: int) -> Tensor:
        """A pass of exactly `size` rows; the last row is repeated where some are missing."""
        rows = torch.arange(size, device=tokens.device).clamp(max=len(tokens) - 1)
        return self.model(tokens[rows], start, lengths[rows])[: len(tokens)]

    def _exact_sizes(self, start: int, length: int) -> tuple[int, ...]:
        """The sizes that give the bits of the largest at this shape, tried on random tokens."""
        largest = self.sizes[-1]
        generator = torch.Generator().manual_seed(0)
        device = torch.device(getattr(self.model, "device", "cpu"))
        tokens = torch.randint(self.model.vocab_size, (largest, start + length), generator=generator).to(device)
        tokens[:, start:] = self.model.mask_id
        lengths = torch.randint(max(1, start // 2), start + 1, (largest,), generator=generator).to(device)
        passes = {size: self._pool.submit(self._forward, tokens[-size:], start, lengths[-size:], size) for size in self.sizes}
        bits = passes[largest].result()
        return tuple(size for size, one in passes.items() if torch.equal(one.result(), bits[-size:]))

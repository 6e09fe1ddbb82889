"""Counter-based randomness: every number is a pure function of its address, without a generator.

The address of a row (seed, sample, step, purpose, position) is hashed to a 64-bit key with the
splitmix64 finaliser. Within a row, a keyed 32-bit mixer (the `triple32` constants, Wellons 2018)
turns a token id into bits. Both use plain wrapping integer arithmetic, so CPU and GPU give the same
bits.
"""

import operator
from collections.abc import Sequence
from enum import IntEnum
from math import tau

import torch
from torch import Tensor

# [rows, V] temporaries stay below this many elements; callers process rows in tiles.
TILE_ELEMENTS = 1 << 22


class Purpose(IntEnum):
    """What a number is drawn for; two purposes never share a stream."""

    TOKEN = 0  # Gumbel noise on logits
    ORDER = 1  # order_temperature
    POLICY = 2  # a policy's own randomness
    DIRECTION = 3  # directions for broken duplicates and probes
    PROMPT = 4  # prompt_noise
    FORK = 5  # fork_temperature
    REDUCTION = 6  # random projection of a feature to fewer dimensions
    SKETCH = 7  # a feature's n-grams
    CANVAS = 8  # the random tokens of a uniform process
    REMASK = 9  # which tokens are remasked
    SEED = 10  # the seeds of later canvases of an answer
    HIDE = 11  # which tokens of a finished answer are hidden


def tile_elements(device: torch.device, on_cpu: int | None = None) -> int:
    """Return the size of a tile: a GPU needs larger ones than fit a CPU's caches."""
    elements = TILE_ELEMENTS if on_cpu is None else on_cpu
    return 8 * elements if device.type == "cuda" else elements


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


_GOLDEN64 = _signed(0x9E3779B97F4A7C15, 64)
_SPLITMIX = (_signed(0xBF58476D1CE4E5B9, 64), _signed(0x94D049BB133111EB, 64))
_GOLDEN32 = _signed(0x9E3779B9, 32)
_TRIPLE32 = (
    (17, _signed(0xED5AD4BB, 32)),
    (11, _signed(0xAC4C1B51, 32)),
    (15, _signed(0x31848BAB, 32)),
)


def _mix64(x: Tensor) -> Tensor:
    for shift, factor in zip((30, 27), _SPLITMIX, strict=True):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def key(
    seed: Tensor, sample: Tensor | int, step: int, purpose: Purpose, position: Tensor | int = 0
) -> Tensor:
    """Hash an address to an int64 key; tensor arguments broadcast."""
    h = _mix64(seed.to(torch.int64) + _GOLDEN64)
    for part in (sample, step, int(purpose), position):
        # A plain integer stays one: sending it to the device as a tensor would wait for it.
        shift = (
            part.to(torch.int64) + _GOLDEN64
            if isinstance(part, Tensor)
            else _signed(part + _GOLDEN64, 64)
        )
        h = _mix64(h * 3 + shift)
    return h


def seed_tensor(seed: int | Sequence[int], groups: int, device: torch.device) -> Tensor:
    """Return one seed per group, [G] int64, as given or derived from a single seed.

    The first group uses a single seed itself, so a prompt gets the same samples alone. Of larger
    integers the low 64 bits count.
    """
    if not isinstance(seed, Sequence):
        first = torch.tensor([_signed(_integer(seed), 64)])
        others = _mix64(first * 3 + _GOLDEN64 * torch.arange(1, groups))
        return torch.cat([first, others]).to(device)
    if len(seed) != groups:
        raise ValueError(
            f"seed must be one integer or one per group: got {len(seed)} for {groups} groups"
        )
    return torch.tensor([_signed(_integer(s), 64) for s in seed], device=device)


def _integer(seed: int) -> int:
    try:
        return operator.index(seed)
    except TypeError:
        raise ValueError(f"seed must be an integer, or one per group, not {seed!r}") from None


def _bits(keys: Tensor, size: int) -> Tensor:
    """Expand keys [...] to int32 [..., size], uniform over 32 bits."""
    low = keys.to(torch.int32)[..., None]
    high = (keys >> 32).to(torch.int32)[..., None]
    x = torch.arange(size, dtype=torch.int32, device=keys.device) * _GOLDEN32 + low
    for shift, factor in _TRIPLE32:
        x ^= (x >> shift).bitwise_and_((1 << (32 - shift)) - 1)
        x *= factor
        x ^= high
    return x.bitwise_xor_((x >> 14).bitwise_and_((1 << 18) - 1))


def _exponential(keys: Tensor, size: int) -> Tensor:
    """Standard exponential noise, float32, precise near 0, where the largest Gumbels come from."""
    uniform = (_bits(keys, size) >> 1).bitwise_and_(0x7FFFFFFF).to(torch.float32)
    uniform.add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def uniform(keys: Tensor, size: int) -> Tensor:
    """Uniform in (0, 1), float64 [..., size]."""
    return (_bits(keys, size) >> 1).bitwise_and_(0x7FFFFFFF).double().add_(0.5).mul_(2.0**-31)


def gumbel(keys: Tensor, size: int) -> Tensor:
    """Standard Gumbel noise, float32 [..., size]."""
    return _exponential(keys, size).log_().neg_()


def signs(keys: Tensor, size: int) -> Tensor:
    """+1 or -1, float32 [..., size]."""
    return (_bits(keys, size) >> 31).mul_(2).add_(1).to(torch.float32)


def second_keys(keys: Tensor) -> Tensor:
    """Return the keys of a second, independent stream."""
    return _mix64(keys + 1)


def normal(keys: Tensor, size: int) -> Tensor:
    """Standard normal noise, float32 [..., size] (Box-Muller)."""
    radius = _exponential(keys, size).mul_(2).sqrt_()
    bits = (_bits(second_keys(keys), size) >> 1).bitwise_and_(0x7FFFFFFF)
    angle = bits.to(torch.float32).mul_(tau * 2.0**-31)
    return radius.mul_(angle.cos_())

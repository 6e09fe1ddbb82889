"""Placement of a network on several devices.

Blocks are placed in order, with the embedding before the first and the head after the last. Logits
are computed on the last device, and the sampler works there, so only hidden states move between
devices. `Transformer.hidden_states` moves them to the device of each block.

A loader calls `place` once, then `home` for every parameter.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

import torch

from ..transformer import TransformerConfig
from .quant import QUANTIZATIONS, Footprint, footprint

SPARE = 0.1  # share of a device's free memory left for activations and logits

Placement = Mapping[str, torch.device]  # embed, blocks.0, ..., norm, head -> device


def place(
    config: TransformerConfig,
    device_map: str,
    *,
    quantize: str | None = None,
    dtype: torch.dtype = torch.bfloat16,
    room: Mapping[str, int] | None = None,
) -> Placement:
    """Spread a network over devices so that the fullest device is as empty as possible.

    room: bytes available for weights on each device; default: most of the free memory of every
        visible GPU.
    """
    if device_map != "auto":
        raise ValueError(f"device_map must be 'auto' or None, not {device_map!r}")
    room = free_memory() if room is None else room
    if not room:
        raise ValueError(
            "device_map='auto' needs a GPU, and none is visible to torch: use device='cpu'"
        )
    size, budget = footprint(config, quantize, dtype), list(room.values())
    counts = spread(size, budget, tied=config.tied)
    if not _fit(size, counts, budget, tied=config.tied):
        raise ValueError(
            _shortage(config, quantize, dtype, room, loads(size, counts, tied=config.tied))
        )
    devices = [torch.device(name) for name in room]
    homes = [device for device, count in zip(devices, counts, strict=True) for _ in range(count)]
    blocks = {f"blocks.{i}": device for i, device in enumerate(homes)}
    return {
        "embed": devices[-1 if config.tied else 0],
        **blocks,
        "norm": devices[-1],
        "head": devices[-1],
    }


def home(placement: Placement, parameter: str) -> torch.device:
    """Return the device of a parameter, given its name in the network."""
    parts = parameter.split(".")
    return placement[".".join(parts[:2]) if parts[0] == "blocks" else parts[0]]


def free_memory() -> dict[str, int]:
    free = {f"cuda:{i}": torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())}
    return {name: int(have * (1 - SPARE)) for name, have in free.items()}


def spread(size: Footprint, room: Sequence[int], *, tied: bool) -> list[int]:
    """Return the number of blocks per device that minimises the largest filled share."""
    fixed = loads(size, [0] * len(room), tied=tied)
    pairs = [(own, max(have, 1)) for own, have in zip(fixed, room, strict=True)]
    until = [0, *accumulate(size.blocks)]
    runs = {until[stop] - until[start] for stop in range(len(until)) for start in range(stop + 1)}
    shares = sorted({Fraction(own + run, have) for own, have in pairs for run in runs})
    # if a share suffices, so does every larger one
    enough = bisect_left(
        shares, True, key=lambda share: sum(_filled(size, share, pairs)) == len(size.blocks)
    )
    return _filled(size, shares[enough], pairs)


def _filled(size: Footprint, share: Fraction, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return how many blocks each device takes, in order, if it is filled up to `share`.

    pairs: the bytes that each device holds besides blocks, and its room. Nothing is placed if those
    exceed the share.
    """
    limits = [share * have - own for own, have in pairs]
    if min(limits) < 0:
        return [0] * len(pairs)
    counts: list[int] = []
    for limit in limits:
        taken = list(accumulate(size.blocks[sum(counts) :]))
        counts.append(bisect_right(taken, limit))
    return counts


def loads(size: Footprint, counts: Sequence[int], *, tied: bool) -> list[int]:
    """Return the bytes per device. A tied embedding is on the device of the head."""
    stops = list(accumulate(counts))
    held = [sum(size.blocks[stop - n : stop]) for n, stop in zip(counts, stops, strict=True)]
    held[-1 if tied else 0] += size.embed
    held[-1] += size.head
    return held


def _fit(size: Footprint, counts: Sequence[int], room: Sequence[int], *, tied: bool) -> bool:
    return all(
        need <= have for need, have in zip(loads(size, counts, tied=tied), room, strict=True)
    )


def _shortage(
    config: TransformerConfig,
    quantize: str | None,
    dtype: torch.dtype,
    room: Mapping[str, int],
    needs: Sequence[int],
) -> str:
    """Return a message with what each device needs and has, and which quantisations fit."""
    budget = list(room.values())
    sizes = {other: footprint(config, other, dtype) for other in QUANTIZATIONS if other != quantize}
    fitting = [
        f"quantize={other!r} ({_gib(size.total)} in total)"
        for other, size in sizes.items()
        if _fit(size, spread(size, budget, tied=config.tied), budget, tied=config.tied)
    ]
    each = ", ".join(
        f"{name}: {_gib(need)} of {_gib(room[name])}"
        for name, need in zip(room, needs, strict=True)
    )
    fits = ", ".join(fitting) or "no quantisation"
    return f"the weights need more memory than is free ({each}); what would fit: {fits}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"

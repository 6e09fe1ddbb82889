"""Which device holds which part of a network: blocks in order, the embedding with the first, the
head with the last.

Logits come out on the last device, and the sampler works there: between devices only hidden states
travel. The network itself moves them (`Transformer.outputs`), by where it finds its blocks. For a
loader: `place` once, then `home` for every parameter.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import torch

from ..transformer import TransformerConfig
from .quant import QUANTIZATIONS, Footprint, footprint

SPARE = 0.1  # of a device's free memory is left to activations and logits

Placement = Mapping[str, torch.device]  # part (embed, blocks.0, ..., norm, head) -> where it lives


def place(
    config: TransformerConfig,
    device_map: str,
    *,
    quantize: str | None = None,
    dtype: torch.dtype = torch.bfloat16,
    room: Mapping[str, int] | None = None,
) -> Placement:
    """Spread a network over devices so that the fullest is as empty as can be.

    room: the bytes that each device has for weights; default: most of what is free on every visible
    GPU.
    """
    if device_map != "auto":
        raise ValueError(f"device_map must be 'auto' or None, not {device_map!r}")
    room = free_memory() if room is None else room
    if not room:
        raise ValueError(
            "device_map='auto' spreads a network over GPUs, and there is none: use device='cpu'"
        )
    size, budget = footprint(config, quantize, dtype), list(room.values())
    counts = spread(size, budget, tied=config.tied)
    if not _fit(size, counts, budget, tied=config.tied):
        raise ValueError(
            _complaint(config, quantize, dtype, room, loads(size, counts, tied=config.tied))
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
    """Where a parameter lives, by its name in the network."""
    parts = parameter.split(".")
    return placement[".".join(parts[:2]) if parts[0] == "blocks" else parts[0]]


def free_memory() -> dict[str, int]:
    free = {f"cuda:{i}": torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())}
    return {name: int(have * (1 - SPARE)) for name, have in free.items()}


def spread(size: Footprint, room: Sequence[int], *, tied: bool) -> list[int]:
    """Blocks per device, such that the largest filled share of a device's room is as small as can
    be.
    """
    fixed = loads(size, [0] * len(room), tied=tied)
    pairs = [(own, max(have, 1)) for own, have in zip(fixed, room, strict=True)]
    shares = {
        Fraction(own + n * size.block, have) for own, have in pairs for n in range(size.layers + 1)
    }
    for share in sorted(shares):
        most = [(share * have - own) // size.block for own, have in pairs]
        if min(most) >= 0 and sum(most) >= size.layers:
            break
    counts: list[int] = []
    for blocks in most:
        counts.append(min(blocks, size.layers - sum(counts)))
    return counts


def loads(size: Footprint, counts: Sequence[int], *, tied: bool) -> list[int]:
    """Bytes per device. A tied embedding is the head, and lives where the head does."""
    held = [count * size.block for count in counts]
    held[-1 if tied else 0] += size.embed
    held[-1] += size.head
    return held


def _fit(size: Footprint, counts: Sequence[int], room: Sequence[int], *, tied: bool) -> bool:
    return all(
        need <= have for need, have in zip(loads(size, counts, tied=tied), room, strict=True)
    )


def _complaint(
    config: TransformerConfig,
    quantize: str | None,
    dtype: torch.dtype,
    room: Mapping[str, int],
    needs: Sequence[int],
) -> str:
    """What each device would need and has, and which quantisations fit."""
    budget = list(room.values())
    sizes = {other: footprint(config, other, dtype) for other in QUANTIZATIONS if other != quantize}
    fitting = [
        f"quantize={other!r} ({_gib(size.total)} in all)"
        for other, size in sizes.items()
        if _fit(size, spread(size, budget, tied=config.tied), budget, tied=config.tied)
    ]
    each = ", ".join(
        f"{name}: {_gib(need)} of {_gib(room[name])}"
        for name, need in zip(room, needs, strict=True)
    )
    return f"the weights need more memory than there is ({each}); what would fit: {', '.join(fitting) or 'no quantisation'}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"

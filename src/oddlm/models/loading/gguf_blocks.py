"""The number formats of GGUF tensors, unpacked to float32.

Quantised weights come in blocks: a few scales, then the bits of 32 or 256 weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
SCALE = "<f2"
PAIRS = [("scale", SCALE), ("least", SCALE)]  # the second is the smallest weight of a block
K_SCALES = ("scales", "u1", 12)  # eight scales and eight offsets, of six bits each
EIGHT = np.arange(8, dtype=np.uint8)[:, None]


@dataclass(frozen=True, slots=True)
class Format:
    """One number format: the fields of a block, and how many weights it holds."""

    name: str
    weights: int
    block: np.dtype[Any]
    unpack: Callable[[Numbers], Numbers]  # blocks [N] -> weights [N, ...] in order

    def floats(self, content: bytes) -> NDArray[np.float32]:
        """Return the weights of whole blocks in one dimension; damaged scales give NaN or inf."""
        with np.errstate(invalid="ignore", over="ignore"):
            found = self.unpack(np.frombuffer(content, self.block))
        return np.require(found, np.float32, ["C", "W"]).reshape(-1)


def _nibbles(packed: Numbers) -> Numbers:
    """Return the low halves of all bytes, then the high halves: [..., n] -> [..., 2, n]."""
    return np.stack([packed & 15, packed >> 4], axis=-2)


def _scaled(blocks: Numbers, field: str = "scale") -> Numbers:
    scales: Numbers = blocks[field].astype(np.float32)[:, None]  # [N, 1]
    return scales


def _plain(blocks: Numbers) -> Numbers:
    return blocks


def _bf16(blocks: Numbers) -> Numbers:
    return (blocks.astype(np.uint32) << 16).view(np.float32)


def _four_bits(blocks: Numbers) -> Numbers:
    return _nibbles(blocks["low"]).reshape(-1, 32)


def _five_bits(blocks: Numbers) -> Numbers:
    high = np.unpackbits(blocks["high"], axis=1, bitorder="little")  # [N, 32]
    values: Numbers = _four_bits(blocks) | high << 4
    return values


def _q4_0(blocks: Numbers) -> Numbers:
    return _scaled(blocks) * (_four_bits(blocks).astype(np.float32) - 8)


def _q4_1(blocks: Numbers) -> Numbers:
    return _scaled(blocks) * _four_bits(blocks) + _scaled(blocks, "least")


def _q5_0(blocks: Numbers) -> Numbers:
    return _scaled(blocks) * (_five_bits(blocks).astype(np.float32) - 16)


def _q5_1(blocks: Numbers) -> Numbers:
    return _scaled(blocks) * _five_bits(blocks) + _scaled(blocks, "least")


def _q8_0(blocks: Numbers) -> Numbers:
    weights: Numbers = _scaled(blocks) * blocks["values"]
    return weights


def _k_scales(blocks: Numbers) -> tuple[Numbers, Numbers]:
    """Return the scale and the offset of each 32 weights, both [N, 8, 1].

    The first four of each are six bits of a byte; the others have four bits of their own and two
    that the first four leave.
    """
    first, second, rest = np.split(blocks["scales"], 3, axis=1)  # [N, 4] each
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    offsets = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    return (_scaled(blocks) * scales)[..., None], (_scaled(blocks, "least") * offsets)[..., None]


def _k_low(blocks: Numbers) -> Numbers:
    return _nibbles(blocks["low"].reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _q4_k(blocks: Numbers) -> Numbers:
    scales, offsets = _k_scales(blocks)
    return scales * _k_low(blocks) - offsets


def _q5_k(blocks: Numbers) -> Numbers:
    scales, offsets = _k_scales(blocks)
    high = blocks["high"][:, None, :] >> EIGHT & 1  # [N, 8, 32]
    weights: Numbers = scales * (_k_low(blocks) | high << 4) - offsets
    return weights


def _q6_k(blocks: Numbers) -> Numbers:
    low = _nibbles(blocks["low"].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks["high"].reshape(-1, 2, 1, 32) >> 2 * EIGHT[:4] & 3  # [N, 2, 4, 32]
    values = (low | high << 4).reshape(-1, 16, 16).astype(np.float32) - 32
    weights: Numbers = (_scaled(blocks) * blocks["scales"])[..., None] * values
    return weights


def _format(name: str, weights: int, fields: Any, unpack: Callable[[Numbers], Numbers]) -> Format:
    return Format(name, weights, np.dtype(fields), unpack)


FIVE = ("high", "u1", 4)
LOW, K_LOW = ("low", "u1", 16), ("low", "u1", 128)
# By the number of the type in a file.
FORMATS = {
    0: _format("F32", 1, "<f4", _plain),
    1: _format("F16", 1, "<f2", _plain),
    30: _format("BF16", 1, "<u2", _bf16),
    2: _format("Q4_0", 32, [("scale", SCALE), LOW], _q4_0),
    3: _format("Q4_1", 32, [*PAIRS, LOW], _q4_1),
    6: _format("Q5_0", 32, [("scale", SCALE), FIVE, LOW], _q5_0),
    7: _format("Q5_1", 32, [*PAIRS, FIVE, LOW], _q5_1),
    8: _format("Q8_0", 32, [("scale", SCALE), ("values", "i1", 32)], _q8_0),
    12: _format("Q4_K", 256, [*PAIRS, K_SCALES, K_LOW], _q4_k),
    13: _format("Q5_K", 256, [*PAIRS, K_SCALES, ("high", "u1", 32), K_LOW], _q5_k),
    14: _format(
        "Q6_K", 256, [K_LOW, ("high", "u1", 64), ("scales", "i1", 16), ("scale", SCALE)], _q6_k
    ),
}
# Types that exist and are not read: names for messages.
OTHERS = {
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}

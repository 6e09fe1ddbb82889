"""The difference between an adapted network and its base, in a small safetensors file.

A matrix of the blocks is stored in three levels, (-1, 0, 1) times one number per row: five of them
fit into a byte. The levels follow Li and Liu 2016 (Ternary Weight Networks, arXiv:1605.04711).
A low-rank difference stores its two factors. Norms and biases are stored whole, and of the
embedding only the rows that changed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..transformer import Transformer

THRESHOLD = 0.7  # times the mean magnitude of a row: smaller differences become 0
PER_BYTE = 5  # 3^5 = 243 fits
POWERS = (1, 3, 9, 27, 81)
LEVELS, SCALE, VALUE, ROWS, DOWN, UP = ".levels", ".scale", ".value", ".rows", ".down", ".up"


def ternary(difference: Tensor) -> tuple[Tensor, Tensor]:
    """Return levels in (-1, 0, 1) and the scale of each row, rounded to bfloat16."""
    size = difference.abs()
    levels = (size > THRESHOLD * size.mean(dim=1, keepdim=True)) * difference.sign()
    kept = levels.abs()
    scale = (size * kept).sum(dim=1, keepdim=True) / kept.sum(dim=1, keepdim=True).clamp(min=1)
    return levels, scale.bfloat16().to(difference.dtype)


def in_three_levels(weight: Tensor, base: Tensor) -> Tensor:
    """Return the matrix that a stored difference gives back."""
    levels, scale = ternary(weight - base)
    return base + levels * scale


def matrices(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the matrices of the blocks, which make up nearly all of a difference."""
    for name, parameter in network.named_parameters():
        if name.startswith("blocks.") and parameter.dim() == 2:
            yield name, parameter


def pack(levels: Tensor) -> Tensor:
    """Store five levels per byte."""
    digits = (levels.flatten() + 1).to(torch.uint8)
    digits = nn.functional.pad(digits, (0, -len(digits) % PER_BYTE)).view(-1, PER_BYTE)
    return (digits * digits.new_tensor(POWERS)).sum(dim=1).to(torch.uint8)


def unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    if packed.dtype != torch.uint8 or packed.numel() != -(-shape.numel() // PER_BYTE):
        raise ValueError(f"{packed.numel()} bytes do not hold a matrix of {list(shape)}")
    whole = packed.to(torch.int16)[:, None] // torch.tensor(POWERS, dtype=torch.int16) % 3 - 1
    return whole.flatten()[: shape.numel()].view(shape).float()


def difference(
    network: Transformer,
    base: Mapping[str, Tensor],
    factors: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Return what turns the weights `base` into the network's, as tensors for a file.

    factors: for each matrix of a low-rank adaptation, down [r, in] and up [out, r].
    """
    found: dict[str, Tensor] = {}
    for name, parameter in network.state_dict().items():
        old, new = base[name].float().cpu(), parameter.float().cpu()
        if factors is not None and name in factors:
            down, up = factors[name]
            found[name + DOWN], found[name + UP] = down.bfloat16().cpu(), up.bfloat16().cpu()
        elif torch.equal(old, new):
            continue
        elif name.startswith("blocks.") and new.dim() == 2:
            levels, scale = ternary(new - old)
            found[name + LEVELS], found[name + SCALE] = pack(levels), scale.flatten().bfloat16()
        elif new.dim() == 2:
            rows = (old != new).any(dim=1).nonzero().flatten()
            found[name + ROWS], found[name + VALUE] = rows.int(), new[rows].bfloat16()
        else:
            found[name + VALUE] = new.bfloat16()
    return {name: tensor.contiguous() for name, tensor in found.items()}


def save_difference(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), path)


@torch.no_grad()
def add_difference(network: Transformer, path: Path) -> None:
    """Turn a base network into the adapted one, in place.

    Raise ValueError if the file is damaged or belongs to another network.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}): install it again") from error
    left = set(found)
    for name, parameter in network.named_parameters():
        own = {key for key in left if key.rpartition(".")[0] == name}
        left -= own
        parts = {key.removeprefix(name): found[key] for key in own}
        try:
            if parts:
                _add(parameter, parts)
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"{path} does not fit this network: {name}: {error}") from error
    if left:
        raise ValueError(f"{path} does not fit this network: unexpected {sorted(left)[0]}")


def _add(parameter: nn.Parameter, parts: Mapping[str, Tensor]) -> None:
    kinds, place = set(parts), parameter.device
    if kinds == {LEVELS, SCALE}:
        levels = unpack(parts[LEVELS], parameter.shape)
        parameter.add_((levels * parts[SCALE].float()[:, None]).to(place))
    elif kinds == {DOWN, UP}:
        parameter.add_((parts[UP].float() @ parts[DOWN].float()).to(place))
    elif kinds == {ROWS, VALUE}:
        parameter[parts[ROWS].long().to(place)] = parts[VALUE].to(place, parameter.dtype)
    elif kinds == {VALUE}:
        if parts[VALUE].shape != parameter.shape:
            raise ValueError(f"{list(parts[VALUE].shape)} is not {list(parameter.shape)}")
        parameter.copy_(parts[VALUE])
    else:
        raise ValueError(f"{', '.join(sorted(kinds))} do not belong together")

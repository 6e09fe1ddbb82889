"""Linear layers in 4 or 8 bits, with bitsandbytes.

A loader creates the network on the meta device, calls `prepare(network, quantize)`, then passes
every complete parameter, on its final device, to `assign(module, attribute, tensor)`. A matrix is
quantised when it is assigned, so only one at a time exists in full precision (of experts, those of
one layer). The linear layers and the experts of the blocks are quantised; embedding, norms, biases,
routers and head are not (transformers excludes the head too, for numerical stability).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ...checks import one_of
from ..moe import StackedLinear, stored_dtype
from ..transformer import Transformer, TransformerConfig

Quantize = Literal["nf4", "int8"]
QUANTIZATIONS = get_args(Quantize)
Quantizer = Callable[[Any, Tensor], nn.Parameter]
OUTLIERS = 6.0  # int8: larger input features are multiplied in 16 bits (LLM.int8's threshold)
NF4_BLOCK, NF4_NESTED_BLOCK = 64, 256  # weights per scale, scales per scale of scales
NF4_TABLES = 4 * (16 + 256 + 1)  # bytes per matrix: the two codes and the offset, float32


def prepare(network: Transformer, quantize: str | None) -> Transformer:
    """Replace the linear layers of the blocks by quantised ones, still without weights.

    The network must be on the meta device.
    """
    if quantize is None:
        return network
    library = _bitsandbytes(quantize)
    for module in list(network.blocks.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, _layer(library, child, quantize))
            elif isinstance(child, StackedLinear):
                setattr(module, name, QuantizedExperts(library, child, quantize))
    return network


class QuantizedExperts(nn.Module):
    """A quantised layer per expert, in place of a `StackedLinear`."""

    def __init__(self, library: Any, stacked: StackedLinear, quantize: str) -> None:
        super().__init__()
        count, rows, columns = stacked.weight.shape
        one = nn.Linear(columns, rows, bias=False, device="meta", dtype=stacked.weight.dtype)
        self.layers = nn.ModuleList(_layer(library, one, quantize) for _ in range(count))

    def one(self, expert: int, x: Tensor) -> Tensor:
        result: Tensor = self.layers[expert](x)
        return result

    def fill(self, weight: Tensor) -> None:
        """Quantise the matrices of all experts, [experts, rows, columns]."""
        for layer, matrix in zip(self.layers, weight, strict=True):
            assign(layer, "weight", matrix)


def is_quantized(network: Transformer) -> bool:
    return any(hasattr(module, "quantizer") for module in network.blocks.modules())


def assign(module: nn.Module, attribute: str, tensor: Tensor) -> None:
    """Set module.attribute to the tensor, quantised if it is the weight of a quantised layer."""
    if isinstance(module, QuantizedExperts):
        module.fill(tensor)
        return
    quantizer: Quantizer | None = (
        getattr(module, "quantizer", None) if attribute == "weight" else None
    )
    parameter = (
        nn.Parameter(tensor, requires_grad=False)
        if quantizer is None
        else quantizer(module, tensor)
    )
    setattr(module, attribute, parameter)


def _nf4(module: Any, weight: Tensor) -> nn.Parameter:
    """Quantise to 4 bits with a scale per 64 weights, and the scales to 8 bits (double
    quantisation).
    """
    Parameter: Any = type(module.weight)
    parameter = Parameter(
        weight, quant_type="nf4", blocksize=NF4_BLOCK, compress_statistics=True, module=module
    )
    quantised: nn.Parameter = parameter.to(weight.device)
    return quantised


def _int8(module: Any, weight: Tensor) -> nn.Parameter:
    """Quantise to 8 bits with a scale per row."""
    from bitsandbytes.functional import int8_vectorwise_quant

    values, scales, _ = int8_vectorwise_quant(weight.half())
    Parameter: Any = type(module.weight)
    parameter: nn.Parameter = Parameter(values, requires_grad=False, CB=values, SCB=scales)
    return parameter


def _layer(library: Any, linear: nn.Linear, quantize: str) -> nn.Module:
    shape = {
        "input_features": linear.in_features,
        "output_features": linear.out_features,
        "bias": linear.bias is not None,
    }
    with torch.device("meta"):
        if quantize == "nf4":
            layer = library.nn.Linear4bit(
                **shape, compute_dtype=torch.bfloat16, compress_statistics=True, quant_type="nf4"
            )
        else:
            layer = library.nn.Linear8bitLt(**shape, has_fp16_weights=False, threshold=OUTLIERS)
    layer.quantizer = _nf4 if quantize == "nf4" else _int8
    result: nn.Module = layer.to(linear.weight.dtype)
    return result


def _bitsandbytes(quantize: str) -> Any:
    one_of("quantize", quantize, QUANTIZATIONS)
    try:
        import bitsandbytes
    except ImportError as error:
        raise ValueError(
            f"quantize={quantize!r} needs bitsandbytes: pip install 'oddlm[quant]'"
        ) from error
    return bitsandbytes


@dataclass(frozen=True, slots=True)
class Footprint:
    """The size of a network's weights in bytes."""

    embed: int
    blocks: tuple[int, ...]  # of each block
    head: int  # including the last norm

    @property
    def total(self) -> int:
        return self.embed + sum(self.blocks) + self.head


def footprint(
    config: TransformerConfig, quantize: str | None = None, dtype: torch.dtype = torch.bfloat16
) -> Footprint:
    """Return the size of the weights, computed from their shapes; nothing is allocated."""
    if quantize is not None:
        one_of("quantize", quantize, QUANTIZATIONS)
    with torch.device("meta"):
        network = Transformer(config)
    head = _bytes(network.norm, dtype) + (
        0 if network.head is None else _bytes(network.head, dtype)
    )
    blocks = tuple(_block_bytes(block, dtype, quantize) for block in network.blocks)
    return Footprint(_bytes(network.embed, dtype), blocks, head)


def _block_bytes(block: nn.Module, dtype: torch.dtype, quantize: str | None) -> int:
    total = _bytes(block, dtype)
    for layer in block.modules() if quantize else ():
        if isinstance(layer, nn.Linear | StackedLinear):
            *count, rows, columns = layer.weight.shape
            total += prod(count) * _quantized_bytes(columns, rows, quantize)
            total -= layer.weight.numel() * dtype.itemsize
    return total


def _bytes(module: nn.Module, dtype: torch.dtype) -> int:
    return sum(
        p.numel() * stored_dtype(name, dtype).itemsize for name, p in module.named_parameters()
    )


def _quantized_bytes(columns: int, rows: int, quantize: str | None) -> int:
    if quantize == "int8":
        return rows * columns + 4 * rows
    scales = ceil(rows * columns / NF4_BLOCK)
    return ceil(rows * columns / 2) + scales + 4 * ceil(scales / NF4_NESTED_BLOCK) + NF4_TABLES

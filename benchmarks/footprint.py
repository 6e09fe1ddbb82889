"""The memory of the weights of an 8B network: computed from shapes and, with --device, measured.

    python benchmarks/footprint.py [--device cuda]

"peak" is the most memory allocated while random weights arrive one parameter at a time, as from a
loader.
"""

import argparse
import time

import torch

from oddlm.models.families.dream import DREAM
from oddlm.models.families.llada import LLADA
from oddlm.models.families.published import DREAM_7B, LLADA_8B
from oddlm.models.loading.architecture import Keys
from oddlm.models.loading.placement import place
from oddlm.models.loading.quant import QUANTIZATIONS, assign, footprint, prepare
from oddlm.models.transformer import Transformer, TransformerConfig

SHAPES = {
    "LLaDA-8B": LLADA.config(Keys("LLADA_8B", LLADA_8B)),
    "Dream-7B": DREAM.config(Keys("DREAM_7B", DREAM_7B)),
}
GIB = 2**30


def filled(config: TransformerConfig, quantize: str | None, device: str) -> Transformer:
    with torch.device("meta"):
        network = prepare(Transformer(config).to(torch.bfloat16), quantize)
    for name, parameter in list(network.named_parameters()):
        owner, _, attribute = name.rpartition(".")
        weight = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device).normal_(std=0.02)
        assign(network.get_submodule(owner), attribute, weight)
    return network.eval()


@torch.no_grad()
def step_ms(network: Transformer, device: str) -> float:
    """Return the ms of one forward pass of 16 x (64 + 64) positions."""
    tokens = torch.randint(1000, (16, 128), device=device)
    lengths = torch.full((16,), 64, device=device)
    for repeat in range(6):
        if repeat == 1:  # the first warms up
            torch.cuda.synchronize()
            began = time.perf_counter()
        network(tokens, 64, lengths)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="a GPU on which to make them too")
    args = parser.parse_args()
    measured = (
        f" | on {torch.cuda.get_device_name(args.device)} | peak | 16 x 128 positions |"
        if args.device
        else " |"
    )
    print(
        "| shape | weights in | embedding | each block | head | in all "
        f"| two GPUs of 12 GiB{measured}"
    )
    print("|---" * (7 + 3 * bool(args.device)) + "|")
    for name, config in SHAPES.items():
        for quantize in (None, *QUANTIZATIONS):
            size = footprint(config, quantize)
            room = {"cuda:0": 12 * GIB, "cuda:1": 12 * GIB}
            homes = list(place(config, "auto", quantize=quantize, room=room).items())
            first = sum(part.startswith("blocks.") and home.index == 0 for part, home in homes)
            parts = " | ".join(
                f"{x / GIB:.3f} GiB" for x in (size.embed, size.blocks[0], size.head)
            )
            row = f"| {name} | {quantize or 'bf16'} | {parts} | {size.total / GIB:.2f} GiB"
            row += f" | {first} + {config.layers - first} blocks"
            if args.device:
                before = torch.cuda.memory_allocated(args.device)
                torch.cuda.reset_peak_memory_stats(args.device)
                network = filled(config, quantize, args.device)
                stored = (torch.cuda.memory_allocated(args.device) - before) / GIB
                peak = (torch.cuda.max_memory_allocated(args.device) - before) / GIB
                row += (
                    f" | {stored:.2f} GiB | {peak:.2f} GiB | {step_ms(network, args.device):.0f} ms"
                )
                del network
            print(f"{row} |", flush=True)


if __name__ == "__main__":
    main()

"""Time whole answers with and without the dual cache: plain sampling and ODD, 8B shapes.

    python benchmarks/whole_answers.py --out whole-answers.md
    python benchmarks/whole_answers.py --models tiny --cells 4x16x8 --repeats 1   # to see it run

Weights are random: time does not depend on them. A cell is samples x tokens x tokens of a block,
with a step for every token. Milliseconds per step are those of the whole run, first step and fills
included, divided by its steps; runs of plain sampling and ODD alternate, and medians are shown.
ODD is the default (a push in the first quarter of the steps) or `alpha 8`, which pushes in all of
them. Memory is the peak of what torch allocated, less the weights.
"""

import argparse
import gc
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import oddlm
from oddlm.bench.overhead import SHAPES, machine, random_network
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer

PROMPT, GIB = 150, 2**30
CELLS = "16x256x32,4x32x32"
LANES: dict[str, dict[str, Any]] = {  # compiled lanes last: they change the network for good
    "no cache": {},
    "dual": {"cache": "dual"},
    "dual, compiled": {"cache": "dual", "compiled": "fixed"},
}
METHODS: dict[str, oddlm.Repulsion | None] = {
    "plain": None,
    "default": oddlm.Repulsion(),
    "alpha 8": oddlm.Repulsion("odd", alpha=8),
}


class Held(Native):
    """Keeps the size of the keys and values of its last session."""

    nbytes = 0

    def session(self, query: Any) -> Any:
        session = super().session(query)

        def ask(query: Any) -> torch.Tensor:
            logits = session(query)
            self.nbytes = max(self.nbytes, getattr(session, "nbytes", 0))
            return logits

        return ask


def seconds(model: Native, cell: tuple[int, int, int], guide: Any) -> float:
    n, length, block = cell
    began = time.perf_counter()
    oddlm.denoise(
        model,
        [[5 + i % 50 for i in range(PROMPT)]],
        n=n,
        length=length,
        steps=length,
        block_length=block,
        temperature=0.5,
        guide=guide,
    )
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(
    name: str, network: Transformer, lane: str, cell: tuple[int, int, int], repeats: int
) -> list[str]:
    cuda = network.device.type == "cuda"
    model = Held(network, name=name, mask_id=0, end_ids=(1, 2), **LANES[lane])
    weights = sum(x.nbytes for x in network.parameters())
    times, peaks = defaultdict(list), {}
    for repeat in range(repeats + 1):  # the first one compiles
        for method, guide in METHODS.items():
            gc.collect()
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            took = seconds(model, cell, guide)
            if repeat:
                times[method].append(took)
            if cuda:
                peaks[method] = (torch.cuda.max_memory_allocated() - weights) / GIB
    plain = times["plain"]
    rows = []
    for method, own in times.items():
        ratio = statistics.median(a / b for a, b in zip(own, plain, strict=True))
        took = statistics.median(own)
        cells = [name, "x".join(map(str, cell)), lane, method, f"{1e3 * took / cell[1]:.2f}"]
        cells += [f"{100 * (ratio - 1):+.1f} %", f"{took:.3f}"]
        cells += [f"{peaks[method]:.2f}" if cuda else "-", f"{model.nbytes / GIB:.3f}"]
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="llada-8b,dream-7b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--lanes", default=";".join(LANES), help="separated by semicolons")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, help="write the table there")
    given = parser.parse_args()
    device, title = machine(given.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    heads = ["shape", "cell", "network", "method", "ms/step", "over plain", "s/run"]
    heads += ["peak over weights, GiB", "keys and values, GiB"]
    lines = [
        f"# Whole answers on {title}, torch {torch.__version__}, prompt of {PROMPT} tokens",
        "",
    ]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    print("\n".join(lines), flush=True)
    for name in given.models.split(","):
        network = random_network(SHAPES[name], device, dtype, None)
        for lane in given.lanes.split(";"):
            for cell in given.cells.split(","):
                n, length, block = map(int, cell.split("x"))
                lines += measure(name, network, lane, (n, length, block), given.repeats)
        del network
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""Measure block-causal networks of published shapes, with random weights.

    python benchmarks/block_models.py --shape sdar-8b llada2-mini --n 16 64 --device cuda \\
        --compiled fixed
    python benchmarks/block_models.py --shape tiny --tokens 128 --compiled any

Plain sampling and ODD (alpha 8 in all steps) write whole answers, 32 steps in turn, after a
warm-up. "ODD" is the median over the turns of the time it takes more, with the quartiles. The floor
is the time that a step needs to read its weights and keys, or to multiply, at the ceilings measured
on the same device. "cache" is what keys and values take at the end, and "unshared" what they take
if every sample has a prompt of its own.
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import quantiles
from typing import Any

import torch

import oddlm
from oddlm.bench.costs import Ceilings
from oddlm.bench.overhead import measure_ceilings, random_network
from oddlm.core.model import Query
from oddlm.models.block_cache import BlockSession
from oddlm.models.families import published
from oddlm.models.families.llada2 import LLADA2
from oddlm.models.families.nemotron import NEMOTRON
from oddlm.models.families.sdar import SDAR, SDAR_MOE
from oddlm.models.loading.architecture import Keys
from oddlm.models.loading.quant import footprint
from oddlm.models.moe import ExpertConfig
from oddlm.models.native import COMPILED, Native
from oddlm.models.transformer import TransformerConfig

SHAPES = {
    "sdar-8b": SDAR.config(Keys("SDAR_8B", published.SDAR_8B)),
    "sdar-30b": SDAR_MOE.config(Keys("SDAR_30B", published.SDAR_30B)),
    "llada2-mini": LLADA2.config(Keys("LLADA2_MINI", published.LLADA2_MINI)),
    "nemotron-8b": NEMOTRON.config(Keys("NEMOTRON_8B", published.NEMOTRON_8B)),
    "tiny": TransformerConfig(
        500, 64, 2, 4, 96, block_length=4, experts=ExpertConfig(8, 2, 32), dense_layers=(0,)
    ),
}
GIB, TURN = 2**30, 32  # steps


class Watched(Native):
    """Keeps the session of the last run."""

    opened: BlockSession

    def session(self, query: Query) -> Any:
        self.opened = super().session(query)  # type: ignore[assignment]
        return self.opened


@dataclass(frozen=True)
class Bench:
    model: Watched
    n: int
    prompt: int
    tokens: int
    per_step: int

    def begin(self, guide: oddlm.Repulsion | None) -> Iterator[Any]:
        return self.sampling([self.ids], self.n, self.tokens // self.per_step, guide)

    def sampling(
        self, prompts: list[list[int]], n: int, steps: int, guide: oddlm.Repulsion | None
    ) -> Iterator[Any]:
        """Write answers, a step at a time."""
        return oddlm.denoise_steps(
            self.model,
            prompts,
            n=n,
            length=self.tokens,
            steps=steps,
            temperature=1.0,
            guide=guide,
            block_length=self.model.network.config.block_length,
        )

    @property
    def ids(self) -> list[int]:
        return [5 + i % 400 for i in range(self.prompt)]

    def race(self) -> list[list[float]]:
        """Return the seconds of every turn, of plain sampling and of ODD."""
        guides = None, oddlm.Repulsion(alpha=8)
        for guide in guides:  # compiles what answers of this length need
            for _ in islice(self.begin(guide), TURN):
                pass
        runs = [self.begin(guide) for guide in guides]
        turns = self.tokens // self.per_step // TURN
        return [[self.seconds(islice(run, TURN)) for run in runs] for _ in range(turns)]

    def seconds(self, steps: Iterable[Any]) -> float:
        wait = torch.cuda.synchronize if self.model.device.type == "cuda" else lambda: None
        began = time.perf_counter()
        for _ in steps:
            pass
        wait()
        return time.perf_counter() - began

    def unshared(self) -> int:
        """Return the memory of the caches if every sample has a prompt of its own."""
        prompts = [[5 + i % 400, *self.ids[1:]] for i in range(self.n)]
        block = self.model.network.config.block_length or 1
        for _ in self.sampling(prompts, 1, self.tokens // block, None):
            pass
        return self.model.opened.nbytes

    def row(self, name: str, ceilings: Ceilings) -> str:
        """Measure, and return a row of the table."""
        times = self.race()
        cache, config = self.model.opened.nbytes, self.model.network.config
        plain = sum(turn[0] for turn in times)
        low, middle, high = quantiles([100 * (b / a - 1) for a, b in times], n=4)
        floor = floor_ms(config, self.n, self.prompt + self.tokens // 2, ceilings)
        cells = (
            name,
            str(self.n),
            f"{1e3 * plain / len(times) / TURN:.2f}",
            f"{floor:.2f}",
            f"{self.n * self.per_step * len(times) * TURN / plain:.0f}",
            f"{middle:+.1f} % [{low:+.1f}, {high:+.1f}]",
            f"{cache / GIB:.3f} GiB",
            f"{self.unshared() / GIB:.3f} GiB",
        )
        return "| " + " | ".join(cells) + " |"


def floor_ms(config: TransformerConfig, n: int, held: int, ceilings: Ceilings) -> float:
    """Return the ms that a step on the open blocks of n samples takes at the ceilings.

    held: positions before the open block of each sample; those of the prompt are counted n times.
    """
    tokens = n * (config.block_length or 1)
    size, item = footprint(config), 2
    weights, active = size.total - size.embed, size.total - size.embed
    experts = config.experts
    if experts is not None:
        sparse = config.layers - len(config.dense_layers)
        every = sparse * experts.count * 3 * experts.hidden * config.width * item
        touched = 1 - (1 - experts.active / experts.count) ** tokens
        weights -= round(every * (1 - touched))
        active -= round(every * (1 - experts.active / experts.count))
    keys = n * held * 2 * config.layers * config.key_heads * config.head * item
    operations = tokens * 2 * active / item + 2 * keys / item * (config.block_length or 1)
    return 1e3 * max(operations / ceilings.matrix_rate, (weights + keys) / ceilings.bandwidth)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), nargs="+", default=["tiny"])
    parser.add_argument("--n", type=int, nargs="+", default=[16])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--per-step", type=int, default=1, help="tokens that a step writes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", choices=COMPILED, help="compile, and replay CUDA graphs")
    args = parser.parse_args()
    if args.tokens < 2 * TURN * args.per_step:
        parser.error(f"--tokens must be at least {2 * TURN} x --per-step, for two turns")
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(
        f"{where}, torch {torch.__version__}, {dtype}, prompt {args.prompt}, {args.tokens} tokens, "
        f"{args.per_step} per step\n"
    )
    heads = "shape", "n", "ms per step", "floor", "tokens/s", "ODD", "cache", "unshared"
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    ceilings = measure_ceilings(device, "bf16" if device.type == "cuda" else "fp32")
    for name in args.shape:
        network = random_network(SHAPES[name], device, dtype, None)
        model = Watched(network, name=name, mask_id=3, end_ids=(1, 2), compiled=args.compiled)
        for n in args.n:
            bench = Bench(model, n, args.prompt, args.tokens, args.per_step)
            print(bench.row(name, ceilings), flush=True)
        del network, model


if __name__ == "__main__":
    main()

"""Measure block-causal networks of published shapes, with random weights.

    python benchmarks/block_models.py --shape sdar-8b llada2-mini --n 16 64 --device cuda \\
        --compiled fixed
    python benchmarks/block_models.py --shape tiny --tokens 64 --repeats 3 --compiled any

Plain sampling and ODD (alpha 8 in all steps) write whole answers in turn, after a warm-up. "ODD" is
the median over these pairs of the time it takes more, with their range. The floor is the time that
a step needs to read its weights and keys, or to multiply, at the ceilings measured on the same
device. "cache" is what keys and values take at the end, and "unshared" what they take if every
sample has a prompt of its own.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
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
GIB = 2**30


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
    repeats: int

    def run(
        self, guide: oddlm.Repulsion | None, tokens: int, *, steps: int = 0, shared: bool = True
    ) -> float:
        """Write answers and return the seconds it took."""
        prompt = [5 + i % 400 for i in range(self.prompt)]
        prompts = [prompt] if shared else [[5 + i % 400, *prompt[1:]] for i in range(self.n)]
        wait = torch.cuda.synchronize if self.model.device.type == "cuda" else lambda: None
        began = time.perf_counter()
        oddlm.denoise(
            self.model,
            prompts,
            n=self.n if shared else 1,
            length=tokens,
            steps=steps or tokens // self.per_step,
            temperature=1.0,
            guide=guide,
            block_length=self.model.network.config.block_length,
            progress=False,
        )
        wait()
        return time.perf_counter() - began

    def row(self, name: str, ceilings: Ceilings) -> str:
        """Measure, and return a row of the table."""
        odd = oddlm.Repulsion(alpha=8)
        config = self.model.network.config
        block = config.block_length or 1
        for guide in (None, odd):
            self.run(guide, 4 * block)
        pairs = [
            [self.run(guide, self.tokens) for guide in (None, odd)] for _ in range(self.repeats)
        ]
        cache = self.model.opened.nbytes / GIB
        self.run(None, self.tokens, steps=self.tokens // block, shared=False)
        unshared = self.model.opened.nbytes / GIB
        plain = statistics.median(pair[0] for pair in pairs)
        shares = sorted(100 * (b / a - 1) for a, b in pairs)
        floor = floor_ms(config, self.n, self.prompt + self.tokens // 2, ceilings)
        cells = (
            name,
            str(self.n),
            f"{1e3 * plain * self.per_step / self.tokens:.2f}",
            f"{floor:.2f}",
            f"{self.n * self.tokens / plain:.0f}",
            f"{statistics.median(shares):+.1f} % [{shares[0]:+.1f}, {shares[-1]:+.1f}]",
            f"{cache:.3f} GiB",
            f"{unshared:.3f} GiB",
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
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", choices=COMPILED, help="compile, and replay CUDA graphs")
    args = parser.parse_args()
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
            bench = Bench(model, n, args.prompt, args.tokens, args.per_step, args.repeats)
            print(bench.row(name, ceilings), flush=True)
        del network, model


if __name__ == "__main__":
    main()

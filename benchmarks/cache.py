"""Compare what sampling with and without a KV cache solves.

    python benchmarks/cache.py [--device cuda] [--problems 200] [--seeds 3]

This runs countdown on the mini model. "tokens changed" and both Pass rates are relative to no cache
with the same block length and seeds. Pass rates are means over problems and seeds, with the 95 %
interval of the difference, paired by problem. Speed is the time without a cache divided by the time
with one (on a CPU: processor time), the median over seeds of runs made one after the other.
`oddlm bench answers` measures time alone, on networks of any shape.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

import oddlm
from oddlm.core import noise
from oddlm.kernels import closed_form
from oddlm.metrics import paired_interval, pass_at_1, pass_at_k
from oddlm.tasks import countdown

N = 16
CACHES: dict[str, dict[str, Any]] = {
    "none": {},
    "prefix": {"cache": "prefix"},
    "dual": {"cache": "dual"},
    "dual, refresh 2": {"cache": "dual", "refresh": 2},
}
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"objective": "none"},
    "odd, alpha 8": {"objective": "odd", "alpha": 8, "fork": False},
}
LENGTH = 24


def seconds(call: Any, device: str) -> tuple[float, Any]:
    """Time a call; on a CPU by processor time, which other processes do not affect."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    result = call()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - began, result


def accuracy(device: str, problems: int, seeds: int, blocks: Sequence[int], steps: int) -> None:
    rows = countdown.load(split="test", count=problems, seed=1)
    prompts = [countdown.prompt(p) for p in rows]
    models = {
        name: oddlm.load("mini", device=device, **options) for name, options in CACHES.items()
    }
    for lm in models.values():  # warm up
        lm.generate(
            prompts, N, max_batch=4096, length=LENGTH, block_length=LENGTH, steps=2, progress=False
        )
    print(
        f"countdown, {problems} problems, {seeds} seeds, n={N}, length {LENGTH}, {steps} steps, "
        "temperature 0.5, eos late\n"
    )
    print(
        "| method | block length | cache | tokens changed | Pass@1 | against none | Pass@16 "
        "| against none | speed |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for method, options in METHODS.items():
        for block in blocks:
            settings = {
                **options,
                "length": LENGTH,
                "steps": steps,
                "block_length": block,
                "temperature": 0.5,
                "eos": "late",
            }
            runs = defaultdict(list)
            for seed, (name, lm) in product(range(seeds), models.items()):
                call = partial(
                    lm.generate, prompts, N, max_batch=4096, seed=seed, progress=False, **settings
                )
                took, groups = seconds(call, device)
                tokens = np.array([[sample.tokens for sample in group] for group in groups])
                right = [
                    [countdown.score(p, s.text).correct for s in own]
                    for p, own in zip(rows, groups, strict=True)
                ]
                runs[name].append((took, tokens, right))
            for name in CACHES:
                print(
                    f"| {method} | {block} | {name} | {compared(runs[name], runs['none'])} |",
                    flush=True,
                )


def compared(own: list[Any], none: list[Any]) -> str:
    """Format the cells of one row."""
    changed = np.mean([(a[1] != b[1]).mean() for a, b in zip(own, none, strict=True)])
    cells = [f"{changed:.1%}"]
    for rate in (pass_at_1, lambda right: pass_at_k(right, N)):
        mine, theirs = (np.mean([rate(run[2]) for run in some], axis=0) for some in (own, none))
        difference, low, high = (100 * x for x in paired_interval(mine, theirs))
        cells += [
            f"{100 * mine.mean():.1f}",
            "" if own is none else f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]",
        ]
    speed = statistics.median(b[0] / a[0] for a, b in zip(own, none, strict=True))
    return " | ".join([*cells, f"{speed:.2f}x"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--blocks", type=int, nargs="+", default=[24, 12, 8], help="block lengths")
    parser.add_argument("--steps", type=int, default=LENGTH)
    args = parser.parse_args()
    where = (
        torch.cuda.get_device_name()
        if args.device != "cpu"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    print(f"{where}, torch {torch.__version__}\n")
    if args.device != "cpu":  # small tiles suit the caches of a CPU
        closed_form.TILE_ELEMENTS = noise.TILE_ELEMENTS = 1 << 27
    accuracy(args.device, args.problems, args.seeds, args.blocks, args.steps)


if __name__ == "__main__":
    main()

"""Compare sampling with and without a KV cache.

    python benchmarks/cache.py [--device cuda] [--problems 200] [--seeds 3]
    python benchmarks/cache.py --shape 8b --device cuda

The first command runs countdown on the mini model. "tokens changed" and both Pass rates are
relative to no cache with the same block length and seeds. Pass rates are means over problems and
seeds, with the 95 % interval of the difference, paired by problem. Speed is the time without a
cache divided by the time with one (on a CPU: processor time), the median over seeds of runs made
one after the other. The second command measures only time, on an untrained network of that shape
(mini, 8b) with a long canvas.
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
from oddlm.models.families.llada import LLADA
from oddlm.models.families.published import LLADA_8B
from oddlm.models.loading.architecture import Keys
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig
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
SHAPES = {  # network, then prompt, length, block length, steps
    "mini": (TransformerConfig(1799, 256, 7, 4, 704), (128, 128, 32, 32)),
    "8b": (LLADA.config(Keys("LLADA_8B", LLADA_8B)), (512, 128, 32, 32)),
}


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


def speed(shape: str, device: str, repeats: int) -> None:
    config, (prompt, length, block, steps) = SHAPES[shape]
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    with torch.device(device):
        network = Transformer(config)
    torch.set_default_dtype(default)
    tokens = list(range(5, 5 + prompt))
    settings = {
        "n": N,
        "length": length,
        "steps": steps,
        "block_length": block,
        "temperature": 1.0,
        "progress": False,
    }
    print(
        f"untrained network of shape {shape}, {dtype}, n={N}, prompt {prompt}, "
        f"length {length} by {block}, {steps} steps"
    )
    print(
        "\n| cache | time per step | speed | positions computed | peak memory |"
        "\n|---|---|---|---|---|"
    )
    times, counts, peaks = defaultdict(list), {}, {}
    for repeat in range(repeats + 1):
        for name, options in CACHES.items():
            model = Watched(network, name=shape, mask_id=3, end_ids=(1,), **options)
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            took, _ = seconds(partial(oddlm.denoise, model, [tokens], **settings), device)
            if repeat:
                times[name].append(took / steps)
            counts[name] = model.opened.computed
            peaks[name] = (
                "" if device == "cpu" else f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
            )
    for name, own in times.items():
        ratio = statistics.median(b / a for a, b in zip(own, times["none"], strict=True))
        share = counts[name] / counts["none"]
        speed = f"{1e3 * statistics.median(own):.1f} ms | {ratio:.2f}x"
        print(f"| {name} | {speed} | {share:.1%} | {peaks[name]} |", flush=True)


class Watched(Native):
    """Keeps the session, for its count."""

    def session(self, query: Any) -> Any:
        self.opened = super().session(query)
        return self.opened


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--blocks", type=int, nargs="+", default=[24, 12, 8], help="block lengths")
    parser.add_argument("--steps", type=int, default=LENGTH)
    parser.add_argument("--shape", choices=list(SHAPES), help="time alone, on an untrained network")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    where = (
        torch.cuda.get_device_name()
        if args.device != "cpu"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    print(f"{where}, torch {torch.__version__}\n")
    if args.device != "cpu":  # small tiles suit the caches of a CPU
        closed_form.TILE_ELEMENTS = noise.TILE_ELEMENTS = 1 << 27
    if args.shape:
        speed(args.shape, args.device, args.repeats)
    else:
        accuracy(args.device, args.problems, args.seeds, args.blocks, args.steps)


if __name__ == "__main__":
    main()

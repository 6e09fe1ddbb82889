"""Compare the autograd reference with the closed form: time and extra peak memory.

    python benchmarks/diversify.py [--repeats 3] [--objective odd]
    python benchmarks/diversify.py --features [--repeats 3] [--objective odd]

Each is measured in a separate process. Memory is the peak of a process that calls diversify minus
the peak of one that only holds the logits and a copy of them (the result), each the smallest of
three processes. Times are medians; "softmaxes" is the time of a call in units of one softmax over
the same logits, in the same process.

With --features, every feature is measured at the size of the mini model, alternating between both
in one process with one thread. Times are medians of CPU time; memory is the rise of the resident
set during the call (Linux), minus the result.
"""

import argparse
import ctypes
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import oddlm
from oddlm.models.toy import Toy

CASES = [  # groups, n, S, V, share of positions still masked
    (1, 16, 64, 126464, 1.0),
    (1, 16, 64, 126464, 0.6),
    (1, 16, 64, 8192, 1.0),
    (1, 16, 64, 8192, 0.6),
    (32, 16, 24, 2000, 1.0),
    (32, 16, 24, 2000, 0.6),
]
BACKENDS = ("reference", "closed_form")
MINI = (64, 16, 24, 1799, 256)  # groups, n, S, V, H
FEATURES: list[dict[str, Any]] = [
    {"name": "max_pool"},
    {"name": "max_pool", "rank": 128},
    {"name": "max_pool", "space": "semantic"},
    {"name": "mean_pool"},
    {"name": "mean_pool", "rank": 128},
    {"name": "mean_pool", "space": "embedding"},
    {"name": "mean_pool", "space": "semantic"},
    {"name": "positional"},
    {"name": "positional", "space": "semantic"},
    {"name": "positional", "top_k": 50},
    {"name": "ngrams"},
    {"name": "ngrams", "order": 3},
    {"name": "ngrams", "space": "semantic"},
]


def median_s(call: Callable[[], Any], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def child(
    case: tuple[int, int, int, int, float], backend: str, objective: str, repeats: int
) -> None:
    groups, n, S, V, share = case
    g = torch.Generator().manual_seed(0)
    for kernel in BACKENDS:  # so that loading and first calls do not count as a kernel's memory
        small = torch.randn(4, 8, 600, generator=g)
        oddlm.diversify(small, small[..., 0].long(), small[..., 0] < 1, alpha=1.0, backend=kernel)
    logits = torch.empty(groups * n, S, V).normal_(0, 3, generator=g)
    tokens = torch.randint(0, V, (groups * n, S), generator=g)
    masked = (
        (torch.rand(S, generator=g).argsort() < round(share * S)).expand(groups * n, S).contiguous()
    )
    if backend == "none":
        result = {"seconds": median_s(logits.clone, 1), "softmax": 0.0}
    else:

        def call() -> torch.Tensor:
            return oddlm.diversify(
                logits, tokens, masked, alpha=16.0, n=n, objective=objective, backend=backend
            )

        seconds = median_s(call, repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = {
            "seconds": seconds,
            "softmax": median_s(lambda: logits.softmax(dim=-1), repeats),
            "peak": peak,
        }
    result.setdefault("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(json.dumps(result))


def measure(
    case: tuple[int, int, int, int, float], backend: str, objective: str, repeats: int
) -> dict[str, float]:
    """Return the median time and the smallest peak of three processes.

    The smallest peak excludes memory that the allocator wastes.
    """
    command = [
        sys.executable,
        __file__,
        "--child",
        json.dumps([case, backend]),
        "--objective",
        objective,
    ]
    command += ["--repeats", str(repeats)]
    runs = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(3)
    ]
    middle: dict[str, float] = sorted(runs, key=lambda r: r["seconds"])[1]
    return {**middle, "peak": min(r["peak"] for r in runs)}


def kernel_table(objective: str, repeats: int) -> None:
    print(
        f"objective {objective}, float32, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}\n"
    )
    print(
        "| groups x n, S, V | masked | reference | closed form | faster "
        "| extra memory: reference | closed form | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        groups, n, S, V, share = case
        none, reference, closed = (
            measure(case, b, objective, repeats) for b in ("none", *BACKENDS)
        )
        extra = [(r["peak"] - none["peak"]) / 1024 for r in (reference, closed)]
        cost = [
            f"{r['seconds'] * 1e3:.0f} ms = {r['seconds'] / r['softmax']:.1f} softmaxes"
            for r in (reference, closed)
        ]
        faster = f"{reference['seconds'] / closed['seconds']:.1f}x"
        memory = f"{extra[0]:.0f} MiB | {extra[1]:.0f} MiB | 1/{extra[0] / max(extra[1], 1):.0f}"
        setting = f"{groups} x {n}, {S}, {V} | {share:.0%}"
        print(f"| {setting} | {cost[0]} | {cost[1]} | {faster} | {memory} |", flush=True)


def share_table(objective: str) -> None:
    """Print the guide's share of the time of a whole run on the toy network."""
    print("\ntoy network end to end: n=16, length 32, 32 steps, V=1000\n")
    print("| backend | whole run | in the guide | share |")
    print("|---|---|---|---|")
    model = Toy(vocab_size=1000, width=128)
    for backend in BACKENDS:
        guide, spent = oddlm.Repulsion(objective, alpha=16, backend=backend), [0.0]

        def timed(
            logits: torch.Tensor, step: oddlm.Step, guide: Any = guide, spent: list[float] = spent
        ) -> torch.Tensor:
            began = time.perf_counter()
            guided: torch.Tensor = guide(logits, step)
            spent[0] += time.perf_counter() - began
            return guided

        def run(timed: Any = timed) -> None:
            oddlm.denoise(
                model, [[5, 6, 7]], n=16, length=32, steps=32, temperature=1.0, guide=timed
            )

        run()
        spent[0] = 0.0
        began = time.perf_counter()
        for _ in range(5):
            run()
        whole = time.perf_counter() - began
        times = f"{whole / 5 * 1e3:.0f} ms | {spent[0] / 5 * 1e3:.0f} ms"
        print(f"| {backend} | {times} | {spent[0] / whole:.0%} |", flush=True)


def rise_mib(call: Callable[[], Any]) -> float:
    """Return how far the resident set of this process rises during a call."""

    def read(field: str) -> int:
        return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0])

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = read("VmRSS")
    call()
    return (read("VmHWM") - before) / 1024


def cpu_s(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def feature_table(objective: str, repeats: int) -> None:
    torch.set_num_threads(1)
    groups, n, S, V, H = MINI
    g = torch.Generator().manual_seed(0)
    logits = torch.empty(groups * n, S, V).normal_(0, 3, generator=g)
    tokens, masked = (
        torch.randint(0, V, (groups * n, S), generator=g),
        torch.rand(groups * n, S, generator=g) < 0.6,
    )
    embedding = torch.randn(V, H, generator=g)
    result = logits.numel() * logits.element_size() / 2**20
    size = f"{groups} x {n}, S = {S}, V = {V}, H = {H}, 60% masked"
    print(f"objective {objective}, {size}, float32, 1 thread, torch {torch.__version__}\n")
    print(
        "| feature | reference | without autograd | faster "
        "| extra memory: reference | without autograd |"
    )
    print("|---|---|---|---|---|---|")
    for feature in FEATURES:

        def push(backend: str, feature: dict[str, Any] = feature) -> None:
            options = {
                "alpha": 16.0,
                "n": n,
                "objective": objective,
                "feature": feature,
                "embedding": embedding,
            }
            oddlm.diversify(logits, tokens, masked, backend=backend, **options)  # type: ignore[arg-type]

        calls = [partial(push, backend) for backend in BACKENDS]
        turns = [[cpu_s(call) for call in calls] for _ in range(repeats + 1)][1:]
        slow, fast = (statistics.median(seconds) for seconds in zip(*turns, strict=True))
        extra = [min(rise_mib(call) for _ in range(2)) - result for call in calls]
        name = ", ".join(
            [feature["name"], *(f"{k} {v}" for k, v in feature.items() if k != "name")]
        )
        memory = f"{extra[0]:.0f} MiB | {extra[1]:.0f} MiB"
        times = f"{slow * 1e3:.0f} ms | {fast * 1e3:.0f} ms | {slow / fast:.1f}x"
        print(f"| {name} | {times} | {memory} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--objective", default="odd", choices=["odd", "odd_sequential", "dpp"])
    parser.add_argument("--features", action="store_true", help="compare features instead of sizes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*json.loads(arguments.child), arguments.objective, arguments.repeats)
        return
    if arguments.features:
        feature_table(arguments.objective, arguments.repeats)
        return
    kernel_table(arguments.objective, arguments.repeats)
    share_table(arguments.objective)


if __name__ == "__main__":
    main()

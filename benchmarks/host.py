"""The cost of a step on the host: kernels launched and milliseconds of Python. Needs a GPU.

    python benchmarks/host.py
    PYTHONPATH=/other/checkout/src python benchmarks/host.py   # the same figures of another commit

The network is small, so that the host is the bottleneck and never waits for the GPU.
"""

import statistics
import time
from itertools import pairwise

import torch
from torch.profiler import ProfilerActivity, profile

import oddlm
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig

STEPS = 32


def model() -> Native:
    torch.manual_seed(0)
    network = Transformer(TransformerConfig(126464, width=128, layers=2, heads=2, hidden=256)).to(
        "cuda", torch.bfloat16
    )
    return Native(network, name="small", mask_id=0, end_ids=(1, 2))


def host_ms(**options: object) -> float:
    """Return the median ms from one step to the next; nothing in between waits for the device."""
    run = oddlm.denoise_steps(
        NETWORK, [[5] * 20], n=16, length=64, steps=STEPS, temperature=1.0, **options
    )
    marks = []
    for _ in run:
        marks.append(time.perf_counter())
    return 1e3 * statistics.median(b - a for a, b in pairwise(marks))


def launches(**options: object) -> float:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        host_ms(**options)
    return (
        sum(event.count for event in profiled.key_averages() if "LaunchKernel" in event.key) / STEPS
    )


NETWORK = model()
print(f"{torch.cuda.get_device_name()}, {oddlm.__file__}")
print("| run | kernels launched per step | host ms per step |\n|---|---|---|")
RUNS: dict[str, dict[str, object]] = {
    "plain": {},
    "ODD": {"guide": oddlm.Repulsion("odd", alpha=8)},
    "plain, blocks of 16": {"block_length": 16},
    "ODD, blocks of 16": {"guide": oddlm.Repulsion("odd", alpha=8), "block_length": 16},
}
for name, options in RUNS.items():
    host_ms(**options)  # compiles
    took = statistics.median(host_ms(**options) for _ in range(5))
    print(f"| {name} | {launches(**options):.0f} | {took:.2f} |", flush=True)

"""Time the fused kernels on a GPU without a network, on logits of a LLaDA-sized vocabulary.

    python benchmarks/fused.py [--repeats 20] [--profile] [--hot]

Times are medians of CUDA events around the guide and sampling of one step. The step is captured in
a CUDA graph and replayed, so the times are those of the device alone; "host" is the time to launch
it without a graph. The floor is the bytes of the masked logits, read once (plain) or three times
(ODD), divided by the bandwidth of a copy in the same run. With --hot, large matrix products run
before each step, as a network's would, which lowers the clock of the chip.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import triton

import oddlm
from oddlm.core.alarm import Alarm
from oddlm.core.blocks import Blocks
from oddlm.core.choose import Outlook, look, predict
from oddlm.core.model import ModelInfo
from oddlm.core.step import Step
from oddlm.kernels import dispatch

SHAPES = [(16, 64), (16, 128), (16, 256), (64, 64)]
V = 126464
INFO = ModelInfo(V, 0, (1, 2))


def median_ms(
    call: Callable[[], Any], repeats: int, before: Callable[[], Any] | None = None
) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        if before is not None:
            before()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        call()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return statistics.median(times)


def replay(call: Callable[[], Any]) -> Callable[[], None]:
    """Capture a call as a CUDA graph, which also proves that nothing in it waits for the host."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def matrix_products() -> Callable[[], None]:
    """Return a call of matrix products that takes about 45 ms."""
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        for _ in range(30):
            a @ b

    return work


def extra_mib(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def host_ms(call: Callable[[], Any]) -> float:
    """Return the median of some calls, each with an idle GPU."""
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e3


def bandwidth() -> float:
    """Return the bytes per millisecond of a copy, read and written."""
    x = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / median_ms(lambda: y.copy_(x), 10)


def step_of(n: int, S: int, share: float) -> Step:
    g = torch.Generator(device="cuda").manual_seed(1)
    masked = torch.rand(n, S, device="cuda", generator=g) <= share
    tokens = torch.randint(0, V, (n, S), device="cuda", generator=g)
    seeds = torch.zeros(1, dtype=torch.int64, device="cuda")
    return Step(
        0,
        64,
        tokens,
        Blocks(torch.zeros_like(tokens[:1]), 1, masked),
        n,
        0,
        seeds,
        False,
        (1, 2),
        (0,),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="Also the time of every kernel.")
    parser.add_argument("--hot", action="store_true", help="Matrix products before each step.")
    arguments = parser.parse_args()
    speed, before = bandwidth(), matrix_products() if arguments.hot else None
    name = torch.cuda.get_device_name()
    print(
        f"{name}, torch {torch.__version__}, triton {triton.__version__}; "
        f"a copy moves {speed / 1e9:.2f} TB/s\n"
    )
    print("| n, S, masked | what | ms | host ms | floor ms | GB read | extra MiB |")
    print("|---|---|---|---|---|---|---|")
    guides = {
        "plain": None,
        **{name: oddlm.Repulsion(name, alpha=8) for name in ("odd", "dpp", "odd_sequential")},
        "odd, torch": oddlm.Repulsion("odd", alpha=8, backend="closed_form"),
    }
    for n, S in SHAPES:
        g = torch.Generator(device="cuda").manual_seed(0)
        logits = torch.randn(n, S, V, device="cuda", dtype=torch.bfloat16, generator=g) * 3
        for share, temperature in ((1.0, 1.0), (1.0, 0.0), (0.5, 1.0)):
            step = step_of(n, S, share)
            cells = int(step.masked.sum()) * V * 2
            for what, guide in guides.items():
                if what not in ("plain", "odd") and (n, S, share, temperature) != (
                    16,
                    64,
                    1.0,
                    1.0,
                ):
                    continue

                asked = {} if guide is None else {"asked": guide.backend, "forms": guide.forms}
                backend = dispatch.choose(logits.device, logits.dtype, **asked)
                running = None if guide is None else guide.begin(INFO, backend, None, resumes=False)

                def call(
                    logits: Any = logits,
                    backend: Any = backend,
                    running: Any = running,
                    step: Step = step,
                    temperature: float = temperature,
                ) -> Any:
                    outlook = Outlook(logits, None, step.masked, step, Alarm(patient=True), backend)
                    outlook, _ = look(outlook, running, None, step)
                    return predict(
                        outlook, temperature=temperature, top_k=None, top_p=None, needs=None
                    )

                read = cells * (1 if guide is None else 3)
                repeats = arguments.repeats if "torch" not in what else 3
                took = median_ms(
                    replay(call) if what in ("plain", "odd") else call, repeats, before
                )
                figures = f"{took:.3f} | {host_ms(call):.2f} | {read / speed:.3f}"
                figures += f" | {read / 1e9:.2f} | {extra_mib(call):.0f}"
                print(
                    f"| {n}, {S}, {share:.0%}, temperature {temperature:g} | {what} | {figures} |",
                    flush=True,
                )
                if arguments.profile and what == "odd" and (share, temperature) == (1.0, 1.0):
                    profile(call)


def profile(call: Callable[[], Any]) -> None:
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as seen:
        call()
        torch.cuda.synchronize()
    print(
        seen.key_averages().table(
            sort_by="cuda_time_total", row_limit=22, max_name_column_width=60
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()

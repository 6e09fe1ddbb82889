"""Count what a sampling step asks of the host beside the network, and how long that takes.

    python benchmarks/host.py [--steps 24] [--vocabulary 512] [--profile ODD]

Random logits answer the queries of three runs: a masked model that writes 16 answers of 256 tokens
in blocks of 32, one that writes 4 answers of 32 tokens, and a block-causal model that writes 16
answers of 1024 tokens in blocks of 4. Each is sampled plainly, with the default guide and with ODD
(alpha 8 in all steps), as on a GPU: with the fused kernels, whose launches are counted and left
out. What is timed is thus Python and the dispatch of torch's operations; the results of kernels are
undefined. Views and allocations are not counted as operations, since they launch nothing. "waits"
are operations that read a number back, for which the host would wait for a GPU. (A guide's one is
alpha, which is computed on the host.) Times are medians of a step's query and of the rest.
--profile shows where the time of one guide goes.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # a CPU run takes the kernels of a GPU, too

import argparse
import cProfile
import pstats
import statistics
import time
from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

import oddlm
from oddlm.core import run as running
from oddlm.core.alarm import Alarm
from oddlm.core.model import ModelInfo
from oddlm.core.run import advance
from oddlm.sampler import begin

GUIDES: dict[str, oddlm.Repulsion | None] = {
    "plain": None,
    "default": oddlm.Repulsion(),
    "ODD": oddlm.Repulsion(alpha=8),
}
# Settings of a run, and what is special about its model.
RUNS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "masked, 16 x 256": ({"n": 16, "length": 256, "block_length": 32}, {}),
    "masked, 4 x 32": ({"n": 4, "length": 32}, {}),
    "block-causal, 16 x 1024": (
        {"n": 16, "length": 1024},
        {"block_length": 4, "align": "absolute"},
    ),
}
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")
FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "view", "_unsafe_view", "as_strided",
    "expand", "slice", "select", "split", "unbind", "diagonal", "unsqueeze", "squeeze", "t",
    "transpose", "permute", "alias", "detach",
}  # fmt: skip
LAUNCHES: Counter[str] = Counter()


class Operations(TorchDispatchMode):
    """Counts torch's operations by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        self.counts[name] += name not in FREE
        return function(*args, **(kwargs or {}))


def count_launch(kernel: InterpretedFunction[Any], grid: Any) -> Callable[..., None]:
    LAUNCHES[kernel.fn.__name__] += 1
    return lambda *_, **__: None


def act_as_on_a_gpu() -> None:
    """Leave launches out, and check logits without waiting for them."""
    InterpretedFunction.__getitem__ = count_launch
    running.Alarm = lambda *_: Alarm(True)  # type: ignore[assignment,attr-defined]


class Run:
    """A run that is answered with random logits."""

    def __init__(self, name: str, guide: str, vocabulary: int) -> None:
        settings, special = RUNS[name]
        info = ModelInfo(vocabulary, 3, (1, 2), dtype=torch.float32, selective=True, **special)
        prompt = list(range(5, 37))
        self.state = begin(
            info,
            [prompt],
            steps=settings["length"],
            temperature=1.0,
            guide=GUIDES[guide],
            **settings,  # type: ignore[arg-type]
        )
        self.logits = torch.randn(settings["n"] * settings["length"] * vocabulary)

    def step(self) -> tuple[float, float]:
        """Take a step, and return the seconds of its query and of the rest."""
        began = time.perf_counter()
        query = self.state.query
        asked = time.perf_counter()
        assert query is not None
        (B, T), m = query.tokens.shape, query.positions
        shape = B, T - query.start if m is None else m.shape[1], self.state.plan.info.vocab_size
        logits = self.logits[: prod(shape)].view(shape)
        answered = time.perf_counter()
        self.state, _ = advance(self.state, logits, query=query)
        return asked - began, time.perf_counter() - answered


def row(name: str, guide: str, vocabulary: int, steps: int) -> str:
    run = Run(name, guide, vocabulary)
    run.step()
    run.step()
    LAUNCHES.clear()
    with Operations() as operations:
        run.step()
    counts, launches = operations.counts, LAUNCHES.total()
    times = [run.step() for _ in range(steps)]
    query, rest = (statistics.median(x) for x in zip(*times, strict=True))
    cells = (
        name,
        guide,
        str(counts.total()),
        str(sum(counts[wait] for wait in WAITS)),
        str(launches),
        f"{query * 1e6:.0f}",
        f"{rest * 1e6:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def profile(guide: str, vocabulary: int, steps: int) -> None:
    """Print what the steps of every run spend their time and operations on."""
    for name in RUNS:
        run = Run(name, guide, vocabulary)
        run.step()
        LAUNCHES.clear()
        with Operations() as operations:
            run.step()
        print(f"\n{name}: {operations.counts.most_common()}\n{LAUNCHES.most_common()}")
        with cProfile.Profile() as profiler:
            for _ in range(steps):
                run.step()
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=24, help="steps that are timed")
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--profile", choices=tuple(GUIDES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    act_as_on_a_gpu()
    if given.profile:
        profile(given.profile, given.vocabulary, given.steps)
        return
    print(f"CPU, 1 thread, torch {torch.__version__}, V = {given.vocabulary}\n")
    print("| run | guide | operations | waits | launches | query, us | rest, us |")
    print("|---|---|---|---|---|---|---|")
    for name in RUNS:
        for guide in GUIDES:
            print(row(name, guide, given.vocabulary, given.steps), flush=True)


if __name__ == "__main__":
    main()

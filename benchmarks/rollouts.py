"""Compare rollouts with the sampler alone, and with one `LM.generate` per prompt.

    python benchmarks/rollouts.py [--shape mini] [--device cpu] [--repeats 9]
    python benchmarks/rollouts.py --shape llada-8b --device cuda --prompts 8 --n 8 --length 256 \
        --steps 64

All three draw the same samples. `denoise` is the sampler alone: many prompts at a time, no
log-probabilities, nothing but tokens. They take turns in one process, in an order that changes, and
are compared round by round: "cost" is the median of the time over that of `denoise` in the same
round, with its quartiles. Times on a CPU are CPU time, with one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import oddlm
from oddlm.bench.overhead import SHAPES, build_model, machine
from oddlm.core.model import info_of
from oddlm.drawing import batched, repulsion, run_options
from oddlm.lm import LM
from oddlm.rolling import as_lm

PROMPT = 60  # tokens of a prompt for networks with random weights
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"alpha": 0.0, "temperature": 1.0},
    "default": {"temperature": 1.0},
    "careful": {"preset": "careful", "temperature": 1.0},
    "careful, temperature 0.7": {"preset": "careful", "temperature": 0.7},
}


@dataclass(frozen=True)
class Work:
    """What is drawn."""

    lm: LM
    prompts: Sequence[Sequence[int]]
    n: int
    params: oddlm.SampleParams
    max_batch: int

    @property
    def together(self) -> int:
        return max(1, self.max_batch // self.n)

    def denoise(self, seed: int) -> Any:
        for i in range(0, len(self.prompts), self.together):
            some = self.prompts[i : i + self.together]
            seeds = list(range(seed + i, seed + i + len(some)))
            options = run_options(self.params, self.lm.info, self.n, seeds)
            model = batched(self.lm.model, self.n * len(some), self.max_batch)
            guide = repulsion(self.params)
            oddlm.denoise(model, some, guide=guide, progress=False, **options)

    def rollouts(self, seed: int) -> Any:
        return oddlm.rollouts(
            self.lm,
            self.prompts,
            self.n,
            params=self.params,
            seeds=range(seed, seed + len(self.prompts)),
            max_batch=self.max_batch,
        )

    def loop(self, seed: int) -> Any:
        for i, prompt in enumerate(self.prompts):
            options = {"seeds": [seed + i], "max_batch": self.max_batch, "progress": False}
            self.lm.generate([prompt], self.n, params=self.params, **options)


def timed(call: Callable[[int], Any], seed: int, device: torch.device) -> float:
    """Return the seconds of a call: of a CPU the time used, which other processes do not change."""
    if device.type != "cuda":
        began = time.process_time()
        call(seed)
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    call(seed)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(work: Work, repeats: int) -> dict[str, list[float]]:
    ways = {"denoise": work.denoise, "rollouts": work.rollouts, "generate, in a loop": work.loop}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(0)
    names = list(ways)
    for round_ in range(repeats):
        shift = round_ % len(names)
        for name in names[shift:] + names[:shift]:
            seed = 1000 * (round_ + 1)  # the same for all three
            times[name].append(timed(ways[name], seed, work.lm.info.device))
    return times


def load(shape: str, device: str, dtype: str) -> LM:
    if shape not in SHAPES:
        return oddlm.load(shape, device=device)
    return as_lm(build_model(shape, machine(device)[0], dtype, "none"))


def prompts_of(lm: LM, shape: str, count: int) -> list[list[int]]:
    if shape == "mini":
        problems = oddlm.tasks.find_task("countdown").problems()[:count]
        return [lm.tokenizer.encode(f"{problem.prompt}\n") for problem in problems]
    generator = torch.Generator().manual_seed(0)
    size = (count, PROMPT)
    return torch.randint(5, info_of(lm.model).vocab_size, size, generator=generator).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="mini", help=f"mini, or {', '.join(SHAPES)}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bf16", help="of random weights")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    lm = load(given.shape, given.device, given.dtype)
    prompts = prompts_of(lm, given.shape, given.prompts)
    print(
        f"{given.shape}, {lm.info.dtype}, {machine(given.device)[1]}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads: {len(prompts)} prompts x {given.n}, length "
        f"{given.length}, {given.steps} steps, max_batch {given.max_batch}, "
        f"{given.repeats} rounds\n"
    )
    print("| settings | way | rollouts per second | cost | quartiles |\n|---|---|---|---|---|")
    for name, settings in SETTINGS.items():
        shape = {"length": given.length, "steps": given.steps}
        params = oddlm.SampleParams().with_settings({**shape, **settings})
        times = measure(Work(lm, prompts, given.n, params, given.max_batch), given.repeats)
        for way, seconds in times.items():
            ratios = [a / b for a, b in zip(seconds, times["denoise"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            rate = len(prompts) * given.n / statistics.median(seconds)
            print(f"| {name} | {way} | {rate:.1f} | {middle:.3f} | {low:.3f} to {high:.3f} |")


if __name__ == "__main__":
    main()

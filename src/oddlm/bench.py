"""What diversity costs: time per step and memory of plain sampling and of ODD beside the network alone."""

import csv
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from .diversity.guide import Repulsion
from .models import load_model
from .models.transformer import Transformer, TransformerConfig
from .sampler import denoise_steps, lay_canvas
from .types import Guide, Model

SHAPES = {  # random weights: what a network says does not change how long it takes
    "llada-8b": TransformerConfig(vocab_size=126464, width=4096, layers=32, heads=32, hidden=12288),
    "1b": TransformerConfig(vocab_size=126464, width=2048, layers=16, heads=16, hidden=5632),
    "tiny": TransformerConfig(vocab_size=2048, width=64, layers=2, heads=2, hidden=128),
}
PAPER = {"n": (4, 16, 64), "length": (8, 32, 128), "steps": (4, 8, 16)}  # the paper's grid, steps <= length
PROMPT = 150


@dataclass(frozen=True, slots=True)
class Cost:
    """Times in ms per step: medians, and the mean of the differences of neighbouring runs with its 95 % interval."""

    model: str
    dtype: str
    n: int
    length: int
    steps: int
    network_ms: float
    plain_ms: float
    odd_ms: float
    overhead: float  # of ODD over plain, in per cent
    overhead_low: float
    overhead_high: float
    plain_mib: float  # peak beside weights
    odd_extra_mib: float  # peak of ODD above that of plain


class RandomNetwork:
    """A transformer of a given shape with random weights, as the sampler wants it."""

    mask_id, protected_ids = 0, (1, 2)

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype, compiled: bool) -> None:
        self.name, self.device, self.vocab_size = name, device, SHAPES[name].vocab_size
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)  # 8 billion weights are made where and as they stay
        try:
            with device:
                self.network = Transformer(SHAPES[name]).eval().requires_grad_(False)
        finally:
            torch.set_default_dtype(default)
        if compiled:
            for block in self.network.blocks:  # all blocks share one compiled code
                block.compile(dynamic=False)

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        logits: Tensor = self.network(tokens, start, prompt_lengths)
        return logits


def build_model(name: str, device: torch.device, dtype: torch.dtype, compiled: bool) -> Model:
    """A shape with random weights, or a known model."""
    if name in SHAPES:
        return RandomNetwork(name, device, dtype, compiled)
    try:
        return load_model(name, device=device, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{error}; shapes: {', '.join(SHAPES)}") from error


def overhead(
    model: Model,
    grid: Iterable[tuple[int, int, int]],
    *,
    dtype: str,
    alpha: float,
    temperature: float,
    repeats: int,
) -> Iterator[Cost]:
    """The cost of each (n, length, steps). Plain and ODD take turns in going first: what changes over time touches both."""
    for n, length, steps in grid:
        prompt = [5 + i % 32 for i in range(PROMPT)]
        run = partial(_steps_ms, model, prompt, n, length, steps, temperature)
        guides: tuple[Guide | None, Guide] = None, Repulsion(alpha=alpha)
        peaks = [_peak_mib(model, partial(run, guide)) for guide in guides]  # warms up and compiles, too
        peaks = [_peak_mib(model, partial(run, guide)) for guide in guides]
        network = statistics.median(_network_ms(model, prompt, n, length, max(steps, 8)))
        pairs = [_in_turn(run, guides, backwards=i % 2 == 1) for i in range(repeats)]
        plain, odd = (statistics.median(t for pair in pairs for t in pair[i]) for i in range(2))
        shares = [100 * (statistics.median(b) / statistics.median(a) - 1) for a, b in pairs]
        low, high = _interval(shares)
        yield Cost(
            model=str(getattr(model, "name", type(model).__name__)),
            dtype=dtype,
            n=n,
            length=length,
            steps=steps,
            network_ms=network,
            plain_ms=plain,
            odd_ms=odd,
            overhead=statistics.mean(shares),
            overhead_low=low,
            overhead_high=high,
            plain_mib=peaks[0],
            odd_extra_mib=peaks[1] - peaks[0],
        )


def _in_turn(run: Callable[[Guide | None], list[float]], guides: Sequence[Guide | None], backwards: bool) -> list[list[float]]:
    times = [run(guide) for guide in (reversed(guides) if backwards else guides)]
    return times[::-1] if backwards else times


def paper_grid() -> list[tuple[int, int, int]]:
    return expand(PAPER["n"], PAPER["length"], PAPER["steps"])


def expand(n: Sequence[int], length: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int, int]]:
    """All combinations with steps <= length."""
    grid = [cell for cell in product(n, length, steps) if cell[2] <= cell[1]]
    if not grid:
        raise ValueError(f"no combination has steps <= length: steps {list(steps)}, length {list(length)}")
    return grid


def _steps_ms(
    model: Model, prompt: Sequence[int], n: int, length: int, steps: int, temperature: float, guide: Guide | None
) -> list[float]:
    """Of each step but the first, which fills the pipeline; all of them where there is only one."""
    mark = _marks(model)
    mark()
    for _ in denoise_steps(model, [prompt], n=n, length=length, steps=steps, temperature=temperature, guide=guide):
        mark()
    times = mark.finish()
    return times[1:] or times


def _network_ms(model: Model, prompt: Sequence[int], n: int, length: int, calls: int) -> list[float]:
    canvas, lengths = lay_canvas(model, [prompt], n, length)
    start = canvas.shape[1] - length
    mark = _marks(model)
    with torch.no_grad():
        for _ in range(calls):
            mark()
            model(canvas, start, lengths)
        mark()
    return mark.finish()[1:]


class _Marks:
    """Moments on a GPU's own clock, without waiting for it; on a CPU the host's."""

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.moments = cuda, []  # type: ignore[var-annotated]

    def __call__(self) -> None:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.moments.append(event)
        else:
            self.moments.append(time.perf_counter())

    def finish(self) -> list[float]:
        """Milliseconds between the moments."""
        pairs = zip(self.moments, self.moments[1:], strict=False)
        if not self.cuda:
            return [1e3 * (b - a) for a, b in pairs]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairs]


def _marks(model: Model) -> _Marks:
    return _Marks(_device(model).type == "cuda")


def _device(model: Model) -> torch.device:
    return torch.device(getattr(model, "device", "cpu"))


def _peak_mib(model: Model, run: Callable[[], object]) -> float:
    """The most memory that a run holds at once beside what is there before; 0 on a CPU, where nobody counts it."""
    if _device(model).type != "cuda":
        run()
        return 0.0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % by Student's t, of the mean; the value itself where there is one."""
    if len(values) < 2:
        return values[0], values[0]
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}.get(len(values), 2.1)
    half = t * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values) - half, statistics.mean(values) + half


def claims(costs: Sequence[Cost]) -> list[str]:
    """The paper's three, each as far as the figures can tell."""
    said = []
    for name, key in (("flat in the number of steps", "steps"), ("independent of the model", "model")):
        groups: dict[tuple[object, ...], list[Cost]] = {}
        for cost in costs:
            groups.setdefault(tuple(v for k, v in asdict(cost).items() if k in _AXES and k != key), []).append(cost)
        spreads = [max(c.overhead for c in g) - min(c.overhead for c in g) for g in groups.values() if len(g) > 1]
        if spreads:
            said.append(
                f"{name}: the overhead differs by {statistics.median(spreads):.1f} points (median), {max(spreads):.1f} at most"
            )
    by_n = sorted({(c.n, c.length): c.odd_extra_mib for c in costs if c.odd_extra_mib > 0}.items())
    if len({n for (n, _), _ in by_n}) > 1:
        rates = [mib / n for (n, _), mib in by_n]
        said.append(f"memory grows with n: {min(rates):.2f} to {max(rates):.2f} MiB a sample")
    return said


_AXES = ("model", "dtype", "n", "length", "steps")


def markdown(costs: Sequence[Cost]) -> str:
    lines = [
        "| model | n | S | T | network ms | plain ms | ODD ms | ODD over plain | peak MiB, plain | ODD's extra MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in costs:
        over = f"{c.overhead:+.2f} % [{c.overhead_low:+.2f}, {c.overhead_high:+.2f}]"
        times = f"{c.network_ms:.2f} | {c.plain_ms:.2f} | {c.odd_ms:.2f}"
        memory = f"{c.plain_mib:.0f} | {c.odd_extra_mib:.1f}"
        lines.append(f"| {c.model} {c.dtype} | {c.n} | {c.length} | {c.steps} | {times} | {over} | {memory} |")
    return "\n".join(lines)


def write_csv(costs: Sequence[Cost], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Cost)])
        writer.writeheader()
        writer.writerows(asdict(c) for c in costs)


def draw(costs: Sequence[Cost], path: Path) -> None:
    """Time per step over samples, one line per length and kind; needs matplotlib."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for length in sorted({c.length for c in costs}):
        cells = sorted({c.n: c for c in costs if c.length == length}.values(), key=lambda c: c.n)
        for kind, style in (("network", ":"), ("plain", "--"), ("odd", "-")):
            times = [getattr(c, f"{kind}_ms") for c in cells]
            axes.plot([c.n for c in cells], times, style, marker="o", label=f"S={length}, {kind}")
    axes.set(xlabel="samples n", ylabel="ms per step", xscale="log", yscale="log")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)

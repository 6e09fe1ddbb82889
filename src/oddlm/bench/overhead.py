"""What diversity costs: time per step and memory of plain sampling and of ODD beside the network
alone.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product

import torch
from torch import Tensor, nn

from ..core.model import Model, Query, info_of, open_session
from ..core.run import State, advance
from ..diversity.repulsion import Repulsion
from ..models import load_model
from ..models.families import published
from ..models.families.dream import DREAM
from ..models.families.llada import LLADA
from ..models.loading.architecture import Keys
from ..models.loading.device import chosen_device, named_dtype
from ..models.loading.quant import QUANTIZATIONS, assign, prepare
from ..models.native import COMPILED, Native
from ..models.transformer import Transformer, TransformerConfig
from ..sampler import begin
from .costs import AIMS, Ceilings, Cost, network_flops

SHAPES = {  # random weights: what a network says does not change how long it takes
    "llada-8b": LLADA.config(Keys("LLADA_8B", published.LLADA_8B)),
    "dream-7b": DREAM.config(Keys("DREAM_7B", published.DREAM_7B)),
    "1b": TransformerConfig(vocab_size=126464, width=2048, layers=16, heads=16, hidden=5632),
    "tiny": TransformerConfig(vocab_size=2048, width=64, layers=2, heads=2, hidden=128),
}
DTYPES = ("bf16", "fp16", "fp32", *QUANTIZATIONS)
PAPER = {
    "n": (4, 16, 64),
    "length": (8, 32, 128),
    "steps": (4, 8, 16),
}  # the paper's grid, steps <= length
GRIDS = ("paper", "aims")
MODELS = {
    None: "llada-8b",
    "paper": "llada-8b,dream-7b",
    "aims": "llada-8b",
}  # by grid: two to see whether they differ
COMPILE = (*COMPILED, "none")
PROMPT = 150

Cell = tuple[int, int, int]  # n, length, steps


def machine(device: str | None) -> tuple[torch.device, str]:
    """The device, and what it is called."""
    found = chosen_device(device)
    return found, torch.cuda.get_device_name(found) if found.type == "cuda" else "CPU"


def build_model(name: str, device: torch.device, dtype: str, compiled: str) -> Model:
    """A shape with random weights, or a known model; quantised weights are not compiled."""
    quantize = dtype if dtype in QUANTIZATIONS else None
    numbers = torch.bfloat16 if quantize else named_dtype(dtype)
    if name in SHAPES:
        how = None if quantize or compiled == "none" else compiled
        network = random_network(SHAPES[name], device, numbers, quantize)
        return Native(network, name=name, mask_id=0, end_ids=(1, 2), compiled=how)
    try:
        return load_model(
            name, device=device, dtype=numbers, **({"quantize": quantize} if quantize else {})
        )
    except ValueError as error:
        raise ValueError(f"{error}; shapes: {', '.join(SHAPES)}") from error


def random_network(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype, quantize: str | None
) -> Transformer:
    """Every weight is made where and as it stays."""
    with torch.device("meta"):
        network = prepare(Transformer(config).to(dtype), quantize)
    for module in network.modules():
        for attribute, empty in list(module.named_parameters(recurse=False)):
            made = torch.empty(empty.shape, dtype=dtype, device=device)
            assign(
                module,
                attribute,
                nn.init.ones_(made) if made.dim() == 1 else nn.init.normal_(made, std=0.02),
            )
    return network


def overhead(
    model: Model,
    grid: Iterable[Cell],
    *,
    dtype: str,
    alpha: float,
    temperature: float,
    repeats: int,
) -> Iterator[Cost]:
    """The cost of each (n, length, steps): in every round the network alone, plain sampling and ODD
    take one step each, in an order that turns, so that what changes over time touches all three.
    """
    ceilings = measure_ceilings(_device(model), dtype)
    shape = None
    for cell in grid:
        if cell[:2] != shape and isinstance(model, Native) and model.compiled == "fixed":
            torch.compiler.reset()  # torch would not compile every shape of a long grid
        shape = cell[:2]
        lanes = _Lanes(model, *cell, temperature, Repulsion("odd", alpha=alpha))
        for guide in lanes.guides:
            lanes.short_run(guide)  # warms up and compiles
        peaks = [_peak_mib(model, partial(lanes.short_run, guide)) for guide in lanes.guides]
        rounds = [times for i in range(repeats) for times in lanes.run(i)]
        network, plain, odd = (statistics.median(times) for times in zip(*rounds, strict=True))
        shares = sorted(100 * (b / a - 1) for _, a, b in rounds)
        low, high = _interval(shares)
        asked = lanes.asked()
        teraflops, plain_gb, odd_gb = _work(model, *cell[:2], statistics.mean(asked[1:] or asked))
        yield Cost(
            model=info_of(model).name,
            dtype=dtype,
            n=cell[0],
            length=cell[1],
            steps=cell[2],
            network_ms=network,
            plain_ms=plain,
            odd_ms=odd,
            overhead=statistics.median(shares),
            overhead_low=low,
            overhead_high=high,
            pairs=len(shares),
            plain_mib=peaks[0],
            odd_extra_mib=peaks[1] - peaks[0],
            teraflops=teraflops,
            plain_gb=plain_gb,
            odd_gb=odd_gb,
            floor_ms=1e3
            * max(1e12 * teraflops / ceilings.matrix_rate, 1e9 * odd_gb / ceilings.bandwidth),
        )


def grid_cells(name: str) -> list[Cell]:
    """`paper`: the paper's grid. `aims`: the cells that have aims, 16 steps each."""
    if name == "paper":
        return expand(PAPER["n"], PAPER["length"], PAPER["steps"])
    return [(n, length, 16) for n, length in AIMS]


def expand(n: Sequence[int], length: Sequence[int], steps: Sequence[int]) -> list[Cell]:
    """All combinations with steps <= length."""
    for name, values in (("n", n), ("length", length), ("steps", steps)):
        if min(values) < 1:
            raise ValueError(f"{name} must be 1 or more, not {min(values)}")
    grid = [cell for cell in product(n, length, steps) if cell[2] <= cell[1]]
    if not grid:
        raise ValueError(
            f"no combination has steps <= length: steps {list(steps)}, length {list(length)}"
        )
    return grid


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The network alone, plain sampling and ODD, side by side."""

    model: Model
    n: int
    length: int
    steps: int
    temperature: float
    guide: Repulsion

    @property
    def guides(self) -> tuple[Repulsion | None, Repulsion]:
        return None, self.guide

    def begin(self, guide: Repulsion | None, steps: int, seed: int = 0) -> State:
        options = {"n": self.n, "length": self.length, "temperature": self.temperature}
        return begin(self.model, [_prompt()], steps=steps, guide=guide, seed=seed, **options)  # type: ignore[arg-type]

    def sampling(self, guide: Repulsion | None, steps: int, seed: int = 0) -> Iterator[None]:
        """A run, one step at a time."""
        state = self.begin(guide, steps, seed)
        assert state.query is not None
        session = open_session(self.model, state.query)
        while (query := state.query) is not None:
            state, _ = advance(state, session(query))
            yield

    def short_run(self, guide: Repulsion | None) -> None:
        """Its first step, where everything is masked, takes the most memory."""
        for _ in self.sampling(guide, min(2, self.steps)):
            pass

    def queries(self) -> Iterator[Query]:
        """What a run asks at each step, on a canvas of random tokens: on samples that are alike a
        GPU is faster.
        """
        state = self.begin(None, self.steps)
        canvas = torch.randint(
            5, info_of(self.model).vocab_size, state.tokens.shape, device=state.tokens.device
        )
        places = torch.arange(self.length, device=canvas.device).repeat(self.n, 1)
        query, counts = state.query, state.plan.counts or ()
        assert query is not None
        for index, count in enumerate(counts[:-1]):
            some = (
                None
                if query.positions is None and not state.plan.info.selective
                else places[:, :count]
            )
            tokens = torch.cat([query.tokens[:, : query.start], canvas], dim=1)
            yield replace(
                query, number=index, tokens=tokens, positions=None if count == self.length else some
            )

    def asked(self) -> list[int]:
        """For how many positions of a sample the network answers at each step."""
        return [
            self.length if query.positions is None else query.positions.shape[1]
            for query in self.queries()
        ]

    @torch.no_grad()
    def network(self) -> Iterator[Tensor]:
        """The network alone, at each step for as many positions as the samplers ask."""
        queries = list(self.queries())
        session = open_session(self.model, queries[0])
        for query in queries:
            yield session(query)

    def run(self, seed: int) -> list[tuple[float, ...]]:
        """Per round the ms of the three; without the first, which fills the pipeline, where there
        are more.
        """
        runs = [self.network(), *(self.sampling(guide, self.steps, seed) for guide in self.guides)]
        lanes = [partial(next, run) for run in runs]
        orders = list(permutations(range(len(lanes))))
        marks, taken = _Marks(_device(self.model).type == "cuda"), []
        for i in range(self.steps):
            taken.append(orders[i % len(orders)])
            for lane in taken[-1]:
                marks()
                lanes[lane]()
        marks()
        times = iter(marks.finish())
        rounds = [
            tuple(ms for _, ms in sorted((lane, next(times)) for lane in order)) for order in taken
        ]
        return rounds[1:] or rounds


def _prompt() -> list[int]:
    return [5 + i % 32 for i in range(PROMPT)]


def _work(model: Model, n: int, length: int, asked: float) -> tuple[float, float, float]:
    """Teraflops of the network, and the fewest gigabytes of a step, plain and ODD, with logits of
    `asked` positions.
    """
    if not isinstance(model, Native):
        return 0.0, 0.0, 0.0
    network = model.network
    read = [network.blocks, network.norm, network.embed if network.head is None else network.head]
    weights = sum(p.nbytes for part in read for p in part.parameters())
    logits = n * asked * model.vocab_size * model.embedding.element_size()
    flops = network_flops(network.config, n, PROMPT, length, asked)
    return flops / 1e12, (weights + 2 * logits) / 1e9, (weights + 4 * logits) / 1e9


def measure_ceilings(device: torch.device, dtype: str) -> Ceilings:
    """By one large copy and one large matrix product, the best of some; smaller ones on a CPU."""
    cuda = device.type == "cuda"
    size, side = (1 << 31, 8192) if cuda else (1 << 26, 512)
    numbers = torch.bfloat16 if dtype in QUANTIZATIONS else named_dtype(dtype)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(numbers) for _ in range(2))

    def best(call: Callable[[], object]) -> float:
        marks = _Marks(cuda)
        for _ in range(10):
            marks()
            call()
        marks()
        return min(marks.finish()[1:]) / 1e3

    return Ceilings(
        2 * size / best(lambda: target.copy_(source)), 2 * side**3 / best(lambda: a @ b)
    )


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


def _device(model: Model) -> torch.device:
    return info_of(model).device


def _peak_mib(model: Model, run: Callable[[], object]) -> float:
    """The most memory that a run holds at once beside what is there before; 0 on a CPU, where
    nobody counts it.
    """
    if _device(model).type != "cuda":
        return 0.0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _interval(ordered: Sequence[float]) -> tuple[float, float]:
    """95 % of the median, by order statistics; all there is where the values are few."""
    outside = max(int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5), 0)
    return ordered[outside], ordered[-1 - outside]

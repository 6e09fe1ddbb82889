"""Measure the time per step and the memory of the network alone, plain sampling, and ODD."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product

import torch
from torch import Tensor, nn

from ..core.model import Model, Query, info_of, open_session
from ..core.run import advance
from ..core.state import State
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
from .memory import peak_mib

SHAPES = {  # with random weights: the time does not depend on the values
    "llada-8b": LLADA.config(Keys("LLADA_8B", published.LLADA_8B)),
    "dream-7b": DREAM.config(Keys("DREAM_7B", published.DREAM_7B)),
    "1b": TransformerConfig(vocab_size=126464, width=2048, layers=16, heads=16, hidden=5632),
    "tiny": TransformerConfig(vocab_size=2048, width=64, layers=2, heads=2, hidden=128),
}
DTYPES = ("bf16", "fp16", "fp32", *QUANTIZATIONS)
# the paper's grid, restricted to steps <= length
PAPER = {"n": (4, 16, 64), "length": (8, 32, 128), "steps": (4, 8, 16)}
GRIDS = ("paper", "aims")
# by grid; two models show whether they differ
MODELS = {None: "llada-8b", "paper": "llada-8b,dream-7b", "aims": "llada-8b"}
COMPILE = (*COMPILED, "none")
PROMPT = 150

Cell = tuple[int, int, int]  # n, length, steps


def machine(device: str | None) -> tuple[torch.device, str]:
    """Return the device and its name."""
    found = chosen_device(device)
    return found, torch.cuda.get_device_name(found) if found.type == "cuda" else "CPU"


def build_model(name: str, device: torch.device, dtype: str, compiled: str) -> Model:
    """Build a shape with random weights, or load a model. Quantised weights are not compiled."""
    quantize = dtype if dtype in QUANTIZATIONS else None
    torch_dtype = torch.bfloat16 if quantize else named_dtype(dtype)
    if name in SHAPES:
        how = None if quantize or compiled == "none" else compiled
        network = random_network(SHAPES[name], device, torch_dtype, quantize)
        return Native(network, name=name, mask_id=0, end_ids=(1, 2), compiled=how)
    options = {"quantize": quantize} if quantize else {}
    try:
        return load_model(name, device=device, dtype=torch_dtype, **options)
    except ValueError as error:
        raise ValueError(f"{error}; shapes: {', '.join(SHAPES)}") from error


def random_network(
    config: TransformerConfig, device: torch.device, dtype: torch.dtype, quantize: str | None
) -> Transformer:
    """Create a network with random weights, each directly on its device and in its dtype."""
    with torch.device("meta"):
        network = prepare(Transformer(config).to(dtype), quantize)
    for module in network.modules():
        for attribute, empty in list(module.named_parameters(recurse=False)):
            made = torch.empty(empty.shape, dtype=dtype, device=device)
            filled = nn.init.ones_(made) if made.dim() == 1 else nn.init.normal_(made, std=0.02)
            assign(module, attribute, filled)
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
    """Yield the cost of each (n, length, steps).

    In every round the network alone, plain sampling and ODD take one step each. Their order changes
    from round to round, so that drift over time affects all three alike.
    """
    ceilings = measure_ceilings(_device(model), dtype)
    shape = None
    for cell in grid:
        if cell[:2] != shape and isinstance(model, Native) and model.compiled == "fixed":
            torch.compiler.reset()  # torch limits the number of shapes that it compiles
        shape = cell[:2]
        lanes = _Lanes(model, *cell, temperature, Repulsion("odd", alpha=alpha))
        for guide in lanes.guides:
            lanes.short_run(guide)  # warm up and compile
        peaks = [
            peak_mib(_device(model), partial(lanes.short_run, guide)) for guide in lanes.guides
        ]
        rounds = [times for i in range(repeats) for times in lanes.run(i)]
        network, plain, odd = (statistics.median(times) for times in zip(*rounds, strict=True))
        shares = sorted(100 * (b / a - 1) for _, a, b in rounds)
        low, high = _interval(shares)
        positions = lanes.positions()
        mean_positions = statistics.mean(positions[1:] or positions)
        teraflops, plain_gb, odd_gb = _work(model, *cell[:2], mean_positions)
        compute_s = 1e12 * teraflops / ceilings.matrix_rate
        memory_s = 1e9 * odd_gb / ceilings.bandwidth
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
            floor_ms=1e3 * max(compute_s, memory_s),
        )


def grid_cells(name: str) -> list[Cell]:
    """Return the cells of the paper's grid (`paper`), or those with targets, 16 steps (`aims`)."""
    if name == "paper":
        return expand(PAPER["n"], PAPER["length"], PAPER["steps"])
    return [(n, length, 16) for n, length in AIMS]


def expand(n: Sequence[int], length: Sequence[int], steps: Sequence[int]) -> list[Cell]:
    """Return all combinations with steps <= length."""
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
        return begin(self.model, [prompt()], steps=steps, guide=guide, seed=seed, **options)  # type: ignore[arg-type]

    def sampling(self, guide: Repulsion | None, steps: int, seed: int = 0) -> Iterator[None]:
        """Run the sampler, one step per iteration."""
        state = self.begin(guide, steps, seed)
        assert state.query is not None
        session = open_session(self.model, state.query)
        while (query := state.query) is not None:
            state, _ = advance(state, session(query))
            yield

    def short_run(self, guide: Repulsion | None) -> None:
        """Run two steps. The first, with everything masked, takes the most memory."""
        for _ in self.sampling(guide, min(2, self.steps)):
            pass

    def queries(self) -> Iterator[Query]:
        """Yield the queries of a run, with random tokens: a GPU is faster on identical samples."""
        state = self.begin(None, self.steps)
        canvas = torch.randint(
            5, info_of(self.model).vocab_size, state.tokens.shape, device=state.tokens.device
        )
        places = torch.arange(self.length, device=canvas.device).repeat(self.n, 1)
        query, schedule = state.query, state.plan.schedule or ()
        assert query is not None
        for index, moment in enumerate(schedule):
            count = moment.masked
            everywhere = query.positions is None and not state.plan.info.selective
            positions = None if everywhere or count == self.length else places[:, :count]
            tokens = torch.cat([query.tokens[:, : query.start], canvas], dim=1)
            yield replace(query, number=index, tokens=tokens, positions=positions)

    def positions(self) -> list[int]:
        """Return, for each step, the number of positions of a sample that get logits."""
        return [
            self.length if query.positions is None else query.positions.shape[1]
            for query in self.queries()
        ]

    @torch.no_grad()
    def network(self) -> Iterator[Tensor]:
        """Run the network alone, at each step for as many positions as the samplers request."""
        queries = list(self.queries())
        session = open_session(self.model, queries[0])
        for query in queries:
            yield session(query)

    def run(self, seed: int) -> list[tuple[float, ...]]:
        """Return the ms of the three for each round.

        The first round, which fills the pipeline, is left out unless it is the only one.
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


def prompt(length: int = PROMPT) -> list[int]:
    return [5 + i % 32 for i in range(length)]


def _work(model: Model, n: int, length: int, positions: float) -> tuple[float, float, float]:
    """Return the teraflops of the network, and the least gigabytes of a plain and an ODD step.

    positions: per sample, for which logits are computed.
    """
    if not isinstance(model, Native):
        return 0.0, 0.0, 0.0
    network = model.network
    read = [network.blocks, network.norm, network.embed if network.head is None else network.head]
    weights = sum(p.nbytes for part in read for p in part.parameters())
    logits = n * positions * model.vocab_size * model.embedding.element_size()
    flops = network_flops(network.config, n, PROMPT, length, positions)
    return flops / 1e12, (weights + 2 * logits) / 1e9, (weights + 4 * logits) / 1e9


def measure_ceilings(device: torch.device, dtype: str) -> Ceilings:
    """Time a large copy and a large matrix product, smaller on a CPU, and take the best times."""
    cuda = device.type == "cuda"
    size, side = (1 << 31, 8192) if cuda else (1 << 26, 512)
    torch_dtype = torch.bfloat16 if dtype in QUANTIZATIONS else named_dtype(dtype)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(torch_dtype) for _ in range(2))

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
    """Timestamps: on a GPU by its own clock, without synchronising; otherwise by the host's."""

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


def _interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median by order statistics; the range of a few values."""
    outside = max(int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5), 0)
    return ordered[outside], ordered[-1 - outside]

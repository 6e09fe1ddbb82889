"""Measure how long answers take, by lane, beside what the matrix products alone need.

A lane is a way to run the network (without a cache, with one, compiled) and a sampler.
"""

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.model import Model, info_of, open_session
from ..core.run import advance
from ..core.state import State
from ..diversity.repulsion import Repulsion
from ..models.native import Native
from ..models.transformer import Transformer, TransformerConfig
from ..sampler import begin
from .costs import PER_ANSWERS, Lane, published_ms
from .memory import peak_mib
from .overhead import prompt

NETWORKS = ("none", "prefix", "dual", "exact", "compiled")
SAMPLERS = ("plain", "odd", "threshold")
NARROW = {"width": 16, "heads": 2, "head_size": None, "hidden": 32, "vocab_size": 256}
Shape = tuple[int, int, int]  # rows, inner size, columns


class Took(NamedTuple):
    """Seconds."""

    wall: float
    work: float  # on a CPU: of the processor, which other processes do not affect


@dataclass(frozen=True, slots=True)
class Setting:
    """What every lane has to do."""

    n: int
    length: int
    steps: int
    block_length: int | None
    alpha: float
    temperature: float

    def narrow(self) -> "Setting":
        """Return a setting with as many steps and blocks, and one token per step."""
        blocks = ceil(self.length / (self.block_length or self.length))
        per_block = ceil(self.steps / blocks)
        return replace(
            self,
            length=blocks * per_block,
            block_length=None if self.block_length is None else per_block,
        )


@dataclass(frozen=True)
class Way:
    """A model that runs in some way, and a sampler."""

    model: Model
    sampler: str
    setting: Setting
    start: int  # length of the prompt

    def begin(self) -> State:
        setting = self.setting
        options: dict[str, Any] = {"temperature": setting.temperature, "stop_at_end": False}
        if self.sampler == "odd":
            options["guide"] = Repulsion("odd", alpha=setting.alpha)
        elif self.sampler != "plain":
            options["policy"] = self.sampler
        return begin(
            self.model,
            [prompt(self.start)],
            n=setting.n,
            length=setting.length,
            steps=setting.steps,
            block_length=setting.block_length,
            **options,
        )

    def run(self, most: int | None = None, record: "Products | None" = None) -> int:
        """Draw the answers and return the number of steps; `most`: end after so many."""
        state, taken = self.begin(), 0
        assert state.query is not None
        session = open_session(self.model, state.query)
        while (query := state.query) is not None and taken != most:
            if record is None:
                logits = session(query)
            else:
                with record:
                    logits = session(query)
            state, _ = advance(state, logits)
            taken += 1
        return taken


class Products(TorchDispatchMode):
    """Notes the shapes of matrix products with weights. Attention is not among them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[Shape] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = args[-2:]
            self.shapes.append((*left.shape, right.shape[1]))
        return func(*args, **(kwargs or {}))


class Replay:
    """The noted products again, one after the other and nothing else."""

    def __init__(self, shapes: Sequence[Shape], device: torch.device, dtype: torch.dtype) -> None:
        self.shapes = shapes
        rows: dict[int, int] = {}  # most rows by width, of inputs and results alike
        for m, k, n in shapes:
            rows |= {k: max(m, rows.get(k, 0))}
            rows |= {n: max(m, rows.get(n, 0))}
        make = partial(torch.randn, device=device, dtype=dtype)
        self._inputs = {k: make(rows[k], k) for k in {k for _, k, _ in shapes}}
        self._results = {
            n: torch.empty(rows[n], n, device=device, dtype=dtype) for n in {n for *_, n in shapes}
        }
        self._weights = {(k, n): make(n, k).t() for k, n in {(k, n) for _, k, n in shapes}}

    def __call__(self) -> None:
        for m, k, n in self.shapes:
            torch.mm(self._inputs[k][:m], self._weights[k, n], out=self._results[n][:m])


@dataclass
class _Measured:
    """A lane while it is being measured, with a time per turn."""

    network: str
    way: Way
    eager: Way  # the same work, where operations can be noted
    narrow: Way | None  # the same steps of a network so narrow that the host is what takes long
    steps: int = 0
    narrow_steps: int = 0
    extra_mib: float = 0.0
    shapes: list[Shape] = field(default_factory=list)
    runs: list[Took] = field(default_factory=list)
    floors: list[Took] = field(default_factory=list)
    hosts: list[Took] = field(default_factory=list)

    @cached_property
    def replay(self) -> Replay:
        info = info_of(self.way.model)
        return Replay(self.shapes, info.device, info.dtype or torch.float32)

    def prepare(self) -> None:
        """Compile, note the products, and measure memory."""
        device = info_of(self.way.model).device
        self.extra_mib = peak_mib(device, partial(self.way.run, most=2))
        if self.way is not self.eager:
            self.extra_mib = peak_mib(device, partial(self.way.run, most=2))  # without compiling
        record = Products()
        self.steps = self.eager.run(record=record)
        self.shapes = record.shapes
        if self.narrow is not None:
            self.narrow_steps = self.narrow.run()

    def turn(self) -> None:
        device = info_of(self.way.model).device
        self.runs.append(_took(device, self.way.run))
        if self.shapes:
            self.replay()
            self.floors.append(_took(device, self.replay))
            del self.replay  # its memory is for the other lanes
        if self.narrow is not None:
            self.hosts.append(_took(device, self.narrow.run))

    def lane(self, base: "_Measured", model: str, dtype: str) -> Lane:
        setting, steps = self.way.setting, self.steps
        block = setting.block_length or setting.length
        step = [1e3 * run.wall / steps for run in self.runs]
        work = [1e3 * run.work / steps for run in self.runs]
        floor = [1e3 * took.work / steps for took in self.floors]
        host = [1e3 * took.work / self.narrow_steps for took in self.hosts]
        seconds = statistics.median(run.wall for run in self.runs) * PER_ANSWERS / setting.n
        speed = [b.work / a.work for a, b in zip(self.runs, base.runs, strict=True)]
        over = [a / b for a, b in zip(work, floor, strict=True)] if floor else []
        shares = [a / b for a, b in zip(host, work, strict=True)] if host else []
        return Lane(
            model=model,
            dtype=dtype,
            n=setting.n,
            length=setting.length,
            block_length=block,
            network=self.network,
            sampler=self.way.sampler,
            steps=steps,
            step_ms=statistics.median(step),
            step_ms_low=min(step),
            step_ms_high=max(step),
            seconds=seconds,
            tokens_per_s=PER_ANSWERS * setting.length / seconds,
            speed=statistics.median(speed),
            speed_low=min(speed),
            speed_high=max(speed),
            floor_ms=_median(floor),
            over_floor=_median(over),
            over_floor_low=min(over, default=None),
            over_floor_high=max(over, default=None),
            host_ms=_median(host),
            host_share=_median(shares),
            extra_mib=self.extra_mib,
            published_ms=published_ms(
                (self.network, self.way.sampler), model, dtype, setting.n, setting.length, block
            ),
        )


def answers(
    model: Model,
    lanes: Sequence[tuple[str, str]],
    setting: Setting,
    *,
    dtype: str,
    repeats: int,
    start: int,
    tick: Callable[[str], None] = lambda _: None,
) -> list[Lane]:
    """Measure (network, sampler) pairs in turns; the first with the same sampler is the base."""
    name = info_of(model).name
    setting = replace(
        setting, block_length=info_of(model).default_block_length or setting.block_length
    )
    models = {network: run_as(model, network) for network, _ in lanes}
    eager = run_as(model, "none") if "compiled" in models else model
    twins = {network: _narrow(model, network, setting) for network in models}
    measured = []
    for network, sampler in lanes:
        way = Way(models[network], sampler, setting, start)
        small = twins[network]
        measured.append(
            _Measured(
                network,
                way,
                Way(eager, sampler, setting, start) if network == "compiled" else way,
                None if small is None else Way(small, sampler, setting.narrow(), 1),
            )
        )
    for one in measured:
        one.prepare()
        tick(f"{one.network}, {one.way.sampler}: warm")
    for turn in range(repeats):
        first = turn % len(measured)
        for one in measured[first:] + measured[:first]:
            one.turn()
            tick(f"{one.network}, {one.way.sampler}")
    bases = {one.way.sampler: one for one in reversed(measured)}
    return [one.lane(bases[one.way.sampler], name, dtype) for one in measured]


def usual_networks(model: Model) -> tuple[str, ...]:
    """Return the ways to run a network of this kind; compiling pays on a GPU only."""
    if not isinstance(model, Native):
        return ("none",)
    caches = ("prefix", "dual") if model.network.config.block_length is None else ("exact",)
    return ("none", *caches, *(["compiled"] if model.device.type == "cuda" else []))


def run_as(model: Model, network: str) -> Model:
    """Return a model with the same weights that runs in this way."""
    if not isinstance(model, Native):
        if network != "none":
            raise ValueError(
                f"{info_of(model).name} runs in one way only: leave out {network!r} of the networks"
            )
        return model
    return _native(model.network, model, network)


def _native(network: Transformer, like: Native, way: str) -> Native:
    if way == "exact" and network.config.block_length is None:
        raise ValueError("network 'exact' needs a block-causal model: use prefix or dual")
    if way == "compiled":  # compiling changes the modules, which the other lanes use
        network = copy.deepcopy(network, {id(p): p for p in network.parameters()})
    caches: dict[str, Any] = {"none": "off", "compiled": "off", "exact": None}
    return Native(
        network,
        name=like.name,
        mask_id=like.mask_id,
        end_ids=like.end_ids,
        context=like.context,
        confidence=like.confidence,
        cache=caches.get(way, way),
        compiled="fixed" if way == "compiled" else None,
    )


def _narrow(model: Model, way: str, setting: Setting) -> Native | None:
    """Return a model with as many blocks that are so narrow that the host is what takes long.

    None if the model does not run on our `Transformer`, or has experts.
    """
    if not isinstance(model, Native) or model.network.config.experts is not None:
        return None
    config = model.network.config
    sizes: dict[str, Any] = dict(NARROW)
    sizes["kv_heads"] = 1 if config.key_heads != config.heads else None
    sizes["rotary_size"] = None
    if config.block_length is not None:
        sizes["block_length"] = setting.narrow().block_length
    network = _random(replace(config, **sizes), model)
    twin = Native(network, name="narrow", mask_id=0, end_ids=(1, 2), confidence=model.confidence)
    return _native(network, twin, way)


def _random(config: TransformerConfig, like: Native) -> Transformer:
    network = Transformer(config)
    return network.to(like.device, like.embedding.dtype)


def _took(device: torch.device, call: Callable[[], object]) -> Took:
    """Time a call, and what it leaves to the device."""
    _wait(device)
    began, worked = time.perf_counter(), time.process_time()
    call()
    _wait(device)
    wall = time.perf_counter() - began
    return Took(wall, wall if device.type == "cuda" else time.process_time() - worked)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None

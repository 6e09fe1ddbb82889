"""Tables and charts of the cost of a step, next to its lower bound and to our targets.

The lower bound follows from the bytes and FLOPs that a step needs.
"""

import csv
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any, get_type_hints

from ..files import save_figure, write_whole
from ..models.transformer import TransformerConfig


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a step; times are medians in ms.

    The overhead is the median over pairs of adjacent steps, with its 95 % interval.
    """

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
    pairs: int
    plain_mib: float  # peak memory, without weights
    odd_extra_mib: float  # peak memory of ODD above that of plain
    # of the network, mean over the timed steps; this and the next three are 0 if its shape is
    # not known
    teraflops: float
    plain_gb: float  # lower bound: weights read once, logits written and read once
    odd_gb: float  # lower bound: the same, but logits read three times
    # the maximum of FLOPs / measured matrix rate and of ODD's bytes / measured bandwidth
    floor_ms: float


PER_ANSWERS = 16  # the number of answers whose time is reported


@dataclass(frozen=True, slots=True)
class Lane:
    """The cost of answers drawn in one way; medians over turns, `low` and `high` are their range.

    None: not known for this network.
    """

    model: str
    dtype: str
    n: int
    length: int
    block_length: int
    network: str  # how it runs: none (without a cache), prefix, dual, exact, compiled
    sampler: str
    steps: int  # network evaluations
    step_ms: float
    step_ms_low: float
    step_ms_high: float
    seconds: float  # per PER_ANSWERS answers
    tokens_per_s: float
    speed: float  # times that of the first lane with the same sampler, turn by turn
    speed_low: float
    speed_high: float
    floor_ms: float | None  # of a step: its matrix products with weights alone
    over_floor: float | None  # a step divided by its floor, turn by turn
    over_floor_low: float | None
    over_floor_high: float | None
    host_ms: float | None  # of a step, on a network so narrow that only the host takes time
    host_share: float | None
    extra_mib: float  # peak memory, without weights
    published_ms: float | None  # of Fast-dLLM, where the setting is the same


@dataclass(frozen=True, slots=True)
class Aim:
    """The ms per step of the published code on an H200, and our targets there."""

    published_plain_ms: float
    published_odd_ms: float
    odd_ms: float
    overhead: float
    extra_mib: float


AIMS = {  # by n and length; for a network of 8 billion parameters in bfloat16, 150 prompt tokens
    (16, 64): Aim(111.2, 122.6, 80, 1.0, 64),
    (16, 128): Aim(146.7, 166.0, 110, 1.0, 64),
    (16, 256): Aim(208.0, 242.1, 165, 1.0, 96),
    (64, 64): Aim(437.9, 519.5, 320, 1.5, 256),
}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The measured limits of the machine."""

    bandwidth: float  # bytes per second of a copy, read and written
    matrix_rate: float  # FLOPs per second of a matrix product


def network_flops(
    config: TransformerConfig, n: int, prompt: int, length: int, positions: float | None = None
) -> float:
    """Return the FLOPs of one evaluation of n samples: matrix products and attention.

    In the last block only generated positions have queries. Its MLP and the head run on
    `positions` of them (default: all).
    """
    T, inner = prompt + length, config.heads * config.head
    positions = length if positions is None else positions
    earlier = T * (config.layers - 1)
    queries, mlps = earlier + length, earlier + positions  # positions, summed over the blocks
    kv_width = 2 * config.key_heads * config.head
    products: float = config.layers * T * config.width * (inner + kv_width)
    products += queries * inner * config.width + mlps * 3 * config.width * config.hidden
    products += positions * config.width * config.vocab_size
    return 2 * n * (products + 2 * queries * T * inner)


def claims(costs: Sequence[Cost]) -> list[str]:
    """Return the paper's claims with what these costs say about them, if anything."""
    found = []
    names = {
        "steps": "flat in the number of steps",
        "model": "independent of the model",
        "dtype": "independent of the dtype",
    }
    for key, name in names.items():
        groups: dict[tuple[object, ...], list[Cost]] = {}
        for cost in costs:
            others = tuple(v for k, v in asdict(cost).items() if k in _AXES and k != key)
            groups.setdefault(others, []).append(cost)
        overheads = [[c.overhead for c in group] for group in groups.values() if len(group) > 1]
        spreads = [max(values) - min(values) for values in overheads]
        if spreads:
            found.append(
                f"{name}: the overhead differs by {statistics.median(spreads):.1f} points "
                f"(median), {max(spreads):.1f} at most"
            )
    known = [c for c in costs if c.odd_extra_mib > 0]
    if len({c.n for c in known}) > 1:
        rates = [c.odd_extra_mib / c.n for c in known]
        found.append(f"memory grows with n: {min(rates):.2f} to {max(rates):.2f} MiB per sample")
    return found


OVER = {"n": "samples n", "length": "tokens S", "steps": "steps T"}
FAR = 10.0  # percentage points between the lowest and the highest bound, for a linear scale
_AXES = ("model", "dtype", "n", "length", "steps")


def markdown(costs: Sequence[Cost]) -> str:
    """Return the costs as a Markdown table."""
    heads = ["model", "n", "S", "T", "floor ms", "network ms", "plain ms", "ODD ms"]
    heads += ["ODD over plain", "pairs"]
    heads += ["plain MiB", "ODD's extra MiB", "TFLOP", "GB, plain", "GB, ODD"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for c in costs:
        over = f"{c.overhead:+.2f} % [{c.overhead_low:+.2f}, {c.overhead_high:+.2f}]"
        times = f"{c.floor_ms:.2f} | {c.network_ms:.2f} | {c.plain_ms:.2f} | {c.odd_ms:.2f}"
        memory = f"{c.plain_mib:.0f} | {c.odd_extra_mib:.1f}"
        work = f"{c.teraflops:.2f} | {c.plain_gb:.2f} | {c.odd_gb:.2f}"
        setting = f"{c.model} {c.dtype} | {c.n} | {c.length} | {c.steps}"
        lines.append(f"| {setting} | {times} | {over} | {c.pairs} | {memory} | {work} |")
    return "\n".join(lines)


def aims_table(costs: Sequence[Cost]) -> str:
    """Return a Markdown table of the cells that have targets; empty if there are none."""
    known = [
        (c, aim)
        for c in costs
        if (aim := AIMS.get((c.n, c.length))) and (c.model, c.dtype) == ("llada-8b", "bf16")
    ]
    if not known:
        return ""
    heads = ["n, S", "published code: plain / ODD ms", "ODD ms", "aim", "ODD over plain", "aim"]
    heads += ["ODD's extra MiB", "aim"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for c, aim in known:
        results = [
            (f"{c.odd_ms:.1f}", f"{aim.odd_ms:g}", c.odd_ms <= aim.odd_ms),
            (f"{c.overhead:+.2f} %", f"{aim.overhead:g} %", c.overhead <= aim.overhead),
            (f"{c.odd_extra_mib:.0f}", f"{aim.extra_mib:g}", c.odd_extra_mib <= aim.extra_mib),
        ]
        parts = " | ".join(
            f"{value} | at most {most}: {'met' if met else 'missed'}"
            for value, most, met in results
        )
        lines.append(
            f"| {c.n}, {c.length} | {aim.published_plain_ms} / {aim.published_odd_ms} | {parts} |"
        )
    return "\n".join(lines)


PUBLISHED = "Fast-dLLM on one H200"
PUBLISHED_MS = {("none", "plain"): 245.0, ("dual", "plain"): 62.0}  # by network and sampler
PUBLISHED_EXTRA_GIB = 35


def published_ms(lane: tuple[str, str], model: str, dtype: str, *shape: int) -> float | None:
    """Return the published ms of a step for n, length and block length; None if they differ."""
    same = (model, dtype, *shape) == ("llada-8b", "bf16", 16, 256, 32)
    return PUBLISHED_MS.get(lane) if same else None


def write_csv(rows: Sequence[Cost | Lane], path: Path) -> None:
    table = StringIO(newline="")
    writer = csv.DictWriter(table, [f.name for f in fields(rows[0])])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_whole(path, table.getvalue().encode())


def read_csv(path: Path) -> list[Cost]:
    """Read a file of `write_csv`."""
    kinds = get_type_hints(Cost)
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not rows or set(rows[0]) != set(kinds):
        raise ValueError(
            f"{path} is not a table of `oddlm bench overhead`, which has rows with the columns "
            f"{', '.join(kinds)}"
        )
    try:
        return [Cost(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def draw(costs: Sequence[Cost], path: Path) -> None:
    """Plot ODD's overhead in per cent against samples, tokens and steps. Needs matplotlib.

    There is a panel for each of the three in which the cells differ. In each panel, a cell is a dot
    with its interval, and a bar is the median of a network's cells.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("pictures need the extra 'plot': pip install 'oddlm[plot]'") from error
    shown = [axis for axis in OVER if len({getattr(c, axis) for c in costs}) > 1] or ["n"]
    figure = Figure(figsize=(1.2 + 3.4 * len(shown), 3.8), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, shown, strict=True):
        _draw_over(panel, axis, costs)
    scale = _scale(panels[0], costs)
    panels[0].set_ylabel("ODD over plain, % of a step")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    figure.suptitle(f"Dots: cells, with 95 % intervals. Bars: their medians.{scale}", fontsize=9)
    save_figure(figure, path, dpi=150)


def _draw_over(panel: Any, axis: str, costs: Sequence[Cost]) -> None:
    values = sorted({getattr(c, axis) for c in costs})
    networks = list(dict.fromkeys((c.model, c.dtype) for c in costs))
    share = 0.8 / len(networks)  # of the space between two ticks
    panel.axhline(0, color="black", linestyle="--", linewidth=0.8)
    for i, network in enumerate(networks):
        label = " ".join(network)
        for x, value in enumerate(values):
            group = [
                c for c in costs if (c.model, c.dtype) == network and getattr(c, axis) == value
            ]
            if not group:
                continue
            left = x - 0.4 + i * share
            places = [left + share * (j + 0.5) / len(group) for j in range(len(group))]
            over = [c.overhead for c in group]
            bars = [
                [c.overhead - c.overhead_low for c in group],
                [c.overhead_high - c.overhead for c in group],
            ]
            panel.errorbar(
                places,
                over,
                yerr=bars,
                fmt="o",
                color=f"C{i}",
                markersize=3,
                elinewidth=0.8,
                alpha=0.6,
            )
            ends = left + 0.05 * share, left + 0.95 * share
            panel.hlines(statistics.median(over), *ends, color=f"C{i}", linewidth=2.2, label=label)
            label = ""  # once per network
    panel.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    panel.set(xlabel=OVER[axis], xlim=(-0.5, len(values) - 0.5))
    panel.grid(axis="y", alpha=0.25)


def _scale(panel: Any, costs: Sequence[Cost]) -> str:
    """Set the scale of the y axis, and return a remark about it for the title.

    If some cells are far off, the scale is logarithmic beyond 2, so that the others stay legible.
    """
    low = min(0.0, *(c.overhead_low for c in costs))
    high = max(0.0, *(c.overhead_high for c in costs))
    if high - low <= FAR:
        return ""
    panel.set_yscale("symlog", linthresh=2, linscale=1)
    ticks = sorted(
        sign * value for value in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500) for sign in (-1, 1)
    )
    kept = sorted({tick for tick in ticks if low <= tick <= high} | {0})
    panel.set_yticks(kept, [f"{tick:g}" for tick in kept])
    panel.set_yticks([], minor=True)
    panel.set_ylim(1.2 * low - 0.2, 1.2 * high + 0.2)
    return " The scale is logarithmic beyond 2."

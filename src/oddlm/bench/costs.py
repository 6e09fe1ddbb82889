"""What a step costs, as tables: measured times beside the least that bytes and FLOPs allow, and
what was aimed at.
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
    """Of a step, in ms: medians.

    The overhead is the median over steps taken side by side, with its 95 % interval.
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
    plain_mib: float  # peak beside weights
    odd_extra_mib: float  # peak of ODD above that of plain
    # of the network, mean over the steps timed; 0 where its shape is not known, as are the next
    # three
    teraflops: float
    plain_gb: float  # the fewest bytes: weights read, logits written and read once
    odd_gb: float  # read three times
    # the longer of FLOPs over the measured matrix rate and ODD's bytes over the measured bandwidth
    floor_ms: float


@dataclass(frozen=True, slots=True)
class Aim:
    """The published code's ms per step on an H200, and what ours is to need there."""

    published_plain_ms: float
    published_odd_ms: float
    odd_ms: float
    overhead: float
    extra_mib: float


AIMS = {  # by n and length: an 8-billion network in bfloat16, prompt of 150 tokens
    (16, 64): Aim(111.2, 122.6, 80, 1.0, 64),
    (16, 128): Aim(146.7, 166.0, 110, 1.0, 64),
    (16, 256): Aim(208.0, 242.1, 165, 1.0, 96),
    (64, 64): Aim(437.9, 519.5, 320, 1.5, 256),
}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine reaches: a copy's bytes per second, read and written; a matrix product's
    FLOPs per second.
    """

    bandwidth: float
    matrix_rate: float


def network_flops(
    config: TransformerConfig, n: int, prompt: int, length: int, asked: float | None = None
) -> float:
    """Of one evaluation: products and attention. In the last block generated positions alone
    listen; its feed-forward part and the head run on `asked` of them (default: all).
    """
    T, inner, asked = (
        prompt + length,
        config.heads * config.head,
        length if asked is None else asked,
    )
    listening, fed = T * (config.layers - 1) + length, T * (config.layers - 1) + asked
    products: float = (
        config.layers * T * config.width * (inner + 2 * config.key_heads * config.head)
    )
    products += listening * inner * config.width + fed * 3 * config.width * config.hidden
    products += asked * config.width * config.vocab_size
    return 2 * n * (products + 2 * listening * T * inner)


def claims(costs: Sequence[Cost]) -> list[str]:
    """The paper's three, each as far as the figures can tell."""
    said = []
    names = {
        "steps": "flat in the number of steps",
        "model": "independent of the model",
        "dtype": "independent of the numbers",
    }
    for key, name in names.items():
        groups: dict[tuple[object, ...], list[Cost]] = {}
        for cost in costs:
            groups.setdefault(
                tuple(v for k, v in asdict(cost).items() if k in _AXES and k != key), []
            ).append(cost)
        spreads = [
            max(c.overhead for c in g) - min(c.overhead for c in g)
            for g in groups.values()
            if len(g) > 1
        ]
        if spreads:
            said.append(
                f"{name}: the overhead differs by {statistics.median(spreads):.1f} points (median), {max(spreads):.1f} at most"
            )
    known = [c for c in costs if c.odd_extra_mib > 0]
    if len({c.n for c in known}) > 1:
        rates = [c.odd_extra_mib / c.n for c in known]
        said.append(f"memory grows with n: {min(rates):.2f} to {max(rates):.2f} MiB a sample")
    return said


OVER = {"n": "samples n", "length": "tokens S", "steps": "steps T"}
FAR = 10.0  # points between the lowest and the highest bound
_AXES = ("model", "dtype", "n", "length", "steps")


def markdown(costs: Sequence[Cost]) -> str:
    heads = [
        "model",
        "n",
        "S",
        "T",
        "floor ms",
        "network ms",
        "plain ms",
        "ODD ms",
        "ODD over plain",
        "pairs",
    ]
    heads += ["plain MiB", "ODD's extra MiB", "TFLOP", "GB, plain", "GB, ODD"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for c in costs:
        over = f"{c.overhead:+.2f} % [{c.overhead_low:+.2f}, {c.overhead_high:+.2f}]"
        times = f"{c.floor_ms:.2f} | {c.network_ms:.2f} | {c.plain_ms:.2f} | {c.odd_ms:.2f}"
        memory = f"{c.plain_mib:.0f} | {c.odd_extra_mib:.1f}"
        work = f"{c.teraflops:.2f} | {c.plain_gb:.2f} | {c.odd_gb:.2f}"
        lines.append(
            f"| {c.model} {c.dtype} | {c.n} | {c.length} | {c.steps} | {times} | {over} | {c.pairs} | {memory} | {work} |"
        )
    return "\n".join(lines)


def aims_table(costs: Sequence[Cost]) -> str:
    """The cells that have aims, beside them; empty where there are none."""
    known = [
        (c, aim)
        for c in costs
        if (aim := AIMS.get((c.n, c.length))) and (c.model, c.dtype) == ("llada-8b", "bf16")
    ]
    if not known:
        return ""
    lines = [
        "| n, S | published code: plain / ODD ms | ODD ms | aim | ODD over plain | aim | ODD's extra MiB | aim |",
        "|" + "---|" * 8,
    ]
    for c, aim in known:
        cells = [
            (f"{c.odd_ms:.1f}", f"{aim.odd_ms:g}", c.odd_ms <= aim.odd_ms),
            (f"{c.overhead:+.2f} %", f"{aim.overhead:g} %", c.overhead <= aim.overhead),
            (f"{c.odd_extra_mib:.0f}", f"{aim.extra_mib:g}", c.odd_extra_mib <= aim.extra_mib),
        ]
        parts = " | ".join(
            f"{value} | at most {most}: {'met' if met else 'missed'}" for value, most, met in cells
        )
        lines.append(
            f"| {c.n}, {c.length} | {aim.published_plain_ms} / {aim.published_odd_ms} | {parts} |"
        )
    return "\n".join(lines)


def write_csv(costs: Sequence[Cost], path: Path) -> None:
    table = StringIO(newline="")
    writer = csv.DictWriter(table, [f.name for f in fields(Cost)])
    writer.writeheader()
    writer.writerows(asdict(c) for c in costs)
    write_whole(path, table.getvalue().encode())


def read_csv(path: Path) -> list[Cost]:
    """What `write_csv` wrote."""
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
            f"{path} is no table of `oddlm bench overhead`: it needs rows with the columns {', '.join(kinds)}"
        )
    try:
        return [Cost(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def draw(costs: Sequence[Cost], path: Path) -> None:
    """ODD's overhead in per cent over samples, tokens and steps, as far as the cells differ in
    them; needs matplotlib.

    Every cell is a dot with its interval, in each panel; bars are the medians of a network's cells.
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
    share = 0.8 / len(networks)  # of the room between two ticks
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
    """Plain numbers; where some cells lie far off, steps that grow, so that the others can still be
    told apart: in words.
    """
    low, high = (
        min(0.0, *(c.overhead_low for c in costs)),
        max(0.0, *(c.overhead_high for c in costs)),
    )
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
    return " The scale is uneven beyond 2."

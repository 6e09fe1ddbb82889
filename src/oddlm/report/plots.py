"""The figures of the paper, at the size a paper uses.

The colours suit colour-blind readers: Okabe and Ito's for methods and temperatures, viridis for
alphas.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import metrics
from ..files import save_figure
from .cells import Benchmark, Cell
from .claims import log_overhead, overhead_by
from .intervals import best_alpha

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 5.5  # inches: the text width of a one-column paper
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = "osD^vP*X"
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # TrueType fonts, which publishers require
    "text.parse_math": False,  # names may contain dollar signs
}
MEASURES = {  # of diversity -> label; figures show the first that is known
    "embedding_diversity": "1 - cosine of embeddings",
    "vendi_ngram": "Vendi score (words)",
    "distinct_2": "distinct-2",
}


PLAIN: dict[str, Any] = {"color": "black", "linestyle": "--", "marker": "o"}
ACROSS = "Pass@1: correct samples (%)"


@dataclass(frozen=True)
class Line:
    label: str
    style: Mapping[str, Any]
    cells: Sequence[Cell]


class NothingToDrawError(ValueError):
    """A figure cannot be drawn from these runs; the message says why."""


def draw(figure_of: Callable[[], "Figure"], path: Path) -> None:
    """Save a figure as .png and .pdf; `path` has no suffix."""
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ValueError("figures need the extra 'plot': pip install 'oddlm[plot]'") from error
    with rc_context(STYLE):
        figure = figure_of()
        save_figure(figure, path.with_name(f"{path.name}.png"), dpi=200)
        save_figure(figure, path.with_name(f"{path.name}.pdf"), metadata={"CreationDate": None})


def pass_k(bench: Benchmark, method: str) -> "Figure":
    """Plot Pass@k over k: a panel per temperature, a line per alpha, plain sampling dashed."""
    cells = [
        cell
        for cell in bench.main
        if cell.passed and cell.method in (method, _plain_of(bench, method))
    ]
    temperatures = sorted({cell.temperature for cell in cells if cell.method == method})
    if not temperatures:
        raise NothingToDrawError(f"{bench.name} has no Pass@k of {method}")
    colours = _shades({cell.alpha for cell in cells if not cell.plain})
    figure, panels = _panels(temperatures, "Pass@k (%)", "k")
    for panel, temperature in zip(panels, temperatures, strict=False):
        panel.set_title(f"θ = {temperature:g}")
        for cell in sorted(
            (c for c in cells if c.temperature == temperature), key=lambda c: (not c.plain, c.alpha)
        ):
            ks = sorted(cell.passed)
            mean, se = (
                np.array([100 * getattr(cell.passed[k], part) for k in ks])
                for part in ("mean", "se")
            )
            style = (
                {"color": "black", "linestyle": "--"}
                if cell.plain
                else {"color": colours[cell.alpha]}
            )
            panel.plot(ks, mean, label="plain" if cell.plain else f"α = {cell.alpha:g}", **style)
            panel.fill_between(
                ks, mean - se, mean + se, color=style["color"], alpha=0.15, linewidth=0
            )
        panel.set_xticks(sorted({1, *range(4, bench.n + 1, max(4, bench.n // 16 * 4)), bench.n}))
    _legend(figure, panels)
    return figure


def pareto(bench: Benchmark, method: str) -> "Figure":
    """Plot Pass@1 against Pass@n, with a line per alpha through the temperatures."""
    cells = [cell for cell in bench.main if cell.method in (method, _plain_of(bench, method))]
    colours = _shades({cell.alpha for cell in cells if not cell.plain})
    lines = []
    for i, (alpha, some) in enumerate(sorted(_by_alpha(cells).items())):
        style = (
            PLAIN if some[0].plain else {"color": colours[alpha], "marker": MARKS[i % len(MARKS)]}
        )
        lines.append(Line("plain" if some[0].plain else f"α = {alpha:g}", style, some))
    figure, (panel,) = _panels([0], f"Pass@{bench.n} (%)", ACROSS, width=3.8, height=2.6)
    _trade(panel, bench, lines)
    panel.set_title(f"{method}, {bench.name}; small numbers: θ")
    _legend(figure, [panel])
    return figure


def pareto_of_methods(bench: Benchmark) -> "Figure":
    """Plot Pass@1 against Pass@n, with a line per method at its alpha of largest mean gain."""
    return _by_method(bench, ACROSS, _trade)


def methods(bench: Benchmark) -> "Figure":
    """Plot Pass@n over temperature, with a line per method at its alpha of largest mean gain."""
    figure = _by_method(bench, "temperature θ", _over_temperature)
    for panel in figure.axes:
        panel.set_xticks(sorted({cell.temperature for cell in bench.main}))
    return figure


def _trade(panel: Any, bench: Benchmark, lines: Sequence[Line]) -> None:
    known = [
        replace(line, cells=[c for c in line.cells if {1, bench.n} <= set(c.passed)])
        for line in lines
    ]
    if not any(line.cells and not line.cells[0].plain for line in known):
        raise NothingToDrawError(
            f"{bench.name} has no Pass@1 (share of correct samples) together with Pass@{bench.n}"
        )
    for line in known:
        cells = sorted(line.cells, key=lambda cell: cell.temperature)
        x, y = ([100 * cell.passed[k].mean for cell in cells] for k in (1, bench.n))
        errors = {"xerr": _errors(cells, 1), "yerr": _errors(cells, bench.n), "elinewidth": 0.5}
        panel.errorbar(x, y, label=line.label, **errors, **line.style)
        ends: dict[tuple[float, float], list[str]] = {}
        for cell in (cells[0], cells[-1]) if len(cells) > 1 else ():
            place = (100 * cell.passed[1].mean, 100 * cell.passed[bench.n].mean)
            ends.setdefault(place, []).append(f"{cell.temperature:g}")
        for place, temperatures in ends.items():
            label = ", ".join(temperatures)
            panel.annotate(label, place, fontsize=6, xytext=(3, 3), textcoords="offset points")


def _over_temperature(panel: Any, bench: Benchmark, lines: Sequence[Line]) -> None:
    for line in lines:
        cells = sorted(line.cells, key=lambda cell: cell.temperature)
        y = [100 * cell.passed[bench.n].mean for cell in cells]
        panel.errorbar(
            [c.temperature for c in cells],
            y,
            yerr=_errors(cells, bench.n),
            label=line.label,
            **line.style,
        )


def _by_method(
    bench: Benchmark, x: str, fill: Callable[[Any, Benchmark, Sequence[Line]], None]
) -> "Figure":
    """Plot plain objectives in one panel, methods with other settings in a second one.

    Plain sampling is in both.
    """
    plain, bare, other = _method_lines(bench)
    groups = {"objectives": [*plain, *bare], "with other settings": [*plain, *other]}
    shown = {
        title: lines
        for title, lines in groups.items()
        if len(lines) > len(plain) or not (bare or other)
    }
    figure, panels = _panels(
        list(shown), f"Pass@{bench.n} (%)", x, width=WIDTH if len(shown) > 1 else 3.8, height=2.4
    )
    for panel, (title, lines) in zip(panels, shown.items(), strict=True):
        fill(panel, bench, lines)
        panel.set_title(f"{bench.name}: {title}" if len(shown) > 1 else bench.name)
    _legend(figure, panels)
    return figure


def _method_lines(bench: Benchmark) -> tuple[list[Line], list[Line], list[Line]]:
    """Return lines for plain sampling, the other bare objectives, and the rest.

    Each method has its best alpha, or all alphas if the best is unknown.
    """
    plain: list[Line] = []
    bare: list[Line] = []
    other: list[Line] = []
    objectives = {cell.objective for cell in bench.main}
    # objectives first, so that they get the first colours
    for method in sorted(bench.methods, key=lambda method: method not in objectives):
        cells = [cell for cell in bench.main if cell.method == method and bench.n in cell.passed]
        best = best_alpha(bench, method)
        for alpha, some in sorted(_by_alpha(cells).items()):
            if best is not None and alpha != best:
                continue
            lines = plain if method == "plain" else bare if method in objectives else other
            style = PLAIN if method == "plain" else _style(len(bare) + len(other))
            lines.append(
                Line(method if some[0].plain else f"{method} (α = {alpha:g})", style, some)
            )
    return plain, bare, other


def _style(i: int) -> dict[str, Any]:
    """Return the i-th style: the colours are repeated with other line styles and marks."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKS[1 + i % (len(MARKS) - 1)],
        "linestyle": ("-", ":", "-.")[i // len(COLOURS) % 3],
    }


def diversity(bench: Benchmark, method: str) -> "Figure":
    """Plot diversity over alpha: a line per temperature, its baseline dashed."""
    name = next(
        (name for name in MEASURES if any(name in cell.diversity for cell in bench.main)), None
    )
    cells = [cell for cell in bench.main if name and name in cell.diversity]
    pushed = [cell for cell in cells if cell.method == method]
    if name is None or not pushed:
        raise NothingToDrawError(f"{bench.name} has no measure of diversity for {method}")
    temperatures = sorted({cell.temperature for cell in pushed})
    alphas = sorted({cell.alpha for cell in pushed})
    figure, (panel,) = _panels([0], MEASURES[name], "alpha", width=3.8, height=2.6)
    for i, temperature in enumerate(temperatures):
        colour = COLOURS[i % len(COLOURS)]
        line = sorted(
            (cell for cell in pushed if cell.temperature == temperature),
            key=lambda cell: cell.alpha,
        )
        x = [alphas.index(cell.alpha) for cell in line]
        mean, se = (
            [getattr(cell.diversity[name], part) for cell in line] for part in ("mean", "se")
        )
        panel.errorbar(
            x,
            mean,
            yerr=_known(se),
            color=colour,
            marker=MARKS[i % len(MARKS)],
            label=f"θ = {temperature:g}",
        )
        for plain in (
            c
            for c in cells
            if c.method == _plain_of(bench, method) and c.temperature == temperature
        ):
            panel.axhline(plain.diversity[name].mean, color=colour, linestyle="--", linewidth=0.8)
    panel.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    panel.set_title(f"{method}, {bench.name}; dashed: plain")
    _legend(figure, [panel])
    return figure


def overhead(bench: Benchmark) -> "Figure":
    """Plot the relative overhead over n, length and steps, as far as the runs differ in them."""
    axes = {
        axis: found
        for axis in ("n", "length", "steps")
        if len(found := overhead_by(bench, axis)) > 1
    }
    if not axes:
        raise NothingToDrawError(
            f"{bench.name}: the runs do not differ in n, length or steps, or were not timed"
        )
    figure, panels = _panels(list(axes), "overhead (%)", "")
    for panel, (axis, found) in zip(panels, axes.items(), strict=False):
        objectives = sorted({cell.objective for some in found.values() for cell, _ in some})
        for i, objective in enumerate(objectives):
            points = {
                value: [pair for pair in some if pair[0].objective == objective]
                for value, some in found.items()
            }
            spans = {
                value: metrics.run_interval(*log_overhead(some))
                for value, some in points.items()
                if some
            }
            if len(spans) < 2:
                continue
            y = [100 * math.expm1(span.difference) for span in spans.values()]
            half = [
                100 * (math.expm1(span.high) - math.expm1(span.difference))
                for span in spans.values()
            ]
            panel.errorbar(
                list(spans),
                y,
                yerr=_known(half),
                color=COLOURS[i],
                marker=MARKS[i],
                label=objective,
            )
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_xlabel({"n": "samples n", "length": "tokens S", "steps": "steps"}[axis])
        panel.set_xticks(list(found), [f"{value:g}" for value in found])
    _legend(figure, panels)
    return figure


def _plain_of(bench: Benchmark, method: str) -> str:
    """Return the method that a method is compared with."""
    gain = next(
        (gain for c in bench.cells if c.method == method for gain in c.gains.values()), None
    )
    return bench.cell(gain.baseline).method if gain else "plain"


def _panels(
    over: Sequence[Any], y: str, x: str, *, width: float = WIDTH, height: float = 1.9
) -> tuple["Figure", list[Any]]:
    """Return a row of panels that share their axes; more than three take two rows."""
    from matplotlib.figure import Figure

    rows = 1 if len(over) <= 3 else 2
    columns = -(-len(over) // rows)
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for spare in panels[len(over) :]:
        spare.set_axis_off()
    for panel in panels[: len(over)]:
        panel.set_xlabel(x)
    for row in grid:
        row[0].set_ylabel(y)
    return figure, panels[: len(over)]


def _legend(figure: "Figure", panels: Sequence[Any]) -> None:
    """Add one legend below all panels, and enlarge the figure by its height."""
    found = {
        label: handle
        for panel in panels
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    longest = max(map(len, found), default=1)
    columns = max(1, min(len(found), int(figure.get_figwidth() * 18 // (longest + 8))))
    rows = -(-len(found) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * rows)
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=-(-len(found) // rows),
        frameon=False,
    )


def _shades(alphas: Iterable[float]) -> dict[float, Any]:
    from matplotlib import colormaps

    ranked = sorted(alphas)
    return {
        alpha: colormaps["viridis"](0.92 - 0.92 * i / max(1, len(ranked) - 1))
        for i, alpha in enumerate(ranked)
    }


def _by_alpha(cells: Iterable[Cell]) -> dict[float, list[Cell]]:
    found: dict[float, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.alpha, []).append(cell)
    return found


def _errors(cells: Sequence[Cell], k: int) -> list[float]:
    return _known([100 * cell.passed[k].se for cell in cells])


def _known(values: Sequence[float]) -> list[float]:
    """Replace unknown errors by 0."""
    return [value if math.isfinite(value) else 0.0 for value in values]

"""Sums and differences of cells with their intervals, for measured and imported runs alike."""

from collections.abc import Sequence

import numpy as np

from .. import metrics
from .cells import Benchmark, By, Cell

Term = tuple[float, Cell]  # a weight and a cell


def contrast(terms: Sequence[Term], k: int) -> tuple[metrics.Interval, By] | None:
    """Return the weighted sum of Pass@k over cells of one benchmark, with its 95 % interval.

    The interval comes from resampling the problems, for all cells together. If the runs have no
    records, it comes from the spread of the runs within each cell. Return None if Pass@k is not
    known.
    """
    curves = [(weight, cell.curves) for weight, cell in terms]
    if all(curve is not None for _, curve in curves):
        by_problem = sum(weight * curve[:, k - 1] for weight, curve in curves if curve is not None)
        return metrics.mean_intervals(np.asarray(by_problem)[:, None])[0], "problems"
    groups = [cell.run_passed.get(k, ()) for _, cell in terms]
    if not all(groups):
        return None
    return metrics.run_interval(groups, [weight for weight, _ in terms]), "runs"


def pairs(bench: Benchmark, method: str, alpha: float) -> dict[float, tuple[Cell, Cell]]:
    """Return the cells of a method and alpha by temperature, each with its baseline."""
    cells = [
        cell
        for cell in bench.main
        if (cell.method, cell.alpha) == (method, alpha) and bench.n in cell.gains
    ]
    return {cell.temperature: (cell, bench.cell(cell.gains[bench.n].baseline)) for cell in cells}


def mean_gain(chosen: Sequence[tuple[Cell, Cell]], k: int) -> tuple[metrics.Interval, By] | None:
    """Return the gain over the baseline, averaged over pairs of cells."""
    share = 1 / len(chosen)
    return contrast(
        [term for cell, plain in chosen for term in ((share, cell), (-share, plain))], k
    )


def compared(bench: Benchmark) -> dict[str, list[float]]:
    """Return the methods that have a baseline, with their alphas (0: without repulsion)."""
    found: dict[str, set[float]] = {}
    for cell in bench.main:
        if bench.n in cell.gains:
            found.setdefault(cell.method, set()).add(cell.alpha)
    return {method: sorted(alphas) for method, alphas in found.items()}


def best_alpha(bench: Benchmark, method: str) -> float | None:
    """Return the alpha with the largest mean gain.

    The mean is over the temperatures that all alphas of the method share; None if there are none.
    """
    grid = {alpha: pairs(bench, method, alpha) for alpha in compared(bench).get(method, [])}
    shared = set.intersection(*(set(found) for found in grid.values())) if grid else set()
    if not shared:
        return None
    k = bench.n
    gains = {
        alpha: sum(found[t][0].gains[k].difference for t in shared) for alpha, found in grid.items()
    }
    return max(gains, key=lambda alpha: (gains[alpha], -alpha))

"""The tables of the mini model's card, from what was measured for it.

python recipes/mini/table.py recipes/mini/results/minicode-3.json
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from oddlm import metrics

N = 16
METHODS = (
    "plain",
    *(f"odd, alpha {alpha}" for alpha in (2, 4, 6, 8, 12, 16)),
    *(f"odd_sequential, alpha {alpha}" for alpha in (8, 16)),
    *(f"dpp, alpha {alpha}" for alpha in (8, 16)),
    "order temperature 1",
    "fork",
)
Row = dict[str, Any]  # a run: its settings, and by problem how many of its N samples are right


def show(rows: list[Row]) -> None:
    """Markdown: the choice of the base policy, then every method on it."""
    tuned = defaultdict(list)
    for row in rows:
        if row["split"] == "tune":
            tuned[row["base"], row["method"]].append(float(np.mean([c > 0 for c in row["right"]])))
    print(f"\nTune split, Pass@{N} averaged over temperatures:\n")
    for (base, method), values in sorted(tuned.items(), key=lambda kv: -np.mean(kv[1])):
        print(f"- {method} on {base}: {np.mean(values):.1%} ({len(values)} runs)")
    choices = [b for b, method in tuned if method == "plain"] or [row["base"] for row in rows]
    base = max(choices, key=lambda b: np.mean(tuned[b, "plain"] or [0.0]))
    cells = defaultdict(list)
    for row in rows:
        if row["split"] == "test" and row["base"] == base:
            cells[row["method"], row["temperature"]].append(row)
    print(f"\nTest split, base policy {base}\n")
    print(
        f"| method | temperature | seeds | Pass@1 | Pass@{N} | distinct | Pass@{N} minus plain, 95 % interval |"
    )
    print("|---|---|---|---|---|---|---|")
    for temperature in sorted({t for _, t in cells}):
        for method in [m for m in METHODS if (m, temperature) in cells]:
            own, plain = cells[method, temperature], cells["plain", temperature]
            difference = _difference(own, plain) if plain and own is not plain else ""
            print(f"| {method} | {temperature:g} | {len(own)} | {_line(own)} | {difference} |")


def _line(own: list[Row]) -> str:
    right = np.array([row["right"] for row in own])
    ones, many = (right / N).mean(axis=1), (right > 0).mean(axis=1)
    return f"{_with_error(ones)} | {_with_error(many)} | {np.mean([row['distinct'] for row in own]):.1f}"


def _with_error(values: np.ndarray) -> str:
    mean, error = metrics.mean_se(values)
    return f"{100 * mean:.1f}" + (f" ± {100 * error:.1f}" if len(values) > 1 else "")


def _difference(own: list[Row], plain: list[Row]) -> str:
    """Paired by problem, averaged over seeds; the interval is a bootstrap over problems."""
    solved = (
        np.mean([np.array(row["right"]) > 0 for row in some], axis=0) for some in (own, plain)
    )
    difference, low, high = metrics.paired_interval(*solved)
    return f"{100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


if __name__ == "__main__":
    show(json.loads(Path(sys.argv[1]).read_text()))

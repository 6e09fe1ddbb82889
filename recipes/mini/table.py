"""Print the tables of the mini model's card from the stored measurements.

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
Run = dict[str, Any]  # its settings, and for each problem how many of its N samples are correct


def show(runs: list[Run]) -> None:
    """Print in Markdown the choice of the base policy, then every method on it."""
    tuned = defaultdict(list)
    for run in runs:
        if run["split"] == "tune":
            tuned[run["base"], run["method"]].append(float(np.mean([c > 0 for c in run["right"]])))
    print(f"\nTune split, Pass@{N} averaged over temperatures:\n")
    for (base, method), values in sorted(tuned.items(), key=lambda kv: -np.mean(kv[1])):
        print(f"- {method} on {base}: {np.mean(values):.1%} ({len(values)} runs)")
    choices = [b for b, method in tuned if method == "plain"] or [run["base"] for run in runs]
    base = max(choices, key=lambda b: np.mean(tuned[b, "plain"] or [0.0]))
    cells = defaultdict(list)
    for run in runs:
        if run["split"] == "test" and run["base"] == base:
            cells[run["method"], run["temperature"]].append(run)
    print(f"\nTest split, base policy {base}\n")
    print(
        f"| method | temperature | seeds | Pass@1 | Pass@{N} | distinct "
        f"| Pass@{N} minus plain, 95 % interval |"
    )
    print("|---|---|---|---|---|---|---|")
    for temperature in sorted({t for _, t in cells}):
        for method in [m for m in METHODS if (m, temperature) in cells]:
            own, plain = cells[method, temperature], cells["plain", temperature]
            difference = _difference(own, plain) if plain and own is not plain else ""
            print(f"| {method} | {temperature:g} | {len(own)} | {_line(own)} | {difference} |")


def _line(own: list[Run]) -> str:
    right = np.array([run["right"] for run in own])
    pass_1, pass_n = (right / N).mean(axis=1), (right > 0).mean(axis=1)
    distinct = np.mean([run["distinct"] for run in own])
    return f"{_with_error(pass_1)} | {_with_error(pass_n)} | {distinct:.1f}"


def _with_error(values: np.ndarray) -> str:
    mean, error = metrics.mean_se(values)
    return f"{100 * mean:.1f}" + (f" ± {100 * error:.1f}" if len(values) > 1 else "")


def _difference(own: list[Run], plain: list[Run]) -> str:
    """Pair by problem, averaged over seeds; the interval is a bootstrap over problems."""
    solved = (
        np.mean([np.array(run["right"]) > 0 for run in runs], axis=0) for runs in (own, plain)
    )
    difference, low, high = metrics.paired_interval(*solved)
    return f"{100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


if __name__ == "__main__":
    show(json.loads(Path(sys.argv[1]).read_text()))

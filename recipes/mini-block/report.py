"""Compare the block-causal network with the mini model, as the tables of docs/concepts/blocks.md.

    python recipes/mini-block/report.py results/blocks/mini-block results/mini

The folders are what `oddlm runs export` wrote: runs of grids/block_countdown.toml and its tune
grid, and those behind docs/results.md; further folders, such as one with the runs of
grids/block_order.toml, are compared with the first likewise. The temperature of plain sampling is
chosen on the tune split, for each network by itself, if there are runs on it. Each problem counts
with its mean over the seeds, two methods are compared on the seeds that both have, and intervals
are 95 % bootstrap intervals over problems.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from oddlm import metrics
from oddlm.presets import PRESETS
from oddlm.report.result_files import Result, read_file
from oddlm.report.tables import Table, signed
from oddlm.text import fixed, percent

FILE, N = "countdown.jsonl", 16
AUTO = {**PRESETS["auto"], "fork": True}
PLAIN, ODD, DEFAULT = "tuned plain", "ODD, alpha 8", "default"


def method(run: Result) -> str | None:
    """Return which method a run is; None if it is none of those that are compared."""
    params = {"alpha_end": 1.0, **run.params}
    if all(params[name] == value for name, value in AUTO.items()):
        return DEFAULT
    usual = {"fork": False, "alpha_end": 1, "order_temperature": 0, "arithmetic": "exact"}
    if any(params[name] != value for name, value in usual.items()):
        return None
    if params["alpha"] == 0:
        return PLAIN
    return ODD if (params["objective"], params["alpha"]) == ("odd", 8) else None


def pass_at(run: Result, k: int) -> np.ndarray:
    return metrics.pass_at_k(run.correct, k)


def runs_of(folder: Path) -> tuple[float, dict[str, list[Result]]]:
    """Return the temperature chosen for plain sampling, and the runs of each method."""
    results = [run for run in read_file(folder / FILE) if run.n == N and method(run)]
    plain = [run for run in results if method(run) == PLAIN]
    tune = [run for run in plain if run.split == "tune"] or plain
    best = max(tune, key=lambda run: tuple(pass_at(run, k).mean() for k in (N, 1)))
    temperature = best.params["temperature"]
    found: dict[str, list[Result]] = {PLAIN: [], ODD: [], DEFAULT: []}
    for run in results:
        name = method(run)
        hot = run.params["temperature"]
        if run.split is None and name and hot == (temperature if name == PLAIN else 0.5):
            found[name].append(run)
    return temperature, found


def shared(one: Sequence[Result], other: Sequence[Result], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Pass@k of both by problem, over the problems and seeds that both have."""
    if len({run.problems_digest for run in (*one, *other)}) > 1:
        raise ValueError("the runs are on different problems: draw both networks' with one limit")
    seeds = sorted({run.seed for run in one} & {run.seed for run in other})
    means = []
    for some in (one, other):
        by_seed = {run.seed: run for run in some}
        means.append(np.mean([pass_at(by_seed[seed], k) for seed in seeds], axis=0))
    return means[0], means[1]


def tables(folders: Sequence[Path]) -> list[Table]:
    found = {folder.name: runs_of(folder) for folder in folders}
    rates, gains = [], []
    for name, (temperature, own) in found.items():
        for label, some in own.items():
            means = [np.mean([pass_at(run, k) for run in some], axis=0) for k in (N, 1)]
            cells = [_share(metrics.mean_intervals(x[:, None])[0]) for x in means]
            heat = f", temperature {temperature:g}" if label == PLAIN else ""
            distinct = fixed(float(np.mean([run.distinct for run in some])))
            rates.append(
                (name, label + heat, *cells, distinct, f"{some[0].problems} x {len(some)}")
            )
        for label in (ODD, DEFAULT):
            gains.append((f"{name}, {label}", f"{name}, {PLAIN}", *_gain(own[label], own[PLAIN])))
    first, *others = found
    for name in others:
        for label in (PLAIN, ODD, DEFAULT):
            both = (found[one][1][label] for one in (first, name))
            gains.append((f"{first}, {label}", f"{name}, {label}", *_gain(*both)))
    pair = (f"Pass@{N}", "Pass@1")
    return [
        Table(
            "Rates",
            ("network", "method", *pair, "distinct texts", "problems x seeds"),
            tuple(rates),
            "Per cent, with 95 % intervals over problems.",
        ),
        Table("Differences", ("", "minus", *pair), tuple(gains), "In points, paired by problem."),
    ]


def _gain(one: Sequence[Result], other: Sequence[Result]) -> tuple[str, str]:
    high, low = (signed(metrics.paired_interval(*shared(one, other, k))) for k in (N, 1))
    return high, low


def _share(span: metrics.Interval) -> str:
    mean, low, high = (percent(value) for value in span)
    return f"{mean} [{low}, {high}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    for table in tables(parser.parse_args().folders):
        print(table.markdown(), "\n")


if __name__ == "__main__":
    main()

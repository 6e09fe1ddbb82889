"""Print the table of the study of rollouts, and draw its figure, from stored runs.

    python recipes/rl/report.py results/rl                       # the table
    python recipes/rl/report.py results/rl --figure study.png    # the figure, too (matplotlib)

Numbers are those of unseen problems. Intervals are 95 % bootstrap intervals that resample both
problems and seeds; differences are paired by problem, and by seed.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oddlm.files import save_figure
from oddlm.report.plots import COLOURS, MARKS, PLAIN, STYLE, WIDTH
from oddlm.report.tables import Table
from oddlm.text import percent

METHODS = ("plain", "fork", "odd", "careful")
LABELS = {
    "plain": "plain sampling",
    "fork": "fork",
    "odd": "ODD, alpha 8",
    "careful": "careful",
}
RESAMPLES, BLOCK = 10_000, 500
Values = np.ndarray  # [measurements, seeds, problems]


class Study:
    """The measurements of all complete runs."""

    def __init__(self, folder: Path) -> None:
        runs: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            about, *lines = map(json.loads, path.read_text().splitlines())
            if "method" in about:
                runs.setdefault(about["method"], {})[about["seed"]] = lines
        if not runs:
            raise SystemExit(f"{folder} holds no complete run: python recipes/rl/study.py main")
        # Differences are paired by seed, so only seeds that every method has are shown.
        self.seeds = sorted(set.intersection(*map(set, runs.values())))
        if not self.seeds:
            raise SystemExit(f"{folder} holds no seed that all of {', '.join(runs)} have")
        names = [*METHODS, *sorted(runs.keys() - set(METHODS))]
        self.runs = {
            name: [runs[name][seed] for seed in self.seeds] for name in names if name in runs
        }

    def measured(self, method: str, sampling: str) -> tuple[list[int], Values, int]:
        """Return updates, how many samples of each problem are right, and of how many."""
        found = [
            [line for line in lines if sampling in line.get("held_out", {})]
            for lines in self.runs[method]
        ]
        right = [[line["held_out"][sampling]["right"] for line in lines] for lines in found]
        return (
            [line["step"] for line in found[0]],
            np.array(right).transpose(1, 0, 2),
            found[0][0]["held_out"][sampling]["n"],
        )

    def rollouts(self, method: str, name: str, last: int = 20) -> float:
        """Return the mean of a note on rollouts over the last updates."""
        notes = [
            [line[name] for line in lines if name in line][-last:] for lines in self.runs[method]
        ]
        return float(np.mean(notes))


def pass_1(right: Values, n: int) -> Values:
    return right / n


def solved(right: Values, n: int) -> Values:
    return (right > 0).astype(float)


def interval(values: Values, seed: int = 0) -> tuple[float, float, float]:
    """Return mean and bounds of values [seeds, problems], both of which are resampled."""
    seeds, problems = values.shape
    generator = np.random.default_rng(seed)
    means = []
    for _ in range(RESAMPLES // BLOCK):
        s = generator.integers(seeds, size=(BLOCK, seeds))
        p = generator.integers(problems, size=(BLOCK, problems))
        means.append(values[s[:, :, None], p[:, None, :]].mean(axis=(1, 2)))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def shown(values: Values, sign: str = "") -> str:
    mean, low, high = (f"{100 * x:{sign}.1f}" for x in interval(values))
    return f"{mean} [{low}, {high}]"


def table(study: Study, sampling: str) -> Table:
    """Before and after, with the difference to plain rollouts."""
    rows = []
    _, first, n = study.measured(next(iter(study.runs)), sampling)
    measures = (pass_1, solved) if n > 1 else (pass_1,)
    rows.append(
        ("before training", *(shown(m(first, n)[0]) for m in measures), *"-" * len(measures))
    )
    plain = study.measured("plain", sampling)[1][-1] if "plain" in study.runs else None
    for name in study.runs:
        last = study.measured(name, sampling)[1][-1]
        cells = [shown(m(last, n)) for m in measures]
        if plain is None or name == "plain":
            cells += "-" * len(measures)
        else:
            cells += [shown(m(last, n) - m(plain, n), "+") for m in measures]
        rows.append((LABELS.get(name, name), *cells))
    names = ["Pass@1", f"Pass@{n}"][: len(measures)]
    columns = ("rollouts", *names, *(f"{name}: difference to plain" for name in names))
    seeds = len(study.seeds)
    note = f"{first.shape[2]} problems, {seeds} seed{'s' * (seeds > 1)}, per cent."
    return Table(f"Measured with {sampling} sampling", columns, tuple(rows), note)


def rollout_table(study: Study) -> Table:
    """What the rollouts of the last updates were like."""
    rows = [
        (
            LABELS.get(name, name),
            percent(study.rollouts(name, "reward")),
            percent(study.rollouts(name, "mixed")),
            f"{study.rollouts(name, 'surprise'):.3f}",
            f"{study.rollouts(name, 'weight'):.3f}",
        )
        for name in study.runs
    ]
    columns = ("rollouts", "mean reward", "groups with signal", "surprise", "mean weight")
    return Table("Rollouts of the last 20 updates", columns, tuple(rows))


def draw(study: Study, sampling: str, path: Path) -> None:
    """Draw Pass@1 and Pass@n against updates."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.45 * WIDTH), layout="constrained")
        panels = figure.subplots(1, 2)
        for i, name in enumerate(study.runs):
            updates, right, n = study.measured(name, sampling)
            style: Mapping[str, Any] = (
                PLAIN if name == "plain" else {"color": COLOURS[i - 1], "marker": MARKS[i]}
            )
            for panel, measure in zip(panels, (pass_1, solved), strict=True):
                mean, low, high = 100 * np.array([interval(x) for x in measure(right, n)]).T
                panel.plot(updates, mean, label=LABELS.get(name, name), **style)
                panel.fill_between(
                    updates, low, high, color=style["color"], alpha=0.12, linewidth=0
                )
                panel.set(xlabel="updates")
        for panel, k in zip(panels, (1, n), strict=True):
            panel.set(title=f"Pass@{k}, {sampling} sampling", ylabel="problems (%)")
        panels[0].legend(title="rollouts", frameon=False)
        save_figure(figure, path, dpi=200)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--sampling", default="plain", help="of the figure: plain or default")
    options = parser.parse_args(words)
    study = Study(options.results)
    lines = next(iter(study.runs.values()))[0]
    samplings = next(line["held_out"] for line in lines if "held_out" in line)
    for sampling in samplings:
        print(table(study, sampling).markdown())
    print(rollout_table(study).markdown())
    if options.figure is not None:
        draw(study, options.sampling, options.figure)


if __name__ == "__main__":
    main()

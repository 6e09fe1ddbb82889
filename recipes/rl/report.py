"""Print the tables of the study of rollouts, and draw its figure, from stored runs.

    python recipes/rl/report.py                         # of the runs in recipes/rl/results
    python recipes/rl/report.py --figure study.png      # the figure, too (matplotlib)
    python recipes/rl/report.py runs/rl-study/results   # of a repetition

Numbers are those of unseen problems. Intervals are 95 % bootstrap intervals that resample both
problems and seeds; differences are paired by problem, and by seed.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oddlm.files import save_figure
from oddlm.report.plots import COLOURS, MARKS, PLAIN, STYLE, WIDTH
from oddlm.report.tables import Table
from oddlm.text import percent

RESULTS = Path(__file__).parent / "results"
METHODS = ("plain", "fork", "odd", "careful")
TUNED = ("learning_rate", "negative_weight")
LABELS = {
    "plain": "plain sampling",
    "fork": "fork",
    "odd": "ODD, alpha 8",
    "careful": "careful",
}
RESAMPLES, BLOCK = 10_000, 500
Values = np.ndarray  # [measurements, seeds, problems]
FIRST, LAST = slice(20), slice(-20, None)  # updates
Lines = list[dict[str, Any]]
Measure = Callable[[Values, int], Values]


def read(path: Path) -> tuple[dict[str, Any], Lines]:
    """Return what a run was, and its log."""
    about, *lines = map(json.loads, path.read_text().splitlines())
    return about, lines


class Study:
    """The measurements of all complete runs."""

    def __init__(self, folder: Path) -> None:
        runs: dict[str, dict[int, Lines]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            about, lines = read(path)
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

    def held_out(self, method: str, sampling: str) -> tuple[list[int], list[Lines]]:
        """Return updates, and what was measured after them by seed."""
        found = [
            [line for line in lines if sampling in line.get("held_out", {})]
            for lines in self.runs[method]
        ]
        measured = [[line["held_out"][sampling] for line in lines] for lines in found]
        return [line["step"] for line in found[0]], measured

    def right(self, method: str, sampling: str) -> tuple[Values, int]:
        """Return how many samples of each problem are right, and of how many."""
        _, measured = self.held_out(method, sampling)
        right = [[one["right"] for one in lines] for lines in measured]
        return np.array(right).transpose(1, 0, 2), measured[0][0]["n"]

    def entropy(self, method: str, sampling: str) -> list[float]:
        """Return the mean entropy over seeds, for each measurement."""
        _, measured = self.held_out(method, sampling)
        found = np.mean([[one["entropy"] for one in lines] for lines in measured], axis=0)
        return [float(x) for x in found]

    def rollouts(self, method: str, name: str, updates: slice = LAST) -> float:
        """Return the mean of a note on rollouts over some updates."""
        notes = [[line[name] for line in lines if name in line] for lines in self.runs[method]]
        return float(np.mean([one[updates] for one in notes]))


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
    mean, low, high = (percent(x, sign=sign) for x in interval(values))
    return f"{mean} [{low}, {high}]"


def measures(n: int) -> dict[str, Measure]:
    return {"Pass@1": pass_1, **({f"Pass@{n}": solved} if n > 1 else {})}


def label(name: str) -> str:
    return LABELS.get(name, name)


def table(study: Study, sampling: str, against: str) -> Table:
    """Before and after, with differences to the rollouts `against`; for Pass@1 by seed, too.

    "- plain's best" is the difference to the best measurement of the rollouts `against`.
    """
    first, n = study.right(next(iter(study.runs)), sampling)
    columns = ["rollouts"]
    rows = [["before training"], *([label(name)] for name in study.runs)]
    for title, measure in measures(n).items():
        more = ["by seed", f"- {against}'s best"] * (title == "Pass@1")
        columns += [title, f"{title} - {against}", *more]
        nothing = "-" * (1 + len(more))
        values = {name: measure(study.right(name, sampling)[0], n) for name in study.runs}
        other = values.get(against)
        rows[0] += [shown(measure(first[0], n)), *nothing]
        for row, name in zip(rows[1:], study.runs, strict=True):
            last = values[name][-1]
            row.append(shown(last))
            if other is None or name == against:
                row += nothing
                continue
            row.append(shown(last - other[-1], "+"))
            if more:
                best = float(other.mean(axis=(1, 2)).max())
                seeds = sorted((last - other[-1]).mean(axis=1))
                row.append(", ".join(percent(float(x), sign="+") for x in seeds))
                row.append(percent(float(last.mean()) - best, sign="+"))
    title = f"Measured with {sampling} sampling"
    return Table(title, tuple(columns), tuple(map(tuple, rows)), size(study, first))


def summary(measured: Mapping[str, Table]) -> Table:
    """What `table` says for every sampling, in short."""
    rows: list[tuple[str, ...]] = []
    for sampling, one in measured.items():
        rows.append((f"measured with {sampling} sampling",))
        for name, pass_at_1, difference, _, _, *more in one.rows:
            means = [cell.partition(" ")[0] for cell in (pass_at_1, *(more or "-"))]
            rows.append((name, means[0], difference, means[1]))
    widest = max((one.columns for one in measured.values()), key=len)
    columns = (*widest[:3], *(widest[5:6] or ["-"]))
    return Table("In short", columns, tuple(rows), next(iter(measured.values())).note)


def size(study: Study, right: Values) -> str:
    seeds = len(study.seeds)
    return f"{right.shape[2]} problems, {seeds} seed{'s' * (seeds > 1)}, per cent."


def course_table(study: Study, sampling: str) -> Table:
    """Every measurement, and the change to the last; with plain sampling entropy, too."""
    name = next(iter(study.runs))
    updates, _ = study.held_out(name, sampling)
    first, n = study.right(name, sampling)
    rows: list[tuple[str, ...]] = []
    for title, measure in measures(n).items():
        rows.append((title,))
        for name in study.runs:
            values = measure(study.right(name, sampling)[0], n)
            means = (percent(float(value.mean())) for value in values)
            rows.append((label(name), *means, shown(values[-1] - values[0], "+")))
    note = size(study, first)
    if sampling == "plain":
        note += " Entropy in nats per token."
        rows.append(("entropy",))
        for name in study.runs:
            found = study.entropy(name, sampling)
            cells = (*(f"{x:.3f}" for x in found), f"{found[-1] - found[0]:+.3f}")
            rows.append((label(name), *cells))
    columns = ("rollouts, updates", *map(str, updates), "change")
    return Table(f"The course, measured with {sampling} sampling", columns, tuple(rows), note)


def rollout_table(study: Study) -> Table:
    """What the rollouts of the last updates were like; groups and weights of the first, too."""
    shares = (("reward", LAST), ("mixed", LAST), ("mixed", FIRST))
    numbers = (("surprise", LAST), ("weight", LAST), ("weight", FIRST))
    rows = [
        (
            label(name),
            *(percent(study.rollouts(name, *what)) for what in shares),
            *(f"{study.rollouts(name, *what):.3f}" for what in numbers),
        )
        for name in study.runs
    ]
    groups = ("groups with signal", "groups with signal, first 20")
    columns = ("rollouts", "reward", *groups, "surprise", "weight", "weight, first 20")
    note = "Means; reward and groups in per cent, surprise in nats per token."
    return Table("Rollouts of the last 20 updates", columns, tuple(rows), note)


def tuning_table(folder: Path, last: int = 3) -> Table | None:
    """The stage `tune`: the means of the last measurements with plain sampling."""
    runs = [read(path) for path in sorted(folder.glob("tune-*.jsonl"))]
    if not runs:
        return None
    path = folder / "chosen.json"
    chosen = json.loads(path.read_text()) if path.exists() else {}
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    for about, lines in sorted(runs, key=lambda run: [run[0][name] for name in TUNED]):
        found = [line["held_out"]["plain"] for line in lines if "held_out" in line]
        n, end = found[0]["n"], found[-1]
        names = ("pass@1", f"pass@{n}")
        means = [float(np.mean([one[name] for one in found[-last:]])) for name in names]
        if chosen and all(about[name] == chosen[name] for name in TUNED):
            bold = {(len(rows), j) for j in range(6)}
        shares = (percent(x) for x in (*means, *(end[name] for name in names)))
        rows.append((*(f"{about[name]:g}" for name in TUNED), *shares))
    titles = (f"{at}{name}" for at in ("", "at the end: ") for name in ("Pass@1", f"Pass@{n}"))
    columns = ("learning rate", "negative weight", *titles)
    note = (
        f"{len(found[0]['right'])} problems, one seed, plain sampling, per cent; means of the last "
        f"{last} measurements, and the last one. Bold: chosen."
    )
    return Table("Tuning, with plain rollouts", columns, tuple(rows), note, frozenset(bold))


def draw(study: Study, sampling: str, path: Path) -> None:
    """Draw Pass@1 and Pass@n against updates."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.45 * WIDTH), layout="constrained")
        panels = figure.subplots(1, 2)
        for i, name in enumerate(study.runs):
            updates, _ = study.held_out(name, sampling)
            right, n = study.right(name, sampling)
            style: Mapping[str, Any] = (
                PLAIN if name == "plain" else {"color": COLOURS[i - 1], "marker": MARKS[i]}
            )
            for panel, measure in zip(panels, (pass_1, solved), strict=True):
                mean, low, high = 100 * np.array([interval(x) for x in measure(right, n)]).T
                panel.plot(updates, mean, label=label(name), **style)
                panel.fill_between(
                    updates, low, high, color=style["color"], alpha=0.12, linewidth=0
                )
                panel.set(xlabel="updates", xticks=updates)
        for panel, k, what in zip(panels, (1, n), ("samples", "problems"), strict=True):
            panel.set(title=f"Pass@{k}, {sampling} sampling", ylabel=f"{what} (%)")
        lines, names = panels[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=len(names), frameon=False)
        save_figure(figure, path, dpi=200)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--sampling", default="plain", help="of the figure: plain or default")
    parser.add_argument(
        "--against", default="plain", choices=METHODS, help="rollouts that differences are to"
    )
    options = parser.parse_args(words)
    study = Study(options.results)
    lines = next(iter(study.runs.values()))[0]
    samplings = next(line["held_out"] for line in lines if "held_out" in line)
    measured = {sampling: table(study, sampling, options.against) for sampling in samplings}
    tuning = tuning_table(options.results)
    tables = [summary(measured), *([] if tuning is None else [tuning]), *measured.values()]
    tables += [rollout_table(study), *(course_table(study, sampling) for sampling in samplings)]
    for one in tables:
        print(one.markdown())
    if options.figure is not None:
        draw(study, options.sampling, options.figure)


if __name__ == "__main__":
    main()

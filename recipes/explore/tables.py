"""Print every number of docs/exploration.md from results/, and draw its figures.

python recipes/explore/tables.py                      # Markdown
python recipes/explore/tables.py --figures docs/figures
"""

import argparse
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from methods import METHODS, TASKS

from oddlm import metrics

RESULTS = Path(__file__).parent / "results"
N = 16
DEPTHS = (1, 2, 4, 8, 16)
DEEP = (1, 2, 4, 8, 16, 32, 64)
AIMS = {"default": (8, -10), "careful": (4, -2)}  # gain of Pass@16, change of Pass@1: points
LABELS = {
    "plain": "plain",
    "order": "order temperature",
    "fork": "fork",
    "fork_drawn": "fork, drawn (ours)",
    "prompt_noise": "prompt noise (TAPS)",
    "odd": "ODD",
    "odd_sequential": "ODD sequential",
    "dpp": "DPP",
    "random_probe": "random probe",
    "odd_semantic": "ODD, semantic features",
    "odd_reduced": "ODD, reduced features",
    "odd_ngrams": "ODD, n-grams (ours)",
    "odd_enough": "ODD, enough (ours)",
    "odd_order": "ODD + order temperature",
    "odd_fork": "ODD + fork",
    "odd_drawn": "ODD + fork, drawn (ours)",
}


Cells = dict[tuple[str, str, str], "Cell"]


@dataclass(frozen=True)
class Cell:
    """All seeds of one method on one task."""

    right: dict[int, np.ndarray]  # by seed, [problems, samples]
    distinct: dict[int, np.ndarray]  # by seed, [problems]: of the first N texts

    def passed(self, k: int, seeds: Collection[int] | None = None) -> np.ndarray:
        """Return Pass@k, [problems], averaged over the seeds that have at least k samples.

        Up to k = N, it is computed from the first N samples only.
        """
        own = [
            x[:, : max(k, N)]
            for seed, x in self.right.items()
            if x.shape[1] >= k and (seeds is None or seed in seeds)
        ]
        return np.mean([metrics.pass_at_k(x, k) for x in own], axis=0)

    def solved(self, seed: int) -> np.ndarray:
        return self.right[seed][:, :N].any(axis=1)

    @property
    def coverage(self) -> float:
        """The share of the problems that at least one seed solves."""
        return float(metrics.coverage([x[:, :N] for x in self.right.values()]).mean())

    @property
    def deep(self) -> bool:
        return any(x.shape[1] >= max(DEEP) for x in self.right.values())


def read() -> Cells:
    """Read the cells, by task, method and variant."""
    cells: Cells = {}
    with np.load(RESULTS / "report.npz") as file:
        for i, about in enumerate(json.loads(file["meta"].tobytes())):
            cell = cells.setdefault(
                (about["task"], about["method"], about["variant"]), Cell({}, {})
            )
            cell.right[about["seed"]] = np.unpackbits(file[f"right{i}"], axis=1)[
                :, : about["n"]
            ].astype(bool)
            cell.distinct[about["seed"]] = file[f"distinct{i}"]
    return cells


def percent(values: np.ndarray | float) -> str:
    return f"{100 * float(np.mean(values)):.1f}"


def against(own: np.ndarray, other: np.ndarray) -> str:
    bounds = metrics.paired_interval(own, other)
    return f"{100 * bounds.difference:+.1f} [{100 * bounds.low:+.1f}, {100 * bounds.high:+.1f}]"


def row(*cells: Any) -> None:
    print("| " + " | ".join(map(str, cells)) + " |")


def head(*names: str) -> None:
    print()
    row(*names)
    row(*["---"] * len(names))


def tuning() -> None:
    rows = json.loads((RESULTS / "tune.json").read_text())
    print(
        "\n### Tuning split: the best trial of each method, Pass@1 / Pass@16 in per cent, "
        "and how many trials there were"
    )
    head("method", *TASKS, "trials")
    for method in METHODS:
        own = [[r for r in rows if (r["task"], r["method"]) == (task, method)] for task in TASKS]
        best = [max(some, key=lambda r: (r["pass@16"], r["pass@1"])) for some in own]
        row(
            LABELS[method],
            *[f"{percent(b['pass@1'])} / {percent(b['pass@16'])}" for b in best],
            "/".join(str(len(some)) for some in own),
        )


def looked(name: str, title: str) -> None:
    """Print the best six settings of plain sampling and of ours, by mean Pass@16 over the pair."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())
    print(f"\n### Tuning split, {title}; the best six of each on the pair")
    head("settings", "countdown-4: Pass@1 / Pass@16", "minicode: Pass@1 / Pass@16")
    for method in ("plain", "ours"):
        places: dict[int, dict[str, Any]] = {}
        for r in rows:
            if r["method"] == method:
                places.setdefault(r["place"], {})[r["task"]] = r
        ranked = sorted(
            places.values(),
            key=lambda own: -sum(r["pass@16"] + r["pass@1"] / 1000 for r in own.values()),
        )
        default = [own for own in ranked[6:] if is_default(own["countdown-4"]["params"])]
        for own in [*ranked[:6], *default]:
            first, second = (own[task] for task in ("countdown-4", "minicode"))
            params = {
                k: v for k, v in first["params"].items() if k not in ("length", "steps", "eos")
            }
            note = " (the default)" if own in default else ""
            figures = [f"{percent(r['pass@1'])} / {percent(r['pass@16'])}" for r in (first, second)]
            row(f"`{json.dumps(params)}`{note}", *figures)


def is_default(params: dict[str, Any]) -> bool:
    return params == json.loads((RESULTS / "chosen.json").read_text())["countdown-4"]["default"]


def main_table(cells: Cells, task: str, names: Sequence[str]) -> None:
    plain = cells[task, "plain", ""]
    print(f"\n### {task}, report split ({len(plain.passed(1))} problems, per cent)")
    head(
        "method",
        "seeds",
        *[f"Pass@{k}" for k in DEPTHS],
        "Pass@16 - plain",
        "Pass@1 - plain",
        "coverage",
        "different of 16",
    )
    for name in names:
        if (task, name, "") not in cells:
            continue
        cell = cells[task, name, ""]
        seeds = cell.right.keys() & plain.right.keys()
        row(
            LABELS.get(name, f"**{name}**"),
            len(cell.right),
            *[percent(cell.passed(k)) for k in DEPTHS],
            *[
                "" if name == "plain" else against(cell.passed(k, seeds), plain.passed(k, seeds))
                for k in (N, 1)
            ],
            percent(cell.coverage),
            f"{np.mean([*cell.distinct.values()]):.1f}",
        )


def overall(cells: Cells, names: Sequence[str]) -> None:
    print("\n### All four tasks, report split: means over the tasks, per cent")
    head("method", "Pass@1", "Pass@16")
    for name in names:
        own = [cells[task, name, ""] for task in TASKS if (task, name, "") in cells]
        if len(own) == len(TASKS):
            row(
                LABELS.get(name, f"**{name}**"),
                *[percent(float(np.mean([c.passed(k).mean() for c in own]))) for k in (1, N)],
            )


def wins(cells: Cells, names: Sequence[str]) -> None:
    print(
        "\n### Wins and losses against tuned plain sampling: problems of 500 that only one of "
        "the two solves, mean over seeds"
    )
    head("method", *[f"{task}: won, lost" for task in TASKS])
    for name in names:
        if name == "plain":
            continue
        own = []
        for task in TASKS:
            cell, plain = cells.get((task, name, "")), cells[task, "plain", ""]
            if cell is None:
                own.append("")
                continue
            pairs = [
                (cell.solved(seed), plain.solved(seed))
                for seed in cell.right.keys() & plain.right.keys()
            ]
            won, lost = np.mean([[(a & ~b).sum(), (b & ~a).sum()] for a, b in pairs], axis=0)
            own.append(f"{won:.1f}, {lost:.1f}")
        row(LABELS.get(name, f"**{name}**"), *own)


def deep(cells: Cells) -> None:
    print("\n### countdown-4, up to 64 samples of one batch: Pass@k in per cent")
    head("method", *[f"k = {k}" for k in DEEP], "Pass@64 - plain")
    plain = cells["countdown-4", "plain", ""]
    for (task, name, variant), cell in cells.items():
        if task == "countdown-4" and not variant and cell.deep and not name.startswith("pool"):
            seeds = [seed for seed, x in cell.right.items() if x.shape[1] >= max(DEEP)]
            gain = (
                "" if name == "plain" else against(cell.passed(64, seeds), plain.passed(64, seeds))
            )
            row(
                LABELS.get(name, f"**{name}**"),
                *[percent(cell.passed(k, seeds)) for k in DEEP],
                gain,
            )


def pools(cells: Cells) -> None:
    print(
        "\n### Over-generation on plain sampling: of a pool, 16 by k-centre, the first 16, "
        "and the oracle (all of the pool)"
    )
    head(
        "task",
        "pool",
        "steps",
        "evaluations",
        "k-centre Pass@1",
        "Pass@16",
        "Pass@16 - plain",
        "first 16",
        "oracle",
    )
    for task in TASKS:
        plain = cells[task, "plain", ""]
        for pool, variant in ((17, ""), (32, ""), (32, "half the steps")):
            if (task, f"k_centre_{pool}", variant) not in cells:
                continue
            kept, all_ = (
                cells[task, f"k_centre_{pool}", variant],
                cells[task, f"pool_{pool}", variant],
            )
            cost = pool / N * (0.5 if variant else 1.0)
            row(
                task,
                pool,
                variant or "all",
                f"x {cost:.2f}",
                percent(kept.passed(1)),
                percent(kept.passed(N)),
                against(kept.passed(N), plain.passed(N, kept.right)),
                percent(all_.passed(N)),
                percent(all_.passed(pool)),
            )


def robustness(cells: Cells) -> None:
    variants = sorted({variant for _, _, variant in cells if variant})
    for task in sorted(
        {
            task
            for task, name, variant in cells
            if variant and not name.startswith(("k_centre", "pool"))
        }
    ):
        print(
            f"\n### {task}: what is lost when a setting is off, Pass@16 minus that of the setting "
            "as tuned, points"
        )
        head("method", *variants)
        for name in dict.fromkeys(name for t, name, variant in cells if t == task and variant):
            if name.startswith(("k_centre", "pool")):
                continue
            off = [cells.get((task, name, variant)) for variant in variants]
            tuned = cells[task, name, ""]
            own = ["" if x is None else against(x.passed(N), tuned.passed(N, x.right)) for x in off]
            row(LABELS.get(name, f"**{name}**"), *own)


def aims(cells: Cells) -> None:
    print("\n### countdown-4: the two settings of the package against tuned plain sampling, points")
    head("setting", "Pass@16", "aim", "Pass@1", "aim", "reached")
    plain = cells["countdown-4", "plain", ""]
    for name, (gain, cost) in AIMS.items():
        cell = cells["countdown-4", name, ""]
        more = metrics.paired_interval(cell.passed(N), plain.passed(N))
        less = metrics.paired_interval(cell.passed(1), plain.passed(1))
        reached = 100 * more.difference >= gain and more.low > 0 and 100 * less.difference >= cost
        gained, lost = (against(cell.passed(k), plain.passed(k)) for k in (N, 1))
        row(name, gained, f">= +{gain}", lost, f">= {cost}", "yes" if reached else "no")


def timing() -> None:
    path = RESULTS / "timing.json"
    if not path.exists():
        return
    rows = json.loads(path.read_text())
    by = {
        method: [r["seconds"] for r in rows if r["method"] == method]
        for method in dict.fromkeys(r["method"] for r in rows)
    }
    about = rows[0]
    print(
        f"\n### countdown-4: seconds for {about['problems']} problems x {N} samples on "
        f"{about['device']} (torch {about['torch']}), median of {len(by['plain'])} turns, "
        "and beside plain sampling in the same turn"
    )
    head("method", "seconds", "over plain", "least and most")
    for method, seconds in by.items():
        ratios = np.array(seconds) / np.array(by["plain"])
        spread = f"x {ratios.min():.2f}, x {ratios.max():.2f}"
        row(
            LABELS.get(method, f"**{method}**"),
            f"{np.median(seconds):.2f}",
            f"x {np.median(ratios):.2f}",
            spread,
        )


def figures(cells: Cells, names: Sequence[str], folder: Path) -> None:
    from matplotlib.figure import Figure

    from oddlm.report.plots import COLOURS, MARKS, WIDTH, draw

    shown = [name for name in names if not name.startswith("k_centre")]
    style = {
        name: {"color": COLOURS[i % len(COLOURS)], "marker": MARKS[i % len(MARKS)]}
        for i, name in enumerate(shown)
    }
    style["plain"] = {"color": "black", "marker": "o"}

    def pareto() -> Figure:
        figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
        axes = figure.subplots(2, 2).flatten()
        for axis, task in zip(axes, TASKS, strict=True):
            for name in shown:
                if (task, name, "") in cells:
                    cell = cells[task, name, ""]
                    x, y = (100 * cell.passed(k).mean() for k in (1, N))
                    big = (
                        {"s": 60, "edgecolors": "black", "zorder": 3} if name in AIMS else {"s": 22}
                    )
                    axis.scatter(x, y, label=LABELS.get(name, name), **style[name], **big)
            axis.set(title=task, xlabel="Pass@1 (%)", ylabel="Pass@16 (%)")
        known = {
            label: handle
            for axis in axes
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        names = [LABELS.get(name, name) for name in shown if LABELS.get(name, name) in known]
        figure.legend([known[name] for name in names], names, loc="outside lower center", ncols=3)
        return figure

    def depth() -> Figure:
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        axis = figure.subplots()
        for (task, name, variant), cell in cells.items():
            if task == "countdown-4" and not variant and cell.deep and not name.startswith("pool"):
                ks = [k for k in DEEP if k > 1]
                seeds = [seed for seed, x in cell.right.items() if x.shape[1] >= max(DEEP)]
                axis.plot(
                    ks,
                    [100 * cell.passed(k, seeds).mean() for k in ks],
                    label=LABELS.get(name, name),
                    **style[name],
                )
        axis.set_xscale("log", base=2)
        axis.set_xticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"])
        axis.set(xlabel="k samples", ylabel="Pass@k (%)", title="countdown-4, report split")
        axis.legend(loc="lower right")
        return figure

    folder.mkdir(parents=True, exist_ok=True)
    draw(pareto, folder / "exploration-pareto")
    draw(depth, folder / "exploration-depth")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figures", type=Path, help="also draw the figures into this folder")
    args = parser.parse_args()
    tuning()
    looked("refine", "the second look: 24 settings of plain sampling and 24 of ours")
    looked(
        "third",
        "the third look: 48 settings of plain sampling and 48 of ours, four seeds on countdown-4",
    )
    if not (RESULTS / "report.npz").exists():
        return
    cells = read()
    names = [*METHODS, "odd_drawn", *AIMS]
    aims(cells)
    for task in TASKS:
        main_table(cells, task, names)
    overall(cells, names)
    wins(cells, names)
    deep(cells)
    pools(cells)
    robustness(cells)
    timing()
    if args.figures:
        figures(cells, names, args.figures)


if __name__ == "__main__":
    main()

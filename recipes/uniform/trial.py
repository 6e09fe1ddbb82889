"""Does a push survive in a uniform-state model? Train tiny ones, tune, measure, write the page.

    python recipes/uniform/trial.py            # all of it, in minutes on a CPU
    python recipes/uniform/trial.py --write    # table and figure from the stored results

Plain sampling is tuned over temperatures and ODD over alpha and its end, each over as many
settings, on sampling seeds of their own. What is reported is drawn with fresh seeds. Results are
stored beside this file; the table is written into docs/guides/transformers.md between its comments,
and the figure into docs/figures.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from network import ANSWERS, BOS, CANVAS, EOS, PAD, PROMPTS, World, prompts_of, train
from rich.progress import track
from transformers import LogitsProcessorList

from oddlm import metrics
from oddlm.files import save_figure
from oddlm.integrations.transformers import DiverseLogitsProcessor
from oddlm.text import fixed

ROOT = Path(__file__).parents[2]
RESULTS = Path("recipes/uniform/results.json")
PAGE, FIGURE = Path("docs/guides/transformers.md"), Path("docs/figures/uniform-trial.png")
BLOCK = re.compile(r"(<!-- trial:begin -->\n).*?(<!-- trial:end -->)", re.DOTALL)
N, STEPS = 16, 16


@dataclass(frozen=True)
class Setting:
    """The temperatures of generate, and the arguments of the processor, if there is one."""

    t_max: float = 0.8  # the model's own
    t_min: float = 0.4
    push: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        if self.push is None:
            return f"{self.t_max:g} to {self.t_min:g}"
        return f"alpha {self.push['alpha']:g}, alpha_end {self.push['alpha_end']:g}"


@dataclass(frozen=True)
class Row:
    """What the samples of a setting were: whole numbers [networks, seeds, prompts]."""

    setting: Setting
    found: list[list[list[int]]]  # right answers among the N samples, of ANSWERS
    valid: list[list[list[int]]]  # right samples, of N

    def by_prompt(self, name: str) -> np.ndarray:
        """Return the mean over seeds for every prompt of every network, [networks * prompts]."""
        return np.array(getattr(self, name)).mean(axis=1).flatten()


HEATS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.6, 2.0)
PLAIN = [Setting(t, round(t * part, 3)) for t, part in product(HEATS, (0.5, 0.9))]
ALPHAS, ENDS = (2.0, 4.0, 8.0, 16.0), (0.125, 0.25, 0.5, 1.0)


def odd(alpha: float, end: float, *, fork: bool = False) -> Setting:
    return Setting(push={"objective": "odd", "alpha": alpha, "alpha_end": end, "fork": fork})


GRIDS = {"plain": PLAIN, "odd": [odd(alpha, end) for alpha, end in product(ALPHAS, ENDS)]}


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    networks: int = 3
    training: int = 1500  # steps
    fresh: range = range(16)  # sampling seeds of what is reported
    tuning: range = range(100, 104)


def sample(world: World, setting: Setting, seed: int) -> tuple[list[int], list[int]]:
    """Draw N samples of every prompt with transformers' own generate, and judge them."""
    processors = LogitsProcessorList()
    if setting.push is not None:
        ends = (PAD, EOS, BOS)
        processors.append(DiverseLogitsProcessor(N, STEPS, end_ids=ends, seed=seed, **setting.push))
    torch.manual_seed(seed)
    written = world.model.generate(
        prompts_of(torch.arange(PROMPTS).repeat_interleave(N)),
        max_new_tokens=CANVAS,
        max_denoising_steps=STEPS,
        logits_processor=processors,
        t_max=setting.t_max,
        t_min=setting.t_min,
    ).sequences[:, -CANVAS:]
    return world.judge(written, N)


def measure(worlds: Sequence[World], settings: Sequence[Setting], seeds: range) -> list[Row]:
    rows = []
    for setting in track(settings, description="sampling"):
        drawn = [[sample(world, setting, seed) for seed in seeds] for world in worlds]
        found, valid = ([[pair[i] for pair in one] for one in drawn] for i in (0, 1))
        rows.append(Row(setting, found, valid))
    return rows


def best(rows: Sequence[Row]) -> Setting:
    return max(rows, key=lambda row: row.by_prompt("found").mean()).setting


def run(size: Size) -> dict[str, list[Row]]:
    """Train, tune and measure: the rows of both grids, and those to report."""
    seeds = range(size.networks)
    worlds = [train(seed, size.training) for seed in track(seeds, description="training")]
    rows = {name: measure(worlds, grid, size.tuning) for name, grid in GRIDS.items()}
    plain, pushed = best(rows["plain"]), best(rows["odd"])
    assert pushed.push is not None
    forked = replace(pushed, push={**pushed.push, "fork": True})
    reported = [
        plain,
        Setting(),
        pushed,
        replace(pushed, t_max=plain.t_max, t_min=plain.t_min),
        odd(pushed.push["alpha"], 0.25),
        odd(pushed.push["alpha"], 1.0),
        forked,
        Setting(push={"alpha": 0, "fork": True}),
        Setting(push={}),
    ]
    return {**rows, "report": measure(worlds, reported, size.fresh)}


LABELS = (
    "plain, tuned: temperature {}",
    "plain, the model's own: {}",
    "ODD, tuned: {}",
    "the same at the temperature of tuned plain",
    "the same alpha, first quarter of the steps",
    "the same alpha, all steps",
    "ODD, tuned, and a fork",
    "a fork alone",
    "the processor's defaults",
)


def table(rows: Sequence[Row]) -> str:
    """Return the reported rows as Markdown; intervals are over prompts, the seeds averaged."""
    tuned, own = (row.by_prompt("found") for row in rows[:2])
    names = (f"found, of {ANSWERS}", "right samples, %", "more than tuned plain", "than its own")
    lines = [f"| sampling | {' | '.join(names)} |", "| --- | ---: | ---: | ---: | ---: |"]
    for label, row in zip(LABELS, rows, strict=True):
        found, valid = row.by_prompt("found"), 100 * row.by_prompt("valid") / N
        means = metrics.mean_intervals(np.stack([found, valid], axis=1))
        gains = [metrics.paired_interval(found, other) for other in (tuned, own)]
        cells = [
            label.format(row.setting),
            spelled(means[0], 2),
            spelled(means[1], 1),
            *("" if not gain.difference else spelled(gain, 2, "+") for gain in gains),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spelled(interval: metrics.Interval, digits: int, sign: str = "") -> str:
    centre, low, high = (fixed(value, digits, sign) for value in interval)
    return f"{centre} [{low}, {high}]"


def points(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Return the share of right samples in per cent, and how many right answers are found."""
    across = [100 * float(row.by_prompt("valid").mean()) / N for row in rows]
    return across, [float(row.by_prompt("found").mean()) for row in rows]


def draw(rows: Mapping[str, Sequence[Row]]) -> Figure:
    """Plot every setting that was tried, and the two that were chosen on their fresh seeds."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*points(rows["plain"]), "o", color="0.6", label="plain, 16 temperatures")
    for end, colour in zip(ENDS, ("#0072B2", "#009E73", "#E69F00", "#D55E00"), strict=True):
        some = [row for row in rows["odd"] if (row.setting.push or {})["alpha_end"] == end]
        axes.plot(*points(some), "s-", color=colour, lw=0.8, label=f"ODD, alpha_end {end:g}")
    for name, marker, i in (("plain", "*", 0), ("ODD", "P", 2)):
        chosen = points(rows["report"][i : i + 1])
        axes.plot(*chosen, marker, color="black", ms=11, label=f"{name}, tuned, fresh seeds")
    axes.set(xlabel="right samples (%)", ylabel=f"right answers found, of {ANSWERS}")
    axes.set_ylim(0, None)
    axes.legend(fontsize=7)
    return figure


def write(rows: Mapping[str, Sequence[Row]], root: Path) -> None:
    page, figure = root / PAGE, root / FIGURE
    text = (ROOT / PAGE).read_text()
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(BLOCK.sub(lambda m: m[1] + "\n" + table(rows["report"]) + "\n" + m[2], text))
    figure.parent.mkdir(parents=True, exist_ok=True)
    save_figure(draw(rows), figure, dpi=130)


def stored(path: Path) -> dict[str, list[Row]]:
    held = json.loads(path.read_text())
    return {
        name: [Row(**{**row, "setting": Setting(**row["setting"])}) for row in some]
        for name, some in held.items()
    }


def store(rows: Mapping[str, Sequence[Row]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {name: [asdict(row) for row in some] for name, some in rows.items()}
    path.write_text(json.dumps(held, separators=(",", ":")) + "\n")


def main(size: Size) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="from the stored results")
    parser.add_argument("--out", type=Path, default=ROOT, help="write into this folder instead")
    given = parser.parse_args()
    if not given.write:
        store(run(size), given.out / RESULTS)
    rows = stored(given.out / RESULTS)
    write(rows, given.out)
    print(table(rows["report"]))


if __name__ == "__main__":
    main(Size())

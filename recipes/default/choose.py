"""Choose the default on the sides to tune on, by a rule that was fixed before anything was drawn.

    python recipes/default/choose.py RESULTS...

RESULTS are the folders that `oddlm runs export` wrote from the runs of
grids/default_mini_tune.toml and grids/default_smol_tune.toml.

1. The baseline of a task is plain sampling at the temperature, of those drawn, with the largest
   Pass@16 there; Pass@1 breaks ties. So plain sampling is tuned for each task, while a candidate is
   one setting for all tasks.
2. A candidate's gain on a task is its Pass@16 minus the baseline's. Its gain on a model is the mean
   over the model's tasks, and its gain the mean over the models: the four tasks of the small model
   do not outvote the two of the other.
3. A candidate is eligible if its Pass@1 is nowhere more than FLOOR below the baseline's.
4. The eligible candidate with the largest gain becomes the default, unless the present default's
   gain is within MARGIN of it. Then nothing changes.
5. If on one of the models another eligible candidate gains more than BRANCH above the winner, the
   default depends on the number of steps, in which the models' tasks differ: up to FEW, and more.
   Each branch takes the best eligible candidate of its model.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oddlm.report.result_files import Result, read_folder

FLOOR, MARGIN, BRANCH, FEW = 0.08, 0.005, 0.03, 16
PRESENT: dict[str, Any] = {"objective": {"name": "odd", "enough": 0.5}, "alpha": 4.0, "fork": True}
# What makes two runs the same candidate on different tasks.
SETTINGS = ("objective", "alpha", "alpha_end", "fork", "temperature")

Setting = tuple[Any, ...]


@dataclass(frozen=True)
class Rates:
    """Pass@1 and Pass@16 of a setting on a task."""

    single: float
    many: float


@dataclass(frozen=True)
class Candidate:
    """A setting with a push or a fork, on every task."""

    setting: Setting
    rates: Mapping[str, Rates]  # by task
    gains: Mapping[str, float]  # by model
    eligible: bool

    @property
    def gain(self) -> float:
        return float(np.mean(list(self.gains.values())))


def setting_of(result: Result) -> Setting:
    params = {"alpha_end": 1.0, **result.params}
    objective = params["objective"]
    named = {"name": objective} if isinstance(objective, str) else objective
    values = {**params, "objective": tuple(sorted(named.items()))}
    return tuple(values[name] for name in SETTINGS)


def task_of(result: Result) -> str:
    return f"{result.model} {result.task} {result.protocol}"


def is_plain(setting: Setting) -> bool:
    values = dict(zip(SETTINGS, setting, strict=True))
    return values["alpha"] == 0 and not values["fork"]


def rates(results: list[Result]) -> dict[str, dict[Setting, Rates]]:
    found: dict[str, dict[Setting, Rates]] = {}
    for result in results:
        right = result.correct
        own = Rates(float(right.mean()), float(right.any(axis=1).mean()))
        found.setdefault(task_of(result), {})[setting_of(result)] = own
    return found


def baselines(by_task: Mapping[str, Mapping[Setting, Rates]]) -> dict[str, tuple[Setting, Rates]]:
    return {
        task: max(
            ((setting, own) for setting, own in settings.items() if is_plain(setting)),
            key=lambda pair: (pair[1].many, pair[1].single),
        )
        for task, settings in by_task.items()
    }


def candidates(by_task: Mapping[str, Mapping[Setting, Rates]]) -> list[Candidate]:
    """Return the candidates that were drawn on every task, the largest gain first."""
    base = baselines(by_task)
    shared = set.intersection(*({*settings} for settings in by_task.values()))
    found = []
    for setting in shared:
        if is_plain(setting):
            continue
        own = {task: settings[setting] for task, settings in by_task.items()}
        gains: dict[str, list[float]] = {}
        for task, one in own.items():
            gains.setdefault(task.split()[0], []).append(one.many - base[task][1].many)
        lost = max(base[task][1].single - one.single for task, one in own.items())
        means = {model: float(np.mean(values)) for model, values in gains.items()}
        found.append(Candidate(setting, own, means, lost <= FLOOR))
    return sorted(found, key=lambda one: (-one.gain, described(one.setting)))


def present(found: list[Candidate]) -> Candidate:
    objective = tuple(sorted(PRESENT["objective"].items()))
    setting = (objective, PRESENT["alpha"], 1.0, PRESENT["fork"], 0.5)
    return next(one for one in found if one.setting == setting)


def choose(found: list[Candidate]) -> tuple[Candidate, dict[str, Candidate]]:
    """Return the winner, and by model the branches that the rule asks for."""
    eligible = [one for one in found if one.eligible]
    winner, held = eligible[0], present(found)
    if held.eligible and winner.gain <= held.gain + MARGIN:
        winner = held
    branches = {}
    for model in winner.gains:
        best = max(eligible, key=lambda one: one.gains[model])
        if best.gains[model] > winner.gains[model] + BRANCH:
            branches[model] = best
    return winner, branches


def described(setting: Setting) -> str:
    values = dict(zip(SETTINGS, setting, strict=True))
    objective = dict(values["objective"])
    enough = f", enough {objective['enough']:g}" if "enough" in objective else ""
    words = [f"{objective['name']}{enough}", f"alpha {values['alpha']:g}"]
    words += [f"alpha_end {values['alpha_end']:g}"] if values["alpha_end"] < 1 else []
    words += ["fork"] if values["fork"] else []
    return ", ".join([*words, f"temperature {values['temperature']:g}"])


def table(by_task: Mapping[str, Mapping[Setting, Rates]]) -> list[str]:
    """Return the candidates as a Markdown table, Pass@1 / Pass@16 in per cent."""
    found, base, tasks = candidates(by_task), baselines(by_task), sorted(by_task)
    winner, branches = choose(found)
    lines = ["| setting | gain | " + " | ".join(tasks) + " |", "|---|---|" + "---|" * len(tasks)]
    cells = (f"{100 * base[task][1].single:.1f} / {100 * base[task][1].many:.1f}" for task in tasks)
    lines.append("| tuned plain sampling | | " + " | ".join(cells) + " |")
    for one in found:
        name = described(one.setting) + ("" if one.eligible else " (too little Pass@1)")
        name = f"**{name}**" if one is winner else name
        cells = (
            f"{100 * one.rates[task].single:.1f} / {100 * one.rates[task].many:.1f}"
            for task in tasks
        )
        lines.append(f"| {name} | {100 * one.gain:+.1f} | " + " | ".join(cells) + " |")
    lines += ["", f"Chosen: {described(winner.setting)}."]
    for model, best in branches.items():
        lines.append(
            f"Branch of {model}: {described(best.setting)} gains "
            f"{100 * (best.gains[model] - winner.gains[model]):.1f} points more there."
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="+")
    args = parser.parse_args()
    found = [result for folder in args.results for result in read_folder(folder)]
    print("\n".join(table(rates(found))))


if __name__ == "__main__":
    main()

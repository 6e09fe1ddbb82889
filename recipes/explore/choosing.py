"""Choose a setting of every method, and the package's two presets, on the tuning split.

Rows are those of results/*.json.
"""

from typing import Any

import numpy as np
from methods import METHODS, PAIR, TASKS, steps_of

FLOOR, GAIN, MARGIN = 0.08, 0.04, 0.005  # see `presets_of`

Row = dict[str, Any]
Both = dict[str, Row]  # a setting's rows on the two tasks of the pair


def chosen_of(tuned: list[Row], looked: list[Row], third: list[Row]) -> dict[str, Any]:
    """Return the settings of the report by task and method, and the presets' tuning results.

    Every method gets its setting with the largest Pass@16 on each task. Plain sampling gets the
    best of its largest look, as does ODD on a drawn fork, which only the third look has.
    """
    rows = tuned + looked
    best = {(task, method): best_of(rows, task, method) for task in TASKS for method in METHODS}
    plain = {task: best_of(third, task, "plain") for task in PAIR}
    presets = presets_of(pairs(rows), {task: best[task, "plain"] for task in PAIR})
    presets["default"] = held_or_beaten(presets["default"], pairs(third), plain)
    drawn = [row for row in third if "fork_temperature" in row["params"]]
    chosen: dict[str, Any] = {
        task: {method: best[task, method]["params"] for method in METHODS} for task in TASKS
    }
    for task, (_, _, length, _) in TASKS.items():
        # Tasks without these looks use the settings of countdown-4 with their own length.
        of = task if task in PAIR else "countdown-4"
        if task in PAIR:
            chosen[task]["plain"] = plain[task]["params"]
        ours = {
            "odd_drawn": best_of(drawn, of, "ours"),
            **{name: both[of] for name, both in presets.items()},
        }
        for name, row in ours.items():
            chosen[task][name] = {**row["params"], "length": length, "steps": steps_of(task)}
    kept = ("method", "pass@1", "pass@16")
    chosen["presets"] = {
        name: {task: {k: both[task][k] for k in kept} for task in PAIR}
        for name, both in presets.items()
    }
    return chosen


def presets_of(settings: list[Both], plain: Both) -> dict[str, Both]:
    """Choose the default and the careful preset.

    The default has the largest mean Pass@16 over the pair, among settings whose Pass@1 is nowhere
    more than FLOOR below plain sampling's. The careful preset has the largest mean Pass@1, among
    settings that gain GAIN on countdown-4 and lose nothing on minicode. The other metric breaks
    ties.
    """
    first, second = PAIR
    gaining = [
        own
        for own in settings
        if own[first]["pass@16"] - plain[first]["pass@16"] >= GAIN
        and own[second]["pass@16"] >= plain[second]["pass@16"]
    ]
    return {
        "default": max(
            able(settings, plain), key=lambda own: (mean(own, "pass@16"), mean(own, "pass@1"))
        ),
        "careful": max(gaining, key=lambda own: (mean(own, "pass@1"), mean(own, "pass@16"))),
    }


def held_or_beaten(default: Both, again: list[Both], plain: Both) -> Both:
    """Keep the default unless a larger look, which includes it, has a setting better by MARGIN.

    The margin was fixed before that look was drawn; that it applies to the mean over the pair was
    decided afterwards (docs/exploration.md, Protocol).
    """
    held = next(own for own in again if own[PAIR[0]]["params"] == default[PAIR[0]]["params"])
    strongest = max(able(again, plain), key=lambda own: mean(own, "pass@16"))
    return strongest if mean(strongest, "pass@16") > mean(held, "pass@16") + MARGIN else default


def able(settings: list[Both], plain: Both) -> list[Both]:
    return [
        own
        for own in settings
        if all(own[task]["pass@1"] - plain[task]["pass@1"] >= -FLOOR for task in PAIR)
    ]


def best_of(rows: list[Row], task: str, method: str) -> Row:
    own = [row for row in rows if (row["task"], row["method"]) == (task, method)]
    return max(own, key=lambda row: (row["pass@16"], row["pass@1"]))


def pairs(rows: list[Row]) -> list[Both]:
    """Return the settings with a push that were tried on both tasks of the pair."""
    settings: dict[tuple[str, int], Both] = {}
    for row in rows:
        if row["task"] in PAIR and row["method"] != "plain":
            settings.setdefault((row["method"], row["place"]), {})[row["task"]] = row
    return [own for own in settings.values() if len(own) == len(PAIR)]


def mean(own: Both, metric: str) -> float:
    return float(np.mean([own[task][metric] for task in PAIR]))

"""Names of whole sets of settings: presets, and the objective "auto". Imports nothing."""

from collections.abc import Mapping
from typing import Any, Literal

PresetName = Literal["paper", "careful"]

# The strongest at equal cost of what docs/exploration.md compares, and the one that costs least Pass@1. fork "auto": where
# samples are pushed and there are steps to spare for it, so that plain sampling is the same for every objective.
AUTO: Mapping[str, Any] = {"objective": {"name": "odd", "enough": 0.5}, "alpha": 4.0, "fork": "auto"}
PRESETS: Mapping[str, Mapping[str, Any]] = {"careful": {"objective": "odd", "alpha": 2.0, "fork": "auto"}}
PAPER: Mapping[str, Any] = {"objective": "odd"}  # preset "paper" is a setting of its own, the arithmetic; this goes with it
ABOUT = {
    "auto": "The recommended way to make samples differ; the default (docs/exploration.md).",
    "paper": "The published arithmetic, rounding errors and all.",
    "careful": "Nearly as many problems solved, and more of the single samples right.",
}


def expanded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a preset and the objective "auto" stand for; what is given beside them wins."""
    found = dict(settings)
    preset = found.get("preset")
    if isinstance(preset, str) and preset in PRESETS:
        del found["preset"]
        found = {**PRESETS[preset], **found}
    if found.get("objective") in ("auto", {"name": "auto"}):
        del found["objective"]
        found = {**AUTO, **found}
    return found


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with an objective: "auto" where none is given, or the paper's with its preset."""
    found = expanded(settings)
    if "objective" in found:
        return found
    return {**PAPER, **found} if found.get("preset") == "paper" else expanded({**found, "objective": "auto"})

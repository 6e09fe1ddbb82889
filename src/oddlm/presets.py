"""The defaults of every door, and names for sets of settings. Imports nothing.

`SampleParams` declares these defaults, and so the command line, sweeps, the server and `LM.generate` have them. `Repulsion`,
`diversify` and `denoise` read them here. docs/concepts/presets.md says where a door differs, and why.
"""

from collections.abc import Mapping
from typing import Any, Literal

PresetName = Literal["paper", "careful"]
Fork = bool | Literal["auto"]  # "auto": where samples are pushed and every block has a step to spare

LENGTH = 64
TEMPERATURE = 0.5
POLICY = "low_confidence"
# The strongest at equal cost of what docs/exploration.md compares, and the one that costs least Pass@1.
OBJECTIVE: Mapping[str, Any] = {"name": "odd", "enough": 0.5}
ALPHA = 4.0
FORK: Fork = "auto"
FEATURE = "max_pool"
ALPHA_SCHEDULE = "linear"
GRADIENT: Literal["normalized", "raw"] = "normalized"
SELECTOR = "k_centre"

AUTO: Mapping[str, Any] = {"objective": OBJECTIVE, "alpha": ALPHA, "fork": FORK}  # what the objective "auto" stands for
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"objective": "odd", "alpha": 8.0, "fork": False},  # and the published arithmetic, which the field itself says
    "careful": {"objective": "odd", "alpha": 2.0, "fork": "auto"},
}
ABOUT = {
    "auto": "The recommended way to make samples differ; the default (docs/exploration.md).",
    "paper": "The published method and its arithmetic, rounding errors and all.",
    "careful": "Nearly as many problems solved, and more of the single samples right.",
}


def expanded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a preset and the objective "auto" stand for; what is given beside them wins."""
    found = dict(settings)
    preset = found.get("preset")
    if isinstance(preset, str) and preset in PRESETS:
        if preset != "paper":  # which is also an arithmetic
            del found["preset"]
        found = {**PRESETS[preset], **found}
    objective = found.get("objective")
    if isinstance(objective, Mapping) and objective.get("name") == "auto" and len(objective) > 1:
        raise ValueError(f"objective 'auto' has no options, as it stands for {dict(OBJECTIVE)}: give that with yours")
    if objective in ("auto", {"name": "auto"}):
        del found["objective"]
        found = {**AUTO, **found}
    return found

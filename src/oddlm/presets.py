"""The defaults of every entry point, and presets, which are names for several settings.

`SampleParams` declares these defaults, so the command line, sweeps, the server and `LM.generate`
share them; `Repulsion`, `diversify` and `denoise` read them here. docs/concepts/presets.md explains
which entry points differ and why. This module imports nothing of the package.
"""

from collections.abc import Mapping
from typing import Any, Literal

PresetName = Literal["auto", "careful", "paper"]
Arithmetic = Literal["exact", "published"]
Fork = bool | Literal["auto"]  # "auto": if samples are pushed and every block has a step to spare

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "auto": {
        "objective": {"name": "odd", "enough": 0.5},
        "alpha": 16.0,
        "alpha_end": 0.25,
        "fork": "auto",
        "arithmetic": "exact",
    },
    "careful": {
        "objective": "odd",
        "alpha": 2.0,
        "alpha_end": 1.0,
        "fork": "auto",
        "arithmetic": "exact",
    },
    "paper": {
        "objective": "odd",
        "alpha": 8.0,
        "alpha_end": 1.0,
        "fork": False,
        "arithmetic": "published",
    },
}
ABOUT = {
    "auto": "The default: a strong push in the first quarter of the steps (docs/default.md).",
    "careful": "A gentle push over all steps.",
    "paper": "The published method in its own arithmetic, rounding errors included.",
}

LENGTH = 64
TEMPERATURE = 0.5
POLICY = "low_confidence"
OBJECTIVE: Mapping[str, Any] = PRESETS["auto"]["objective"]
ALPHA: float = PRESETS["auto"]["alpha"]
FORK: Fork = PRESETS["auto"]["fork"]
ARITHMETIC: Arithmetic = PRESETS["auto"]["arithmetic"]
FEATURE = "max_pool"
ALPHA_SCHEDULE = "linear"
ALPHA_END: float = PRESETS["auto"]["alpha_end"]
GRADIENT: Literal["normalized", "raw"] = "normalized"
SELECTOR = "k_centre"


def expanded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `preset` by the settings it stands for; settings given beside it win.

    An alpha without an `alpha_end` lasts for all steps: the end of another alpha says nothing
    about it.
    """
    found = dict(settings)
    if "alpha" in found:
        found.setdefault("alpha_end", 1.0)
    preset = found.get("preset")
    if preset is None or not isinstance(preset, str) or preset not in PRESETS:
        return found  # an unknown name is rejected when the settings are validated
    del found["preset"]
    return {**PRESETS[preset], **found}


def push_of(alpha: float | None, alpha_end: float | None) -> tuple[float, float]:
    """Return alpha and alpha_end with the defaults filled in, by the same rule."""
    usual, end = (ALPHA, ALPHA_END) if alpha is None else (alpha, 1.0)
    return usual, end if alpha_end is None else alpha_end

"""The registry behind every setting that names a piece of the sampler."""

from collections.abc import Mapping
from typing import Any

from .core.policies import POLICIES
from .diversity.alpha import ALPHA_SCHEDULES
from .diversity.features import FEATURES
from .diversity.objectives import OBJECTIVES
from .registry import Registry
from .selection import SELECTORS

PIECES: Mapping[str, Registry[Any]] = {  # by field of SampleParams: the fields of params.NAMED
    "objective": OBJECTIVES,
    "feature": FEATURES,
    "policy": POLICIES,
    "alpha_schedule": ALPHA_SCHEDULES,
    "selector": SELECTORS,
}

"""Everything that is registered, so that tests cover a new piece without listing it."""

from oddlm.diversity.objectives import slope_of, weigh_of
from oddlm.pieces import PIECES

POLICIES, FEATURES, ALPHA_SCHEDULES, SELECTORS = (
    PIECES[kind].names for kind in ("policy", "feature", "alpha_schedule", "selector")
)
OBJECTIVES = PIECES["objective"].names
PUSHING = [name for name in OBJECTIVES if name != "none"]


def is_coupled(objective: str) -> bool:
    """Does a sample depend on later ones?"""
    return getattr(PIECES["objective"].build(objective), "coupled", False)


CLOSED = [
    name for name in PUSHING if slope_of(PIECES["objective"].build(name)) is not None
]  # need no autograd
FUSED = [
    name for name in PUSHING if weigh_of(PIECES["objective"].build(name)) is not None
]  # run as fused kernels
UNCOUPLED = [name for name in PUSHING if not is_coupled(name)]

"""Version numbers that identify runs, besides their settings.

Raise a number in the commit that changes what it stands for.
"""

from typing import Final

STORE: Final = 2  # the file layout of a run; other layouts are refused
SAMPLER = 2  # the tokens that the same weights, settings and seed give
# The measures of a scored record; verdicts have `Task.scorer_version`.
SCORING = 1

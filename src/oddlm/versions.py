"""What runs are known by, beside their settings.

Raise a number in the commit that changes what it stands for.
"""

from typing import Final

STORE: Final = 2  # the files of a run: another number is another layout, and is refused
SAMPLER = 1  # the tokens that the same weights, settings and seed give
# the measures of a scored record; the verdicts of a task have a number of their own
# (`Task.scorer_version`)
SCORING = 1

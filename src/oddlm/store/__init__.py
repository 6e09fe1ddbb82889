"""Runs on disk (`files`), what is in them (`records`), and questions about them (`query`).

Imports no torch.
"""

from .files import Head, Run, Store, Writer
from .records import (
    DRAWN,
    SCORES,
    SPEC,
    SUMMARY,
    DamagedRunError,
    Drawn,
    DrawnSample,
    Failure,
    Place,
    Record,
    RunHeldError,
    SampleRecord,
    Scored,
    Spec,
    Stage,
    Statistics,
    StoreError,
    Summary,
)

__all__ = [
    "DRAWN",
    "SCORES",
    "SPEC",
    "SUMMARY",
    "DamagedRunError",
    "Drawn",
    "DrawnSample",
    "Failure",
    "Head",
    "Place",
    "Record",
    "Run",
    "RunHeldError",
    "SampleRecord",
    "Scored",
    "Spec",
    "Stage",
    "Statistics",
    "Store",
    "StoreError",
    "Summary",
    "Writer",
]

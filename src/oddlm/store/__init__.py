"""Runs on disk (`files`), the records in them (`records`) and SQL over them (`query`).

Importing this package does not import torch.
"""

from .files import Head, Run, Store, Writer
from .records import (
    DRAWN,
    FAILURES,
    SCORES,
    SPEC,
    SUMMARY,
    DamagedRunError,
    Drawn,
    DrawnSample,
    Failure,
    Network,
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
    "FAILURES",
    "SCORES",
    "SPEC",
    "SUMMARY",
    "DamagedRunError",
    "Drawn",
    "DrawnSample",
    "Failure",
    "Head",
    "Network",
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

"""The command line: one small function per command. Importing this does not import torch."""

from . import (
    bench,
    demo,
    evaluate,
    names,
    record,
    report,
    runs,
    sample,
    serve,
    sweep,
    tasks,
    train,
    tune,
)
from .app import app, main

__all__ = [
    "app",
    "bench",
    "demo",
    "evaluate",
    "main",
    "names",
    "record",
    "report",
    "runs",
    "sample",
    "serve",
    "sweep",
    "tasks",
    "train",
    "tune",
]

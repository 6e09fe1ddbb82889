"""The command line: one small function per command. Importing this does not import torch."""

from . import (
    adapt,
    answer,
    bench,
    demo,
    evaluate,
    models,
    names,
    record,
    report,
    rl,
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
    "adapt",
    "answer",
    "app",
    "bench",
    "demo",
    "evaluate",
    "main",
    "models",
    "names",
    "record",
    "report",
    "rl",
    "runs",
    "sample",
    "serve",
    "sweep",
    "tasks",
    "train",
    "tune",
]

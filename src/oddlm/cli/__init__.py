"""The command line: one small function per command. Importing this does not import torch."""

from . import bench, evaluate, look, record, report, runs, sample, serve, sweep, tasks, train, tune
from .app import app, main

__all__ = [
    "app",
    "bench",
    "evaluate",
    "look",
    "main",
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

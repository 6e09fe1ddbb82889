"""The command line: one small function per command. Importing this does not import torch."""

from . import evaluate, look, runs, sample, sweep, tasks, train
from .app import app, main

__all__ = ["app", "evaluate", "look", "main", "runs", "sample", "sweep", "tasks", "train"]

"""The command line: one small function per command. Importing this does not import torch."""

from . import bench, evaluate, look, runs, sample, tasks, train
from .app import app, main

__all__ = ["app", "bench", "evaluate", "look", "main", "runs", "sample", "tasks", "train"]

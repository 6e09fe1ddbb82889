"""Benchmarks: one file per task, each ending in TASK = Task(...)."""

from .base import Problem, Score, Task, find_task

__all__ = ["Problem", "Score", "Task", "find_task"]

"""Benchmarks: one file per task, each defining TASK = Task(...)."""

from .base import Problem, Score, Task, check_scoring, find_task, problem_digest, task_identity

__all__ = [
    "Problem",
    "Score",
    "Task",
    "check_scoring",
    "find_task",
    "problem_digest",
    "task_identity",
]

"""MBPP+: 378 of MBPP's functions, scored with many more inputs.

(Liu et al. 2023, arXiv:2305.01210.)
"""

from .base import Problem
from .evalplus import plus_task


def prompt(problem: Problem) -> str:
    """The published prompt is a docstring with the task and one test, which names the function."""
    return f"Write a Python program that begins with this docstring:\n{problem.prompt}"


TASK = plus_task("mbpp_plus", "MbppPlus", prompt)

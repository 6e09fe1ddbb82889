"""MBPP+: 378 of MBPP's functions, scored with many more inputs.

(Liu et al. 2023, arXiv:2305.01210.)
"""

from functools import partial

from .base import Problem, Score, Task
from .evalplus import load
from .programs import codes_in, read_program, readings

NAME = "MbppPlus"


def prompt(problem: Problem) -> str:
    """The published prompt is a docstring with the task and one test, which names the function."""
    return f"Write a Python program that begins with this docstring:\n{problem.prompt}"


def score(problem: Problem, text: str) -> Score:
    codes = codes_in(text)
    verdict = problem.target.run(readings("", codes))
    return Score(verdict.passed, codes[0], verdict.detail)


TASK = Task(
    "mbpp_plus",
    partial(load, NAME),
    prompt,
    score,
    length=512,
    read=read_program,
    code=True,
    outside=True,
    protocols={"base": {"load": partial(load, NAME, plus=False)}},
)

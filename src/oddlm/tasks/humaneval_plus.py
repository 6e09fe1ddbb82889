"""HumanEval+: HumanEval's functions, scored with many more inputs.

(Liu et al. 2023, arXiv:2305.01210.)
"""

from functools import partial

from .base import Problem, Score, Task
from .evalplus import load
from .humaneval import prompt
from .programs import codes_in, read_program, readings

NAME = "HumanEvalPlus"


def score(problem: Problem, text: str) -> Score:
    codes = codes_in(text, problem.prompt)
    verdict = problem.target.run(readings(problem.prompt, codes))
    return Score(verdict.passed, codes[0], verdict.detail)


TASK = Task(
    "humaneval_plus",
    partial(load, NAME),
    prompt,
    score,
    length=512,
    read=read_program,
    code=True,
    outside=True,
    protocols={"base": {"load": partial(load, NAME, plus=False)}},
)

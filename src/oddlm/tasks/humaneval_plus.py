"""HumanEval+: HumanEval's functions, scored with many more inputs.

(Liu et al. 2023, arXiv:2305.01210.)
"""

from .evalplus import plus_task
from .humaneval import prompt

TASK = plus_task("humaneval_plus", "HumanEvalPlus", prompt, lambda problem: problem.prompt)

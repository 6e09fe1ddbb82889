"""A program, its tests, and how to run the two."""

import ast
from dataclasses import dataclass

from oddlm.sandbox import Limits, Verdict, read_tests, run_python

# For programs that forge an answer: finds the number of the question being asked.
NUMBER = """
import sys
def number():
    frame = sys._getframe()
    while 'asked' not in frame.f_locals: frame = frame.f_back
    return frame.f_locals['asked']
"""


@dataclass(frozen=True)
class Case:
    program: str
    tests: str
    by_reference: tuple[str, ...] = ()
    timeout_s: float = 10.0

    def judge(self) -> Verdict:
        nodes = ast.parse(self.program).body
        defined = tuple(
            node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)
        )
        trial = read_tests(self.tests, by_reference=self.by_reference, defined=defined)
        return run_python(self.program, trial, limits=Limits(timeout_s=self.timeout_s))

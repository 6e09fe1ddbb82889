"""Untrusted Python, run so that it can neither harm nor lie; fails closed.

run_python(source, tests, functions=[...]) starts two fresh processes, each in a bubblewrap of its own:

    candidate   runs the program, answers calls of its functions           inside/candidate.py
    judge       runs the tests; each call of a function is sent across     inside/judge.py

Arguments go one way and results come back as plain data (inside/wire.py). What the tests expect stays with the judge, and so
does the verdict, which goes to us through a pipe that the candidate does not have. So a program can pass only by answering
right: there is nothing else that it could say. jail.py builds the walls, seccomp.py the filter of system calls.
"""

from .jail import Limits, SandboxError, Walls, require_sandbox, walls
from .run import Verdict, run_python
from .trial import TestsError, Trial, read_tests

__all__ = [
    "Limits",
    "SandboxError",
    "TestsError",
    "Trial",
    "Verdict",
    "Walls",
    "read_tests",
    "require_sandbox",
    "run_python",
    "walls",
]

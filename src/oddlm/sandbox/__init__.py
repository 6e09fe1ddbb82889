"""Untrusted Python, run so that it can neither harm nor lie; fails closed.

run_python(source, tests) starts two fresh processes, each in a bubblewrap of its own:

    candidate   runs the program and answers for what it defines          inside/candidate.py
    judge       runs the tests; using a name of the program asks across   inside/judge.py

Values cross as bytes (inside/wire.py, inside/library.py), exceptions as descriptions
(inside/errors.py), and what is no value stays where it is behind a stand-in (inside/peer.py,
inside/proxies.py). What the tests expect stays with the judge, and so does the verdict, which
reaches us through a pipe that the candidate does not have. So a program can pass only by answering
right: there is nothing else that it could say. trial.py reads tests beforehand, jail.py builds the
walls, with seccomp.py and cgroup.py, inside/start.py is the first code behind them, and threads.py
ends what runs. docs/sandbox.md says what can be judged.
"""

from .jail import Limits, SandboxError, Walls, require_sandbox, walls
from .run import Verdict, run_python
from .threads import ScoringThreads
from .trial import TestsError, Trial, read_tests

__all__ = [
    "Limits",
    "SandboxError",
    "ScoringThreads",
    "TestsError",
    "Trial",
    "Verdict",
    "Walls",
    "read_tests",
    "require_sandbox",
    "run_python",
    "walls",
]

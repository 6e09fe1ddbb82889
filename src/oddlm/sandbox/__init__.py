"""Run untrusted Python so that it can do no harm and cannot fake a verdict; fails closed.

run_python(source, tests) starts two fresh processes, each in its own bubblewrap:

    candidate   runs the program and answers requests for what it defines        inside/candidate.py
    judge       runs the tests; using a name of the program asks the candidate   inside/judge.py

Values cross as bytes (inside/wire.py, inside/library.py), exceptions as descriptions
(inside/errors.py). Everything else stays in its process, and a stand-in represents it in the other
(inside/peer.py, inside/proxies.py). The expected results stay with the judge. So does the verdict,
which reaches us through a pipe that the candidate does not have. A program can therefore pass only
by giving right answers.

trial.py analyses tests beforehand. jail.py builds the isolation, with seccomp.py and cgroup.py;
inside/start.py is the first code that runs in it. threads.py stops running sandboxes.
docs/sandbox.md says what can be judged.
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

"""Every case of cases.py: no hostile program passes, and every right program does."""

import ast

import pytest

from oddlm.sandbox import Limits, Verdict, read_tests, run_python

from .cases import HOSTILE, RIGHT, Case


def judge(case: Case) -> Verdict:
    defined = tuple(node.name for node in ast.parse(case.program).body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    trial = read_tests(case.tests, by_reference=case.by_reference, defined=defined)
    return run_python(case.program, trial, limits=Limits(timeout_s=case.timeout_s))


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_no_hostile_program_passes(case: Case) -> None:
    verdict = judge(case)
    assert not verdict.passed
    assert verdict.detail


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_every_right_program_passes(case: Case) -> None:
    verdict = judge(case)
    assert verdict.passed, verdict.detail


def test_no_test_excuses_an_exception_that_it_has_not_seen() -> None:
    """The same tests pass where they do see it."""
    tests = "try:\n    assert all(map(f, [1]))\nexcept StopIteration:\n    pass"
    assert not run_python("def f(x): raise StopIteration", tests).passed
    assert run_python("def f(x): raise StopIteration", "try:\n    f(1)\nexcept StopIteration:\n    pass").passed

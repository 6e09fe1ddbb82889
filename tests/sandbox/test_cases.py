"""Every case of cases.py: no hostile program passes, and every right program does."""

import pytest

from oddlm.sandbox import run_python

from .case import Case
from .cases import HOSTILE, RIGHT


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_no_hostile_program_passes(case: Case) -> None:
    verdict = case.judge()
    assert not verdict.passed
    assert verdict.detail


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_every_right_program_passes(case: Case) -> None:
    verdict = case.judge()
    assert verdict.passed, verdict.detail


def test_no_test_excuses_an_exception_that_it_has_not_seen() -> None:
    """The same tests pass if they do see it."""
    tests = "try:\n    assert all(map(f, [1]))\nexcept StopIteration:\n    pass"
    assert not run_python("def f(x): raise StopIteration", tests).passed
    assert run_python(
        "def f(x): raise StopIteration", "try:\n    f(1)\nexcept StopIteration:\n    pass"
    ).passed

"""Reading an answer takes time proportional to its length.

Texts come from models, and over HTTP from anybody.
"""

import pytest

from oddlm.tasks import countdown
from oddlm.tasks.base import Problem
from oddlm.tasks.minicode.reading import read_answer

from ..growth import LINEAR, growth

SIZE = 10_000  # characters
PROBLEM = Problem("p", "86,28,13,31,96", 96)
# (prefix, repeated part, suffix): runs that a quantifier consumes and gives back, lines that a loop
# looks at, and the ends of both.
TEXTS = [
    ("", " ", "x"),
    ("", "\t", "x"),
    ("", "a", "="),
    ("a", " ", "x"),
    ("a", " ,", "x"),
    ("a", ", a", " !"),
    ("a", ",a ", "=="),
    ("from ", "a", "("),
    ("", "a.", "!"),
    ("", "<", "|"),
    ("```", " ", "`"),
    ("```python", "\t", "a"),
    ("", "```", "return"),
    ("", "return\n", "```"),
    ("", "\n", "def f("),
    ("def f(x):\n", "    )\n", ""),
    ("def f(x):\n", "\n", "x"),
    ("import a\n", "    x = (\n", "return"),
    ("x = 1\n", "    y\n", "z"),
    ("", "#(\n", "return 1"),
    ("", "def g(\n", "def f("),
    ("", "1+1=2,", ""),
    ("", "9", "+1=2"),
    ("86+28=114", ",", "31"),
    ("\n", "\r", "1"),
]


@pytest.mark.parametrize(("before", "unit", "behind"), TEXTS)
@pytest.mark.parametrize(
    "read",
    [lambda text: read_answer(text, "def f(x):\n"), lambda text: countdown.score(PROBLEM, text)],
    ids=["minicode", "countdown"],
)
def test_answers_are_read_in_linear_time(read, before, unit, behind):
    assert growth(read, lambda size: before + unit * (size // len(unit)) + behind, SIZE) < LINEAR

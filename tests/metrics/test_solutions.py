"""Correct and different: words that change, programs that differ in more than names."""

import ast
import subprocess
import sys
import threading
import time
import warnings
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.metrics.solutions import LONGEST_PROGRAM, normal_form, solution_classes
from oddlm.metrics.words import split_words, word_distances

PROGRAM = """
def mean(xs):
    total = 0
    for x in xs:
        total += x
    return total / len(xs)
"""

SAME = {
    "names": "def average(values):\n    s = 0\n    for v in values:\n        s += v\n    return s / len(values)\n",
    "formatting": "def mean( xs ) :\n  total=0 # start\n  for x in xs :  total += x\n\n  return (total/\n    len(xs))",
    "docstring": PROGRAM.replace("(xs):", '(xs):\n    """The mean."""', 1),
    "annotations": PROGRAM.replace("(xs)", "(xs: list[float]) -> float", 1),
    "indented": "    " + PROGRAM.strip().replace("\n", "\n    "),
    "line ends": PROGRAM.replace("\n", "\r\n"),
}
OTHER = {
    "builtin": PROGRAM.replace("len", "sum"),
    "constant": PROGRAM.replace("0", "1"),
    "operator": PROGRAM.replace("+=", "-="),
    "names mixed up": PROGRAM.replace("total += x", "total += total"),
    "another algorithm": "def mean(xs):\n    return sum(xs) / len(xs)\n",
}


@pytest.mark.parametrize("program", SAME.values(), ids=SAME)
def test_the_same_program(program):
    assert normal_form(program) == normal_form(PROGRAM) is not None


@pytest.mark.parametrize("program", OTHER.values(), ids=OTHER)
def test_another_program(program):
    assert normal_form(program) not in (None, normal_form(PROGRAM))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("import numpy as np\nx = np.ones(3)", "import numpy as n\ny = n.ones(3)"),
        (
            "try:\n    f()\nexcept E as e:\n    print(e)",
            "try:\n    f()\nexcept E as err:\n    print(err)",
        ),
        (
            "match x:\n    case [a, *b]:\n        y = a, b",
            "match x:\n    case [h, *t]:\n        z = h, t",
        ),
        (
            "match x:\n    case {1: a, **r}:\n        y = a, r",
            "match x:\n    case {1: q, **s}:\n        y = q, s",
        ),
        ("n = 0\ndef f():\n    global n\n    n += 1", "m = 0\ndef g():\n    global m\n    m += 1"),
        ("r = [i * i for i in xs if (k := i)]", "s = [j * j for j in xs if (l := j)]"),
        (
            "async def f(a, *b, c=1, **d):\n    return a, b, c, d",
            "async def g(p, *q, r=1, **s):\n    return p, q, r, s",
        ),
        (
            "class A:\n    def f(self, t):\n        return t",
            "class B:\n    def f(me, u):\n        return u",
        ),
        ("    return a + b", "return a + b"),
        ("x = 1\n    return x", "    y = 1\n    return y"),
    ],
)
def test_every_kind_of_name(a, b):
    assert normal_form(a) == normal_form(b) is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("import math\nx = math.pi", "import cmath\nx = cmath.pi"),
        ("from math import sin\nsin(1)", "from math import cos\ncos(1)"),
        ("x.append(1)", "x.insert(1)"),
        ("f(a=1)", "f(b=1)"),
        ("def f(a):\n    return a\ng = f\ng(a=1)", "def f(b):\n    return b\ng = f\ng(a=1)"),
        ("class A:\n    p = 1\nA().p", "class A:\n    q = 1\nA().p"),
        ("class A:\n    def p(self): pass\nA().p()", "class A:\n    def q(self): pass\nA().p()"),
        ("a = 1\nb = 2\nprint(a)", "a = 1\nb = 2\nprint(b)"),
        ("import math\nmath = 3\nprint(math)", "import math\nm = 3\nprint(m)"),
        ("print('a')", "print('b')"),
        ("x = 1", "x = True"),
    ],
)
def test_names_that_mean_something_stay(a, b):
    assert None is not normal_form(a) != normal_form(b) is not None


@given(st.permutations(["alpha", "beta", "gamma", "total", "xs", "x", "mean", "_1"]))
def test_any_choice_of_names_is_the_same_program(names):
    renamed = PROGRAM
    for i, old in enumerate(("total", "xs", "mean")):
        renamed = renamed.replace(old, f"@{i}")
    renamed = renamed.replace("for x in", "for @3 in").replace("+= x", "+= @3")
    for i in range(4):
        renamed = renamed.replace(f"@{i}", names[i])
    assert normal_form(renamed) == normal_form(PROGRAM)


HOSTILE = {
    "NUL": "x = 1\0",
    "lone surrogate": "x = '\ud800'",
    "deep brackets": "(" * 5000 + ")" * 5000,
    "deep unary": "-" * 15_000 + "1",
    "deep not": "not " * 4000 + "x",
    "deep lambda": "lambda: " * 2400 + "0",
    "long sum": "+".join("1" * 9000),
    "long attribute": "x" + ".a" * 9000,
    "long call": "f" + "()" * 9000,
    "long elif": "if x: pass\n" + "elif x: pass\n" * 1400,
    "deep blocks": "\n".join(" " * i + "if x:" for i in range(180)),
    "long power": "2**" * 6000 + "2",
    "f-string": "f'{" * 100 + "x" + "}'" * 100,
    "big number": "x = " + "9" * 10_000,
    "big hex": "x = 0x" + "f" * 15_000,
    "megabytes": "x = 1\n" * 500_000,
    "megabytes of one word": "x" * 3_000_000,
    "megabytes of spaces": " " * 3_000_000,
    "bad escape": 'x = "\\d"',
    "null import": "import \0",
    "only comments": "# nothing\n" * 100,
    "tabs and spaces": "if x:\n\ty = 1\n        z = 2",
    "encoding line": "# -*- coding: nonsense -*-\nx = 1",
    "unicode names": "ﬁ = 1\nprint(fi)",
    "empty": "",
}


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_hostile_programs_are_read_or_not_but_nothing_falls(program):
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert normal_form(program) is None or len(program) <= LONGEST_PROGRAM
        assert solution_classes([program, "y = 2", program], code=True)[::2] == [0, 0]
        assert solution_classes([program, program]) == [0, 0]
    assert time.process_time() - start < 5


def test_a_warning_about_a_program_is_not_ours():
    assert normal_form('x = "\\d"') == normal_form('y = "\\\\d"') is not None


def test_hostile_programs_together():
    classes = solution_classes(list(HOSTILE.values()) * 2, code=True)
    assert classes[: len(HOSTILE)] == classes[len(HOSTILE) :]


def test_hostile_programs_in_a_thread():
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(solution_classes(list(HOSTILE.values()), code=True))
    )
    thread.start()
    thread.join()
    assert found


@given(st.text(max_size=200))
def test_any_text_may_be_offered_as_a_program(text):
    form = normal_form(text)
    assert form is None or isinstance(form, str)
    assert solution_classes([text, text], code=True) == [0, 0]


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "mark"
    program = f"open({str(mark)!r}, 'w').write('x')"
    assert normal_form(program) is not None
    assert not mark.exists()


def test_the_same_form_in_every_process():
    code = "from oddlm.metrics.solutions import normal_form; import sys; sys.stdout.write(normal_form(sys.stdin.read()))"
    forms = []
    for seed in "01":
        run = partial(subprocess.run, input=PROGRAM, capture_output=True, text=True, check=True)
        forms.append(run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}).stdout)
    assert forms == [normal_form(PROGRAM)] * 2


def test_a_form_is_not_a_program():
    """The numbers that stand for names are no names, so they meet none of the program's own."""
    form = normal_form(PROGRAM)
    names = {node.value for node in ast.walk(ast.parse(form)) if isinstance(node, ast.Constant)}
    assert {"$0", "$1", "$2", "$3", "len"} <= names
    assert not names & {"mean", "total", "xs", "x"}


def test_words_by_hand():
    ten = "one two three four five six seven eight nine ten"
    near, far = ten.replace("ten", "10"), ten.replace("one two three", "1 2 3")
    assert solution_classes([ten, near, far, ten]) == [0, 0, 1, 0]
    assert solution_classes([ten, near, far, ten], threshold=0.05) == [0, 1, 2, 0]
    assert solution_classes([ten, near], threshold=0.1) == [0, 0]  # over the threshold, not at it
    assert solution_classes([ten, ten.replace(" ", "\n  ")], threshold=0) == [0, 0]
    assert solution_classes([]) == []
    assert solution_classes([""]) == [0]


def test_greedy_in_order():
    """b is near to both a and c, which are far from each other: what comes first decides."""
    a, b, c = "1 2 3 4 5", "1 2 3 4 x", "1 2 3 y x"
    assert solution_classes([a, b, c]) == [0, 0, 1]
    assert solution_classes([a, c, b]) == [0, 1, 0], "like both, it joins the first"
    assert solution_classes([b, a, c]) == [0, 0, 0]


def test_unreadable_programs_are_compared_by_words():
    broken = "def f(x:\n    return x + 1"
    assert solution_classes(
        [broken, broken.replace("x", "x "), PROGRAM, SAME["names"]], code=True
    ) == [0, 0, 1, 1]
    assert solution_classes([PROGRAM, OTHER["builtin"], SAME["names"]], code=True) == [0, 1, 0]


TEXTS = st.lists(st.lists(st.sampled_from("abcd"), max_size=8).map(" ".join), max_size=6)


@given(TEXTS, st.floats(0, 0.9))
def test_founders_differ_and_the_others_join_the_first_they_are_near(texts, threshold):
    classes = solution_classes(texts, threshold=threshold)
    founders = [classes.index(number) for number in range(max(classes, default=-1) + 1)]
    assert founders == sorted(founders), "numbered in order of first appearance"
    words = [split_words(text) for text in texts]
    distances = word_distances(words, words)
    assert all(distances[i, j] > threshold for i in founders for j in founders if i != j)
    for i, number in enumerate(classes):
        near = [c for c, j in enumerate(founders) if j <= i and distances[i, j] <= threshold]
        assert number == near[0]


@pytest.mark.parametrize("threshold", [-0.1, 1, 1.5, float("nan")])
def test_bad_threshold(threshold):
    with pytest.raises(ValueError, match="threshold must be at least 0 and below 1"):
        solution_classes(["a"], threshold=threshold)

"""The demo's numbers are those of the rest of the package, and it concludes nothing from too little."""

import io

import pytest
from rich.console import Console

from oddlm import demo
from oddlm.metrics import pass_at_k, summarise
from oddlm.tasks import find_task

LATE = [[False] * 15 + [True]] * 4 + [[True] + [False] * 15] * 8


def tally(correct) -> demo.Tally:
    return demo.Tally(correct, [[str(right) for right in row] for row in correct], 1.0)


def shown(tallies) -> str:
    console = Console(file=io.StringIO(), width=200)
    demo._report(console, "made up", tallies)
    return console.file.getvalue()


@pytest.mark.parametrize("k", [1, 2, 8, 16])
def test_pass_at_k_is_that_of_the_first_k(k):
    assert tally(LATE).pass_at(k) == pytest.approx(summarise(LATE, [k])[f"pass@{k}"])
    assert tally(LATE).pass_at(k) == pytest.approx(pass_at_k(LATE, k).mean())


def test_the_difference_comes_with_its_interval():
    plain = [[False] * 16] * 12
    text = shown({("none", 0.0): tally(plain), ("auto", 0.0): tally(LATE)})
    assert "+100 [+100, +100]" in text
    assert "12 problems" in text
    assert "95 % bootstrap interval" in text
    assert "conclusion" not in text


def test_too_few_problems_conclude_nothing():
    text = shown({("none", 0.0): tally(LATE[:9]), ("auto", 0.0): tally(LATE[:9])})
    assert "No conclusion from 9 problems" in text
    assert "minus plain" not in text
    assert "interval" not in text


class Quick:
    """Generates nothing of worth, at once."""

    class Sample:
        text = "1+1=2"

    def generate(self, prompt, n, **settings):
        return [[self.Sample()] * n]


@pytest.mark.parametrize(("least", "done"), [(1, 1), (demo.LEAST, demo.LEAST)])
def test_as_many_problems_as_are_needed_whatever_the_clock_says(least, done):
    task = find_task("countdown")
    settings = [("none", 0.0), ("auto", 0.0)]
    how = {"alpha": 8.0, "seed": 0, "seconds": 1e-9, "least": least}
    console = Console(file=io.StringIO())
    tallies, problems = demo._compare(console, Quick(), "made up", task, task.problems(limit=20), {}, settings, **how)
    assert len(problems) == done
    assert all(len(one.correct) == done and len(one.correct[0]) == demo.N for one in tallies.values())


class Interrupted(Quick):
    """Somebody presses Ctrl-C in the middle of the fourth problem."""

    calls = 0

    def generate(self, prompt, n, **settings):
        self.calls += 1
        if self.calls == 8:
            raise KeyboardInterrupt
        return super().generate(prompt, n, **settings)


def test_what_was_drawn_before_ctrl_c_is_shown():
    task, console = find_task("countdown"), Console(file=io.StringIO(), width=200)
    settings = [("none", 0.0), ("auto", 0.0)]
    how = {"alpha": 8.0, "seed": 0, "seconds": 60.0, "least": 10}
    with pytest.raises(KeyboardInterrupt):
        demo._compare(console, Interrupted(), "made up", task, task.problems(limit=20), {}, settings, **how)
    assert "made up: 3 problems" in console.file.getvalue()

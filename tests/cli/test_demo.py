"""The demo's numbers are those of the rest of the package, and it concludes nothing from too
little.
"""

import io
from contextlib import closing

import pytest
from rich.console import Console

from oddlm.cli import demo_runs as demo
from oddlm.experiments.executors.inline import InlineExecutor
from oddlm.experiments.work import Options
from oddlm.store import Store

METHODS = [{"objective": "none", "temperature": 0.0}, {"objective": "auto", "temperature": 0.0}]


@pytest.fixture
def small():
    """The shortest trial there is: one step, four tokens."""
    return demo.trial("made up", "countdown", {"length": 4, "steps": 2}, METHODS, 0)


def run(trial, folder, executor=None, **how):
    console = Console(file=io.StringIO(), width=200)
    with closing(executor or InlineExecutor(Options())) as one:
        try:
            done = trial.run(console, Store(folder), one, **how)
        except KeyboardInterrupt:
            done = None
    return done, console.file.getvalue()


@pytest.mark.parametrize(("least", "count"), [(1, 1), (demo.LEAST, demo.LEAST)])
def test_as_many_problems_as_are_needed_whatever_the_clock_says(small, tmp_path, least, count):
    done, text = run(small, tmp_path, seconds=1e-9, least=least)
    assert [len(records) for _, records in done] == [count, count]
    assert all(len(record.samples) == demo.N for _, records in done for record in records)
    assert ("No conclusion from 1 problem" in text) == (count < demo.LEAST)
    assert ("95 % interval" in text) == (count >= demo.LEAST)
    assert f"made up: {count} problem" in text


class Interrupted(InlineExecutor):
    """Somebody presses Ctrl-C in the middle of the fourth problem."""

    plans = 0

    def outcomes(self, take):
        self.plans += 1
        for outcome in super().outcomes(take):
            if self.plans == 4:
                raise KeyboardInterrupt
            yield outcome


def test_what_was_drawn_before_ctrl_c_is_shown(small, tmp_path):
    done, text = run(small, tmp_path, Interrupted(Options()), seconds=60.0, least=10)
    assert done is None
    assert "made up: 3 problems" in text


def test_curves_are_those_of_the_first_k(small, tmp_path):
    done, _ = run(small, tmp_path, seconds=1e-9, least=2)
    for (_, records), (_, curve) in zip(done, demo._curves(done), strict=True):
        assert curve[-1] == pytest.approx(sum(any(record.correct) for record in records) / 2)
        assert len(curve) == demo.N

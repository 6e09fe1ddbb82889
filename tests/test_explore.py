"""The recipes that draw on one machine and score on another, and the numbers of
docs/exploration.md.
"""

import argparse
import importlib
import shutil
import sys
from pathlib import Path

import pytest

from oddlm.store import Store

from .runs import stored

ROOT = Path(__file__).parents[1]


@pytest.fixture
def recipe(monkeypatch):
    """A script of recipes/, by folder and name."""

    def find(folder: str, name: str):
        monkeypatch.syspath_prepend(str(ROOT / "recipes" / folder))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return find


def test_drawn_here_and_scored_there_is_what_a_run_is(recipe, tmp_path, monkeypatch):
    explore = recipe("explore", "explore")
    small = ["plan", "--runs", "3", "--limit", "1", "--dtype", "fp32"]

    def call(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["explore", *small, *words])
        explore.main()

    call("--store", str(tmp_path / "here"), "--only", "draw")
    assert [
        head.scored for head in map(Store(tmp_path / "here").head, Store(tmp_path / "here").ids())
    ] == [0, 0, 0]
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    call("--store", str(tmp_path / "there"), "--only", "score")
    call("--store", str(tmp_path / "whole"))
    assert stored(tmp_path / "there") == stored(tmp_path / "whole")
    assert len(stored(tmp_path / "whole")) == 3


@pytest.mark.soak
def test_every_table_of_the_exploration_is_printed_from_what_is_stored(recipe, capsys, monkeypatch):
    tables = recipe("explore", "tables")
    monkeypatch.setattr(sys, "argv", ["tables"])
    tables.main()
    text = (ROOT / "docs" / "exploration.md").read_text()
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("|", "#"))]
    assert len(printed) > 100
    assert [line for line in printed if line not in text] == []


def test_what_was_chosen_follows_from_the_tuning_split(recipe, tmp_path, monkeypatch):
    explore = recipe("explore", "explore")
    chosen = (explore.RESULTS / "chosen.json").read_text()
    for name in ("tune.json", "refine.json", "third.json"):
        (tmp_path / name).write_text((explore.RESULTS / name).read_text())
    monkeypatch.setattr(explore, "RESULTS", tmp_path)
    explore.choose(argparse.Namespace())
    assert (tmp_path / "chosen.json").read_text() == chosen


@pytest.mark.parametrize(
    ("more", "right", "stays"), [(0.004, 0.0, True), (0.006, 0.0, False), (0.006, -0.09, True)]
)
def test_a_default_goes_only_to_what_beats_it_by_the_margin_and_keeps_the_floor(
    recipe, more, right, stays
):
    choosing = recipe("explore", "choosing")

    def setting(name: str, passed: float, single: float):
        return {
            task: {"params": {"name": name}, "pass@16": passed, "pass@1": single}
            for task in choosing.PAIR
        }

    default, plain = setting("default", 0.95, 0.4), setting("plain", 0.9, 0.4)
    rival = setting("rival", 0.95 + more, 0.4 + right)
    assert (choosing.held_or_beaten(default, [default, rival], plain) is default) == stays


def test_what_was_chosen_can_still_be_asked_for(recipe):
    explore = recipe("explore", "explore")
    for task in explore.PAIR:
        runs = {
            run.method: run.spec.params
            for run in explore.report_runs()
            if run.task == task and not run.variant
        }
        for name, settings in (("default", {"alpha": 4}), ("careful", {"preset": "careful"})):
            shape = {key: getattr(runs[name], key) for key in ("length", "steps", "eos")}
            given = {**shape, **settings}
            assert runs[name] == explore.SampleParams.model_validate(given).canonical()

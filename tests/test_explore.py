"""The recipes that draw on one machine and score on another, and the numbers of docs/exploration.md."""

import argparse
import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from oddlm.evaluate import Runner, identified
from oddlm.generate import load
from oddlm.params import RunSpec, checked
from oddlm.store import Store

ROOT = Path(__file__).parents[1]
MEASURED = {"seconds", "score_seconds"}


@pytest.fixture
def recipe(monkeypatch):
    """A script of recipes/, by folder and name."""

    def find(folder: str, name: str):
        monkeypatch.syspath_prepend(str(ROOT / "recipes" / folder))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return find


def specs(task: str, **given) -> list[RunSpec]:
    return [
        identified(
            checked(RunSpec, {"model": "mini", "task": task, "n": 2, "limit": 2, "seed": seed, "params": {"alpha": 8, **given}})
        )
        for seed in (0, 1)
    ]


def test_drawn_here_and_scored_there_is_what_a_run_is(recipe, tmp_path, monkeypatch):
    draw, gather = recipe("mini", "draw"), recipe("mini", "gather")
    runs = [*specs("countdown", length=16, steps=4), *specs("minicode", length=24, steps=4)]
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(run.model_dump_json() + "\n" for run in runs))
    draw.write_problems(file)
    options = {"runs": file, "out": tmp_path / "drawn", "device": "cpu", "dtype": None, "compiled": None}
    options |= {"workers": 2, "together": 2, "within": math.inf, "began": 0.0}
    for part in range(2):
        draw.work(argparse.Namespace(**options), part)
    monkeypatch.setattr(sys, "argv", ["gather", str(tmp_path / "drawn"), "--store", str(tmp_path / "there"), "--check", "4"])
    gather.main()
    there, here = Store(tmp_path / "there"), Store(tmp_path / "here")
    lm = load("mini")
    for run in runs:
        task, problems = draw.problems_of(run, run=True)
        expected = Runner(here, lambda: lm, together=2).run(run, task, problems)
        found = there.read(run.id).rows
        assert there.complete(run)
        for one, other in zip(found, expected, strict=True):
            mine, other = (row.model_dump(exclude=MEASURED) for row in (one, other))
            for sample in (*mine["samples"], *other["samples"]):
                del sample["detail"]  # in other words where programs share a sandbox
            assert mine == other


def test_workers_share_all_runs_and_keep_to_their_problems(recipe):
    draw = recipe("mini", "draw")
    runs = [*specs("countdown"), *specs("minicode"), *specs("countdown", temperature=1), *specs("minicode", temperature=1)]
    for workers in (1, 2, 3, 9):
        parts = draw.shares(runs, workers)
        assert len(parts) == workers
        assert sorted(run.id for part in parts for run in part) == sorted(run.id for run in runs)
    assert [{run.task for run in part} for part in draw.shares(runs, 2)] == [{"countdown"}, {"minicode"}]


def test_sequences_are_kept_once_and_found_again(recipe, tmp_path):
    draw, gather = recipe("mini", "draw"), recipe("mini", "gather")
    random = np.random.default_rng(0)
    drawn = draw.Drawn()
    for run in specs("countdown", length=3):
        drawn.meta.append({"spec": run.model_dump(mode="json"), "seconds": 1.0, "nfe": 3, "environment": {}})
        drawn.tokens.append(random.integers(0, 2, size=(2, 2, 3)))
    drawn.save(tmp_path / "x.npz")
    (shard,) = gather.read_shards(tmp_path)
    for run, tokens in enumerate(drawn.tokens):
        for problem in range(2):
            assert (shard.texts[problem][shard.which[problem, run]] == tokens[problem]).all()
            assert len(np.unique(shard.texts[problem], axis=0)) == len(shard.texts[problem])


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


@pytest.mark.parametrize(("more", "right", "stays"), [(0.004, 0.0, True), (0.006, 0.0, False), (0.006, -0.09, True)])
def test_a_default_goes_only_to_what_beats_it_by_the_margin_and_keeps_the_floor(recipe, more, right, stays):
    choosing = recipe("explore", "choosing")

    def setting(name: str, passed: float, single: float):
        return {task: {"params": {"name": name}, "pass@16": passed, "pass@1": single} for task in choosing.PAIR}

    default, plain = setting("default", 0.95, 0.4), setting("plain", 0.9, 0.4)
    rival = setting("rival", 0.95 + more, 0.4 + right)
    assert (choosing.held_or_beaten(default, [default, rival], plain) is default) == stays


def test_the_package_has_taken_what_was_chosen(recipe):
    explore = recipe("explore", "explore")
    for task in explore.PAIR:
        runs = {run.method: run.spec.params for run in explore.report_runs() if run.task == task and not run.variant}
        for name, preset in (("default", None), ("careful", "careful")):
            shape = {key: getattr(runs[name], key) for key in ("length", "steps", "eos")}
            given = {**shape, **({"preset": preset} if preset else {})}
            assert runs[name] == explore.SampleParams.model_validate(given).canonical()

"""The tables of the paper's study on smol."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from oddlm import metrics

from .made_results import result, write

RECIPE = Path(__file__).parents[1] / "recipes" / "smol"
WHERE = "smol gsm8k equations"


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPE))
    monkeypatch.delitem(sys.modules, "study", raising=False)
    yield importlib.import_module("study")
    sys.modules.pop("study", None)


def drawn(seed: int, chance: float, problems: int = 20, n: int = 16, **settings):
    right = np.random.default_rng([seed, n, problems]).random((problems, n)) < chance
    return result(WHERE, settings, right, seed=seed)


ODD = {"objective": "odd", "alpha": 8.0}
AUTO = {"objective": {"name": "odd", "enough": 0.5}, "fork": True}


@pytest.fixture
def results():
    own = [drawn(seed, 0.03, alpha_end=0.25) for seed in range(3)]
    own += [drawn(seed, 0.1, **ODD) for seed in range(2)]
    own += [drawn(0, 0.03, n=64), drawn(0, 0.1, n=64, **ODD)]
    own += [drawn(0, 0.2, problems=50, alpha=16.0, alpha_end=0.25, **AUTO)]
    other = [
        drawn(0, 0.9, problems=50, **ODD),
        drawn(0, 0.9, alpha=4.0, **AUTO),
        drawn(0, 0.9, alpha_end=0.25, **ODD),
        drawn(0, 0.9, temperature=0.75, alpha_end=0.25),
    ]
    return own, other


def call(study, monkeypatch, capsys, *words) -> str:
    monkeypatch.setattr(sys, "argv", ["study.py", *map(str, words)])
    study.main()
    return capsys.readouterr().out


def test_only_the_runs_of_the_study_count(study, results, tmp_path, monkeypatch, capsys):
    own, other = results
    folder = write(tmp_path / "smol", [*other, *own])
    said = call(study, monkeypatch, capsys, folder, "--problems", 20, "--ids")
    assert sorted(said.split()) == sorted(run.run for run in own)


def test_a_longer_run_counts_with_the_first_problems(study, results):
    own, _ = results
    long = own[-1]
    (found,) = (run for run in study.of_the_study(own, 20) if run.run == long.run)
    kept = [i for i, one in enumerate(long.ids) if int(one.removeprefix("gsm8k/")) < 20]
    assert len(kept) == 20
    assert np.array_equal(found.correct, long.correct[kept])
    assert found.problems_digest == own[0].problems_digest
    rates, gains = study.whole_tables(own, 20)
    assert len(rates.rows) == 1
    assert f"{100 * long.correct.any(axis=1).mean():.1f} [" in rates.rows[0][2]
    assert not gains.rows, "there is no plain run as long"


def test_tables_have_the_figures_of_the_runs(study, results, tmp_path, monkeypatch, capsys):
    own, other = results
    folder = write(tmp_path / "smol", [*other, *own])
    out = tmp_path / "figures"
    text = call(study, monkeypatch, capsys, folder, "--problems", 20, "--out", out)
    lines = [line.replace("\\", "") for line in text.splitlines()]
    plain, odd = own[:3], own[3:5]
    for runs, alpha in ((plain, "0"), (odd, "8")):
        mean, se = metrics.mean_se([run.correct.any(axis=1).mean() for run in runs])
        assert any(
            line.startswith(f"| {alpha} | {100 * mean:.1f} ± {100 * se:.1f} |") for line in lines
        )
    solved = [
        np.mean([run.correct.any(axis=1) for run in runs], axis=0) for runs in (odd, plain[:2])
    ]
    difference, low, high = (f"{100 * one:+.1f}" for one in metrics.paired_interval(*solved))
    shown = f"| odd, alpha 8 | 0.5 | {difference} [{low}, {high}] |"
    assert any(line.startswith(shown) and line.endswith("| 2 |") for line in lines)
    deep = 100 * own[6].correct.any(axis=1).mean()
    row = next(line for line in lines if line.startswith("| odd, alpha 8, θ = 0.5 |"))
    assert row.split("|")[-2].strip().startswith(f"{deep:.1f} [")
    assert [path.name for path in out.iterdir()] == [study.FIGURE]


def test_without_runs_of_the_study_there_is_no_table(study, results):
    own, _ = results
    with pytest.raises(ValueError, match="200 problems"):
        study.of_the_study(own, 200)

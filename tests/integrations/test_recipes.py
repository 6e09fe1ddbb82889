"""The trial in recipes/uniform and the benchmark of the processor, at their smallest."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(monkeypatch):
    """Import a module from a folder of the checkout, and forget it again."""
    known = set(sys.modules)

    def load(folder: str, name: str):
        monkeypatch.syspath_prepend(str(ROOT / folder))
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(ROOT)):
            del sys.modules[name]


def test_the_trial_runs_and_writes_its_page(load, monkeypatch, tmp_path, capsys):
    trial = load("recipes/uniform", "trial")
    monkeypatch.setattr(trial, "GRIDS", {name: grid[:2] for name, grid in trial.GRIDS.items()})
    monkeypatch.setattr(trial, "N", 2)
    monkeypatch.setattr(trial, "STEPS", 4)
    monkeypatch.setattr(sys, "argv", ["trial.py", "--out", str(tmp_path)])
    trial.main(trial.Size(networks=1, training=2, fresh=range(2), tuning=range(100, 101)))
    rows = json.loads((tmp_path / trial.RESULTS).read_text())
    assert {name: len(some) for name, some in rows.items()} == {"plain": 2, "odd": 2, "report": 9}
    page = (tmp_path / trial.PAGE).read_text()
    assert all(f"\n| {label.split('{')[0]}" in page for label in trial.LABELS)
    assert (tmp_path / trial.FIGURE).read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(sys, "argv", ["trial.py", "--write", "--out", str(tmp_path)])
    trial.main(trial.Size())
    assert (tmp_path / trial.PAGE).read_text() == page


def test_the_page_shows_the_stored_results(load, tmp_path):
    trial = load("recipes/uniform", "trial")
    rows = trial.stored(ROOT / trial.RESULTS)
    assert trial.table(rows["report"]) in (ROOT / trial.PAGE).read_text()
    assert {name: len(some) for name, some in rows.items()} == {"plain": 16, "odd": 16, "report": 9}
    fresh, tuned = (len(rows[name][0].found[0]) for name in ("report", "plain"))
    assert (fresh, tuned) == (len(trial.Size().fresh), len(trial.Size().tuning))


def test_answers_are_judged_as_a_whole(load):
    network = load("recipes/uniform", "network")
    shape = (network.PROMPTS, network.ANSWERS, network.CANVAS)
    answers = torch.arange(shape[0] * shape[1] * shape[2]).view(shape)
    written = answers[:, [0, 0, 3, 5]].clone()
    written[:, 3, -1] += 1  # one token wrong
    written[0, 2] = answers[1, 3]  # an answer to another prompt
    found, valid = network.World(None, answers).judge(written.flatten(0, 1), 4)
    assert found == [1, *[2] * (shape[0] - 1)]
    assert valid == [2, *[3] * (shape[0] - 1)]


def test_the_benchmark_times_both_parts_of_a_step(load, monkeypatch, capsys):
    processor = load("benchmarks", "processor")
    monkeypatch.setattr(sys, "argv", ["p", "--shape", "tiny", "--steps", "3", "--n", "2"])
    threads = torch.get_num_threads()
    processor.main()
    torch.set_num_threads(threads)
    cells = capsys.readouterr().out.splitlines()[-1].split("|")
    assert cells[2].strip() == "2 x 32 x 2048"
    rest, push = (float(re.findall(r"[\d.]+", cell)[0]) for cell in cells[3:5])
    share, of_run = (float(re.findall(r"[\d.]+", cell)[0]) for cell in cells[5:7])
    assert share == pytest.approx(100 * push / (push + rest), abs=1)
    assert of_run < share


def test_the_published_shape_has_26_billion_parameters(load):
    processor = load("benchmarks", "processor")
    model = processor.build("26b-a4b", "meta")
    assert 24e9 < sum(p.numel() for p in model.parameters()) < 27e9

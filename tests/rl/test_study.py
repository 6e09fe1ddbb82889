"""The study in miniature: time cuts it short, it goes on, and its report reads what is stored."""

import json

import numpy as np
import pytest
import torch
from recipes.rl import report, study


def test_a_study_that_is_cut_short_goes_on(recipe, tmp_path, monkeypatch, capsys):
    runs, results = tmp_path / "runs", tmp_path / "results"
    results.mkdir()
    (results / study.CHOSEN).write_text('{"learning_rate": 1e-3, "negative_weight": 0.2}')
    monkeypatch.setattr(study, "SEEDS", (0,))
    monkeypatch.setattr(study, "METHODS", {"odd": study.METHODS["odd"]})
    words = ["main", "--config", str(recipe), "--results", str(results), "--runs", str(runs)]
    words += ["--device", "cpu", "--minutes", "1", "--set", "steps=30", "--set", "check_every=10"]
    with monkeypatch.context() as hurried:
        hurried.setattr(study, "monotonic", lambda: 99.0 * any(runs.glob("*/checkpoint.pt")))
        assert study.main(words) == 0
    assert "0 of 1" in capsys.readouterr().out
    assert not list(results.glob("*.jsonl"))
    assert torch.load(runs / "odd-0" / "checkpoint.pt")["progress"]["step"] < 30
    assert study.main(words) == 0
    first, *lines = map(json.loads, (results / "odd-0.jsonl").read_text().splitlines())
    assert first["method"] == "odd"
    assert first["config"]["rollouts"]["settings"]["alpha"] == 8
    assert first["config"]["negative_weight"] == 0.2
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 31))
    assert [line["step"] for line in lines if "held_out" in line] == [0, 10, 20, 30]
    assert study.main([*words, "--minutes", "0"]) == 0
    assert "1 of 1" in capsys.readouterr().out


def test_the_report_compares_with_plain_rollouts(tmp_path, capsys):
    for method, last in (("plain", [4, 0, 0, 0]), ("odd", [1, 1, 1, 0])):
        for seed in (0, 1):
            lines = [{"method": method, "seed": seed}]
            for step, right in ((0, [1, 1, 0, 0]), (10, last)):
                held_out = {"plain": {"n": 4, "right": right}, "greedy": {"n": 1, "right": [1] * 4}}
                lines += [{"step": step, "held_out": held_out}]
                lines += [{"step": step, "reward": 0.5, "mixed": 1, "surprise": 1, "weight": 1}]
            path = tmp_path / f"{method}-{seed}.jsonl"
            path.write_text("\n".join(map(json.dumps, lines)))
    report.main([str(tmp_path), "--figure", str(tmp_path / "study.png")])
    told = capsys.readouterr().out.splitlines()
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in reversed(told)}
    cells = [cell.partition(" ")[0] for cell in rows["ODD, alpha 8"]]
    assert cells[:4] == ["18.8", "75.0", "-6.2", "+50.0"]
    assert [cell.partition(" ")[0] for cell in rows["before training"]][:2] == ["12.5", "50.0"]
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


def test_the_settings_with_the_highest_pass_at_1_are_chosen(tmp_path):
    for job in study.tune_jobs():
        best = job.about == {"learning_rate": 5e-5, "negative_weight": 0.2}
        held_out = {"plain": {"pass@1": 0.3 if best else 0.2}}
        lines = [dict(job.about), {"step": 0, "held_out": held_out}]
        (tmp_path / f"{job.name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert study.choose(tmp_path) == {"learning_rate": 5e-5, "negative_weight": 0.2}
    (tmp_path / "tune-2e-05-1.jsonl").unlink()
    with pytest.raises(SystemExit, match="tune-2e-05-1"):
        study.choose(tmp_path)


def test_intervals_cover_seeds_and_problems():
    generator = np.random.default_rng(0)
    alike = np.repeat(generator.random((1, 400)), 3, axis=0)
    mean, low, high = report.interval(alike)
    assert mean == pytest.approx(alike.mean())
    assert high - low == pytest.approx(2 * 1.96 * alike[0].std() / 20, rel=0.1)
    apart = alike + np.array([[-0.3], [0.0], [0.3]])
    wide = report.interval(apart)
    assert wide[2] - wide[1] > 3 * (high - low)

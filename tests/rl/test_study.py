"""The study in miniature: time cuts it short, it goes on, and its report reads what is stored."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes.rl import report, study

ROOT = Path(__file__).parents[2]


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


def tables(text: str) -> dict[str, dict[str, list[str]]]:
    """Return what a report prints: by title and first cell, the other cells without intervals."""
    found = {}
    for part in text.split("### ")[1:]:
        title, *lines = part.splitlines()
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
        found[title] = {row[0]: [cell.partition(" ")[0] for cell in row[1:]] for row in rows}
    return found


@pytest.fixture
def stored(tmp_path):
    """Two methods, two seeds and two measurements."""
    for method, last in (("plain", [4, 0, 0, 0]), ("odd", [1, 1, 1, 0])):
        for seed in (0, 1):
            lines = [{"method": method, "seed": seed}]
            for step, right, entropy in ((0, [1, 1, 0, 0], 0.5), (10, last, 0.25 - seed / 10)):
                plain = {"n": 4, "right": right, "entropy": entropy}
                held_out = {"plain": plain, "greedy": {"n": 1, "right": [1] * 4, "entropy": 0}}
                lines += [{"step": step, "held_out": held_out}]
                mixed = 1 - step / 20
                lines += [{"step": step, "reward": 0.5, "mixed": mixed, "surprise": 1, "weight": 1}]
            path = tmp_path / f"{method}-{seed}.jsonl"
            path.write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def test_the_report_compares_with_plain_rollouts(stored, capsys):
    report.main([str(stored), "--figure", str(stored / "study.png")])
    told = tables(capsys.readouterr().out)
    measured = told["Measured with plain sampling"]
    assert measured["ODD, alpha 8"] == ["18.8", "-6.3", "-6.3,", "-6.3", "75.0", "+50.0"]
    assert measured["before training"] == ["12.5", "-", "-", "-", "50.0", "-"]
    greedy = told["Measured with greedy sampling"]["ODD, alpha 8"]
    assert greedy == ["100.0", "+0.0", "+0.0,", "+0.0"]
    rollouts = told["Rollouts of the last 20 updates"]["ODD, alpha 8"]
    assert rollouts == ["50.0", "75.0", "75.0", "1.000", "1.000", "1.000"]
    assert (stored / "study.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_compares_with_other_rollouts(stored, capsys):
    report.main([str(stored), "--against", "odd"])
    measured = tables(capsys.readouterr().out)["Measured with plain sampling"]
    assert measured["plain sampling"] == ["25.0", "+6.3", "+6.3,", "+6.3", "25.0", "-50.0"]
    assert measured["ODD, alpha 8"] == ["18.8", "-", "-", "-", "75.0", "-"]


def test_differences_are_shown_by_seed_and_to_the_best_measurement(tmp_path):
    """Plain rollouts are best in between; the seeds of the others are sorted."""
    courses = {"plain": ([1, 5, 3], [1, 5, 3]), "odd": ([1, 1, 8], [1, 1, 4])}
    for method, seeds in courses.items():
        for seed, course in enumerate(seeds):
            lines = [{"method": method, "seed": seed}]
            for step, right in enumerate(course):
                plain = {"n": 10, "right": [right] * 2, "entropy": 0.5}
                lines += [{"step": step, "held_out": {"plain": plain}}]
            path = tmp_path / f"{method}-{seed}.jsonl"
            path.write_text("\n".join(map(json.dumps, lines)))
    table = report.table(report.Study(tmp_path), "plain", "plain")
    row = dict(zip(table.columns, table.rows[-1], strict=True))
    assert row["Pass@1 - plain"].startswith("+30.0 [")
    assert row["by seed"] == "+10.0, +50.0"
    assert row["- plain's best"] == "+10.0"


def test_the_summary_has_the_numbers_of_the_tables(stored):
    study_of = report.Study(stored)
    measured = {name: report.table(study_of, name, "plain") for name in ("greedy", "plain")}
    found = report.summary(measured)
    assert found.columns == ("rollouts", "Pass@1", "Pass@1 - plain", "Pass@4")
    greedy, plain = (row[2] for row in (measured["greedy"].rows[-1], measured["plain"].rows[-1]))
    assert found.rows == (
        ("measured with greedy sampling",),
        ("before training", "100.0", "-", "-"),
        ("plain sampling", "100.0", "-", "-"),
        ("ODD, alpha 8", "100.0", greedy, "-"),
        ("measured with plain sampling",),
        ("before training", "12.5", "-", "50.0"),
        ("plain sampling", "25.0", "-", "25.0"),
        ("ODD, alpha 8", "18.8", plain, "75.0"),
    )


def test_the_report_shows_the_course(stored):
    course = report.course_table(report.Study(stored), "plain")
    assert course.columns[1:-1] == ("0", "10")
    sections: dict[str, list[list[str]]] = {}
    for row in course.rows:
        if len(row) == 1:
            sections[row[0]] = []
        else:
            sections[list(sections)[-1]].append([cell.partition(" ")[0] for cell in row[1:]])
    assert sections == {
        "Pass@1": [["12.5", "25.0", "+12.5"], ["12.5", "18.8", "+6.3"]],
        "Pass@4": [["50.0", "25.0", "-25.0"], ["50.0", "75.0", "+25.0"]],
        "entropy": [["0.500", "0.200", "-0.300"]] * 2,
    }
    greedy = report.course_table(report.Study(stored), "greedy")
    assert [row for row in greedy.rows if len(row) == 1] == [("Pass@1",)]


def test_the_report_tells_the_first_updates_from_the_last(stored):
    study_of = report.Study(stored)
    assert study_of.rollouts("odd", "mixed", slice(1)) == 1
    assert study_of.rollouts("odd", "mixed", slice(-1, None)) == 0.5


def test_the_report_shows_what_was_tuned(tmp_path):
    assert report.tuning_table(tmp_path) is None
    for rate in (1e-4, 2e-5):
        lines = [{"learning_rate": rate, "negative_weight": 1.0}]
        for share in (0.9, 0.1, 0.2, 0.6):
            held_out = {"pass@1": share * rate * 1e4, "pass@8": share, "n": 8, "right": [0] * 5}
            lines += [{"held_out": {"plain": held_out}}]
        path = tmp_path / f"tune-{rate:g}-1.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "chosen.json").write_text('{"learning_rate": 1e-4, "negative_weight": 1.0}')
    table = report.tuning_table(tmp_path)
    assert table.rows == (
        ("2e-05", "1", "6.0", "30.0", "12.0", "60.0"),
        ("0.0001", "1", "30.0", "30.0", "60.0", "60.0"),
    )
    assert {row for row, _ in table.bold} == {1}


def test_the_stored_runs_are_those_of_the_recipe():
    options = study.parse(["main"])
    chosen = json.loads((report.RESULTS / study.CHOSEN).read_text())
    assert study.choose(report.RESULTS) == chosen
    jobs = [*study.tune_jobs(), *study.main_jobs(chosen)]
    assert {path.stem for path in report.RESULTS.glob("*.jsonl")} == {job.name for job in jobs}
    for job in jobs:
        about, lines = report.read(report.RESULTS / f"{job.name}.jsonl")
        config = study.config_of(job, options)
        assert about == {**job.about, "config": config.model_dump(mode="json")}
        assert [line["step"] for line in lines if "loss" in line] == list(
            range(1, config.steps + 1)
        )


def test_the_page_shows_the_stored_runs(capsys):
    report.main([])
    page = (ROOT / "docs" / "rl-study.md").read_text()
    for part in capsys.readouterr().out.split("### ")[1:]:
        title, *lines = part.splitlines()
        shown = "\n".join(line for line in lines if line.startswith("|"))
        assert shown in page, title


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

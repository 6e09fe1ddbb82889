"""The rule that chooses the default, and the tables of its study."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from oddlm import SampleParams, metrics

from .made_results import result, write

RECIPE = Path(__file__).parents[1] / "recipes" / "default"
TASKS = ("mini countdown default_3", "mini minicode default", "smol gsm8k equations")
PRESENT = {"objective": {"name": "odd", "enough": 0.5}, "alpha": 4.0, "fork": True}
ODD_8 = {"objective": "odd", "alpha": 8.0}
ODD_16 = {"objective": "odd", "alpha": 16.0, "alpha_end": 0.25}
EVEN = dict.fromkeys(TASKS, 0.5)


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPE))

    def find(name: str):
        for one in ("choose", "report"):
            monkeypatch.delitem(sys.modules, one, raising=False)
        return importlib.import_module(name)

    yield find
    for one in ("choose", "report"):
        sys.modules.pop(one, None)


def verdicts(many: float, single: float | None = None, problems: int = 200) -> np.ndarray:
    """Verdicts [problems, 16] with this Pass@16, and Pass@1 (default: half of it)."""
    solved = round(many * problems)
    right = np.zeros((problems, 16), dtype=bool)
    right[:solved, 0] = True
    more = round((many / 2 if single is None else single) * right.size) - solved
    assert 0 <= more <= 15 * solved
    right[:solved, 1:] = np.arange(15 * solved).reshape(solved, 15) < more
    return right


def drawn(settings, by_task):
    """Runs of a setting with a Pass@16, or with (Pass@16, Pass@1), on each task."""
    return [
        result(task, settings, verdicts(*(rate if isinstance(rate, tuple) else (rate,))))
        for task, rate in by_task.items()
    ]


def chosen(choose, *cells):
    plain = drawn({"temperature": 1.0}, EVEN)
    by_task = choose.rates([*plain, *(run for cell in cells for run in cell)])
    return choose.choose(choose.candidates(by_task))


def test_the_largest_gain_wins(recipe):
    choose = recipe("choose")
    winner, branches = chosen(
        choose,
        drawn(PRESENT, dict.fromkeys(TASKS, 0.55)),
        drawn(ODD_8, dict.fromkeys(TASKS, 0.6)),
        drawn(ODD_16, dict.fromkeys(TASKS, 0.58)),
    )
    assert choose.described(winner.setting) == "odd, alpha 8, temperature 0.5"
    assert winner.gain == pytest.approx(0.1)
    assert branches == {}


def test_models_count_alike_however_many_tasks_they_have(recipe):
    choose = recipe("choose")
    first, second, other = TASKS
    winner, _ = chosen(
        choose,
        drawn(PRESENT, EVEN),
        drawn(ODD_8, {first: 0.56, second: 0.56, other: 0.5}),
        drawn(ODD_16, {first: 0.5, second: 0.5, other: 0.57}),
    )
    assert choose.described(winner.setting) == "odd, alpha 16, alpha_end 0.25, temperature 0.5"
    assert winner.gains == pytest.approx({"mini": 0.0, "smol": 0.07})


@pytest.mark.parametrize(("lost", "eligible"), [(0.07, True), (0.1, False)])
def test_a_candidate_that_loses_too_much_pass_1_on_one_task_cannot_win(recipe, lost, eligible):
    choose = recipe("choose")
    rates = {**dict.fromkeys(TASKS, 0.7), TASKS[1]: (0.7, 0.25 - lost)}
    winner, _ = chosen(choose, drawn(PRESENT, dict.fromkeys(TASKS, 0.55)), drawn(ODD_8, rates))
    assert (winner.setting == choose.setting_of(drawn(ODD_8, EVEN)[0])) is eligible


@pytest.mark.parametrize(("gain", "kept"), [(0.004, True), (0.006, False)])
def test_a_gain_within_the_margin_keeps_the_present_default(recipe, gain, kept):
    choose = recipe("choose")
    runs = [*drawn({"temperature": 1.0}, EVEN), *drawn(PRESENT, dict.fromkeys(TASKS, 0.55))]
    runs += [result(task, ODD_8, verdicts(0.55 + gain, problems=1000)) for task in TASKS]
    winner, _ = choose.choose(choose.candidates(choose.rates(runs)))
    assert (winner.setting == choose.setting_of(drawn(PRESENT, EVEN)[0])) is kept


def test_a_model_with_a_much_better_candidate_gets_a_branch(recipe):
    choose = recipe("choose")
    first, second, other = TASKS
    winner, branches = chosen(
        choose,
        drawn(PRESENT, EVEN),
        drawn(ODD_8, {first: 0.8, second: 0.8, other: 0.5}),
        drawn(ODD_16, {first: 0.5, second: 0.5, other: 0.6}),
    )
    assert choose.described(winner.setting) == "odd, alpha 8, temperature 0.5"
    assert [*branches] == ["smol"]
    assert branches["smol"].gains["smol"] == pytest.approx(0.1)


def test_pass_1_breaks_ties_of_the_baseline(recipe):
    choose = recipe("choose")
    runs = [
        *drawn({"temperature": 0.5}, dict.fromkeys(TASKS, (0.6, 0.2))),
        *drawn({"temperature": 0.75}, dict.fromkeys(TASKS, (0.6, 0.3))),
        *drawn({"temperature": 1.5}, dict.fromkeys(TASKS, (0.5, 0.4))),
    ]
    base = choose.baselines(choose.rates(runs))
    assert {setting[-1] for setting, _ in base.values()} == {0.75}


def test_candidates_are_those_of_every_task(recipe):
    choose = recipe("choose")
    runs = [
        *drawn({"temperature": 1.0}, EVEN),
        *drawn(PRESENT, EVEN),
        *drawn(ODD_8, {TASKS[0]: 0.9, TASKS[1]: 0.9}),
    ]
    found = choose.candidates(choose.rates(runs))
    assert [one.setting for one in found] == [choose.setting_of(runs[3])]


GSM8K = TASKS[2]


def noisy(seed: int, chance: float, problems: int, n: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).random((problems, n)) < chance


def test_methods_are_paired_on_shared_problems_and_seeds(recipe):
    """A run on the first 12 problems meets one on all 30, though the order of ids differs."""
    report = recipe("report")
    own = [result(GSM8K, PRESENT, noisy(0, 0.1, 30))]
    own += [result(GSM8K, PRESENT, noisy(seed, 0.1, 12), seed=seed) for seed in (1, 2)]
    other = [result(GSM8K, {}, noisy(seed + 5, 0.05, 12), seed=seed) for seed in (0, 1)]
    found = report.paired(report.values(own, 16), report.values(other, 16))
    every, few = (sorted(f"gsm8k/{i}" for i in range(count)) for count in (30, 12))
    places = [every.index(problem) for problem in few]
    solved = [run.correct.any(axis=1).astype(float) for run in (*own[:2], *other)]
    wanted = ((solved[0][places] - solved[2]) + (solved[1] - solved[3])) / 2
    assert report.by_problem(found) == pytest.approx(wanted)
    assert report.sizes(found) == "12 x 2"
    assert report.sizes(report.values(own, 16)) == "30, 12 of them x 3"
    assert report.span(found) == metrics.mean_intervals(wanted[:, None])[0]


def test_the_longest_run_of_a_seed_counts(recipe):
    report = recipe("report")
    runs = [result(GSM8K, {}, np.ones((4, 16))), result(GSM8K, {}, np.zeros((2, 16)))]
    assert report.by_problem(report.values(runs, 1)).tolist() == [1.0] * 4


def test_different_problems_without_known_ids_are_refused(recipe):
    report = recipe("report")
    runs = [
        result(TASKS[0], {}, np.ones((2, 16)), ids=["countdown/1,2,3", "countdown/4,5,6"]),
        result(TASKS[0], {}, np.ones((1, 16)), ids=["countdown/1,2,3"]),
    ]
    with pytest.raises(ValueError, match=r"countdown default_3.* 2 sets of problems"):
        report.check_problems(runs)
    report.check_problems(runs[:1] * 2)


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.1, 0.2, "better"), (-0.2, -0.1, "worse"), (-0.1, 0.1, "no difference shown")],
)
def test_a_difference_counts_if_its_interval_excludes_zero(recipe, low, high, told):
    assert recipe("report").verdict(metrics.Interval((low + high) / 2, low, high)) == told


def test_settings_of_a_push_do_not_matter_without_one(recipe):
    report, choose = recipe("report"), importlib.import_module("choose")
    plain, gentle, hot, odd, ending = (
        choose.setting_of(result(GSM8K, settings, np.ones((1, 16))))
        for settings in (
            {},
            {"alpha_end": 0.25},
            {"temperature": 1.0},
            ODD_8,
            {**ODD_8, "alpha_end": 0.25},
        )
    )
    assert report.same(plain, gentle)
    assert not report.same(plain, hot)
    assert not report.same(odd, ending)
    assert not report.same(plain, odd)


def rows(text: str) -> list[list[str]]:
    lines = [line.replace("\\", "") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_page_reports_the_chosen_settings_on_the_test_side(
    recipe, tmp_path, capsys, monkeypatch
):
    report = recipe("report")
    tune = [
        *drawn({"temperature": 0.5}, EVEN),
        *drawn({"temperature": 1.25}, dict.fromkeys(TASKS, 0.6)),
        *drawn(PRESENT, dict.fromkeys(TASKS, 0.65)),
        *drawn(ODD_8, EVEN),
        *drawn(ODD_16, dict.fromkeys(TASKS, 0.7)),
    ]
    test = [
        *drawn({"temperature": 0.5}, dict.fromkeys(TASKS, 0.9)),
        *drawn({"temperature": 1.25}, EVEN),
        *drawn(PRESENT, EVEN),
        *drawn(ODD_8, dict.fromkeys(TASKS[:2], 0.4)),
        *drawn(ODD_16, {TASKS[0]: 0.6, TASKS[1]: 0.5, TASKS[2]: (0.4, 0.35)}),
    ]
    folders = {}
    for side, runs in (("tune", tune), ("test", test)):
        for model in ("mini", "smol"):
            own = [run for run in runs if run.model == model]
            folders[side, model] = str(write(tmp_path / f"{model}-{side}", own))
    sides = [[folders[side, model] for model in ("mini", "smol")] for side in ("test", "tune")]
    monkeypatch.setattr(sys, "argv", ["report.py", *sides[0], "--tune", *sides[1]])
    report.main()
    text = capsys.readouterr().out
    found = rows(text)
    assert "- default: odd, alpha 16, alpha_end 0.25, temperature 0.5" in text.splitlines()
    plain = [row for row in found if row[0].startswith("tuned plain")]
    assert {row[0] for row in plain} == {"tuned plain, temperature 1.25"}
    assert {row[2].split()[0] for row in plain} == {"50.0"}
    gains = {(row[0], row[1]): row[2:] for row in found if len(row) == 5 and row[0] in TASKS}
    default, base = verdicts(0.6).any(axis=1), verdicts(0.5).any(axis=1)
    span = [f"{100 * value:+.1f}" for value in metrics.paired_interval(default, base)]
    many, _, sizes = gains[TASKS[0], "tuned plain"]
    assert (many, sizes) == (f"{span[0]} [{span[1]}, {span[2]}]: better", "200")
    assert gains[TASKS[1], "former default"][0] == "+0.0 [+0.0, +0.0]: no difference shown"
    assert [cell.split(": ")[1] for cell in gains[GSM8K, "tuned plain"][:2]] == ["worse", "better"]
    assert text.strip().endswith(f"Not drawn (1 cell): {GSM8K}: ODD, alpha 8.")


def test_a_default_that_did_not_change_is_reported_once(recipe):
    report = recipe("report")
    runs = [*drawn({"temperature": 1.0}, EVEN), *drawn(PRESENT, dict.fromkeys(TASKS, 0.6))]
    named = report.methods(runs)
    assert {tuple(some) for some in named.values()} == {("tuned plain", "ODD, alpha 8", "default")}


def test_the_package_has_taken_what_the_rule_chose(recipe):
    choose = recipe("choose")
    stored = RECIPE.parents[1] / "results" / "default"
    results = [
        run for model in ("mini", "smol") for run in choose.read_folder(stored / f"{model}-tune")
    ]
    winner, branches = choose.choose(choose.candidates(choose.rates(results)))
    default = SampleParams().canonical()
    chosen_settings = dict(zip(choose.SETTINGS, winner.setting, strict=True))
    assert dict(chosen_settings.pop("objective")) == default.objective
    assert chosen_settings == {name: getattr(default, name) for name in chosen_settings}
    assert branches == {}

"""Settings beside their baseline, on rows whose numbers are known."""

import json

import pytest

from oddlm.config import checked
from oddlm.params import SampleParams
from oddlm.report.compare import as_data, baseline, compare, covered, grid
from oddlm.spec import RunSpec

from ..store.test_store import record


def params(**changes):
    return checked(SampleParams, changes)


def run(solved: list[list[bool]], seed: int = 0, **changes):
    """A run of problems whose samples are right or not."""
    spec = checked(
        RunSpec, {"model": "toy", "task": "own", "n": 2, "seed": seed, "params": changes}
    )
    rows = []
    for i, verdicts in enumerate(solved):
        plain = record(
            str(i), diversity={"distinct": 0.5 if changes.get("alpha") == 0 else 1.0, "none": None}
        )
        samples = tuple(
            s.model_copy(update={"correct": c})
            for s, c in zip(plain.samples, verdicts, strict=True)
        )
        rows.append(plain.model_copy(update={"samples": samples}))
    return spec, rows


def told(texts: list[str], seed: int, **changes):
    """A run of one problem with these texts."""
    spec, (only,) = run([[True, False]], seed, **changes)
    samples = tuple(
        s.model_copy(update={"text": text}) for s, text in zip(only.samples, texts, strict=True)
    )
    return spec, [only.model_copy(update={"samples": samples})]


def test_a_grid_has_every_setting_once_and_its_baseline_before_it():
    found = grid(
        {"length": 8}, {"temperature": [0, 1], "objective": ["odd", "dpp"], "alpha": [0, 8, 8.0]}
    )
    told = [(p.temperature, p.objective, p.alpha) for p in found]
    assert told == [
        (0, "none", 0),
        (0, "odd", 8),
        (0, "dpp", 8),
        (1, "none", 0),
        (1, "odd", 8),
        (1, "dpp", 8),
    ]
    assert {p.length for p in found} == {8}


def test_a_baseline_differs_in_nothing_but_the_push():
    chosen = params(alpha=8, temperature=1, top_k=5, policy="margin", feature="mean_pool")
    plain = baseline(chosen)
    assert plain.plain
    assert (plain.temperature, plain.top_k, plain.policy) == (1, 5, "margin")


def test_numbers_by_hand():
    done = [
        run([[True, False], [False, False], [True, True], [False, False]], alpha=0),
        run([[True, True], [False, True], [True, False], [False, False]], alpha=8),
    ]
    plain, pushed = compare(done)
    assert plain.pass_1[0] == pytest.approx(3 / 8)
    assert plain.pass_n[0] == pytest.approx(2 / 4)
    assert plain.difference is None
    assert pushed.pass_1[0] == pytest.approx(4 / 8)
    assert pushed.pass_n[0] == pytest.approx(3 / 4)
    assert pushed.difference.difference == pytest.approx(1 / 4)
    assert pushed.difference.low <= 1 / 4 <= pushed.difference.high
    assert (plain.diversity, pushed.diversity) == (
        {"distinct": 0.5, "none": None},
        {"distinct": 1.0, "none": None},
    )


def test_seeds_are_averaged_and_their_spread_is_told():
    done = [
        run([[True, False], [False, False]], seed=0, alpha=0),
        run([[False, False], [False, False]], seed=1, alpha=0),
        run([[True, False], [True, False]], seed=0, alpha=8),
        run([[True, False], [False, False]], seed=1, alpha=8),
    ]
    plain, pushed = compare(done)
    assert plain.pass_n == pytest.approx(
        (0.25, 0.25)
    )  # seeds 0.5 and 0.0: their sd is 0.354, over sqrt 2
    assert pushed.pass_n == pytest.approx((0.75, 0.25))
    assert pushed.difference.difference == pytest.approx(0.5)
    assert len(pushed.runs) == 2


def test_each_temperature_has_its_own_baseline():
    done = [
        run([[False, False]] * 3, alpha=0, temperature=0),
        run([[True, False]] * 3, alpha=8, temperature=0),
        run([[True, False]] * 3, alpha=0, temperature=1),
        run([[True, False]] * 3, alpha=8, temperature=1),
    ]
    assert [line.difference and line.difference.difference for line in compare(done)] == [
        None,
        1.0,
        None,
        0.0,
    ]


def test_results_are_json():
    lines = compare([run([[True, False]], alpha=0), run([[True, False]], alpha=8)])
    data = json.loads(json.dumps([as_data(line) for line in lines], allow_nan=False))
    assert data[0]["difference"] is None
    assert data[1]["difference"]["difference"] == 0.0
    assert data[0]["pass@1"] == {"mean": 0.5, "se": None}


def test_what_is_new_beside_the_baseline_under_the_same_seed():
    done = [
        told(["a b", "c d"], seed=0, alpha=0),
        told(["e f", "g h"], seed=1, alpha=0),
        told(["a b", "e f"], seed=0, alpha=8),
        told(["a b", "e f"], seed=1, alpha=8),
    ]
    plain, pushed = compare(done, beside=True)
    assert pushed.diversity["new_texts"] == 1.0
    assert pushed.diversity["novelty"] == 0.5
    assert not {"new_texts", "novelty"} & plain.diversity.keys()
    assert not {"new_texts", "novelty"} & compare(done)[1].diversity.keys()
    (alone,) = compare(done[2:], beside=True)
    assert "novelty" not in alone.diversity, "there is nothing to compare it with"


def test_coverage_is_the_union_over_settings_and_seeds():
    done = [
        run([[True, False], [False, False], [False, False]], alpha=0),
        run([[False, False], [False, True], [False, False]]),
    ]
    assert covered(done) == 2

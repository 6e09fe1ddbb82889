"""Standard errors and the paired bootstrap."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.metrics import Interval, intervals, mean_se, paired_interval

from ..tolerances import EXACT

VALUES = st.lists(st.floats(-1, 1), min_size=2, max_size=30)


def test_mean_se_by_hand():
    assert mean_se([1, 2, 3, 6]) == pytest.approx((3, np.sqrt(14 / 3 / 4)), abs=EXACT)
    assert mean_se([0.5, 0.5]) == (0.5, 0)
    mean, error = mean_se([0.25])
    assert mean == 0.25
    assert np.isnan(error)


def test_interval_by_brute_force():
    a, b = np.array([0.9, 0.1, 0.5, 0.7]), np.array([0.2, 0.3, 0.4, 0.1])
    every = np.array(
        [np.mean(draw) for draw in product(a - b, repeat=4)]
    )  # all 256 resamples, equally likely
    low, high = np.quantile(every, [0.1, 0.9])
    found = paired_interval(a, b, resamples=200_000, level=0.8)
    assert found.difference == pytest.approx(0.3, abs=EXACT)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.01)


@given(VALUES, st.integers(0, 2**32))
def test_properties(values, seed):
    a, b = np.array(values), np.array(values[::-1])
    found = paired_interval(a, b, seed=seed, resamples=200)
    differences = a - b
    assert differences.min() - EXACT <= found.low <= found.high <= differences.max() + EXACT
    assert found == paired_interval(a, b, seed=seed, resamples=200)
    back = paired_interval(b, a, seed=seed, resamples=200)
    assert back == pytest.approx((-found.difference, -found.high, -found.low), abs=EXACT)
    wider = paired_interval(a, b, seed=seed, resamples=200, level=0.99)
    assert wider.low <= found.low
    assert found.high <= wider.high
    assert paired_interval(a, a, seed=seed, resamples=200) == Interval(0, 0, 0)


def test_the_seed_decides():
    a, b = np.random.default_rng(1).random((2, 40))
    assert (
        paired_interval(a, b, seed=1)
        == paired_interval(a, b, seed=1)
        != paired_interval(a, b, seed=2)
    )


def test_blocks_change_nothing(monkeypatch):
    a, b = np.random.default_rng(1).random((2, 40))
    whole = paired_interval(a, b, resamples=1000)
    monkeypatch.setattr(intervals, "BLOCK", 40 * 7)
    assert paired_interval(a, b, resamples=1000) == whole


def test_pairing_removes_the_difficulty_of_problems():
    rng = np.random.default_rng(0)
    difficulty = rng.random(100)
    found = paired_interval(difficulty + 0.05 + 0.01 * rng.standard_normal(100), difficulty)
    assert 0.045 < found.low < found.high < 0.055


def covered(trials, problems, truth, draw):
    rng = np.random.default_rng(20)
    found = [paired_interval(*draw(rng, problems), seed=i, resamples=1000) for i in range(trials)]
    return np.mean([interval.low <= truth <= interval.high for interval in found])


def binary(rng, problems):
    """Solved or not, by settings that share the difficulty of a problem: 0.1 apart."""
    difficulty = rng.uniform(0.1, 0.9, problems)
    return [(rng.random(problems) < difficulty + shift).astype(float) for shift in (0.1, 0.0)]


def seeds(rng, problems):
    """[setting, seed, problem]: shares c/16 over 3 seeds, where problems answer differently to the
    setting; 0.1 apart.
    """
    base = rng.uniform(0.2, 0.6, problems)
    effect = 0.1 + rng.uniform(-0.2, 0.2, problems)
    return np.stack([rng.binomial(16, p, (3, problems)) / 16 for p in (base + effect, base)])


@pytest.mark.parametrize(
    "draw",
    [binary, lambda rng, problems: seeds(rng, problems).mean(axis=1)],
    ids=["one seed", "mean over seeds"],
)
def test_covers_the_truth_95_times_in_100(draw):
    """600 trials: the standard error of the count is 0.9 %."""
    assert 0.925 <= covered(600, 80, 0.1, draw) <= 0.975


def test_problems_not_seeds_are_the_unit():
    """Problem and seed resampled as if independent: too sure of itself."""
    assert covered(600, 80, 0.1, lambda rng, problems: seeds(rng, problems).reshape(2, -1)) < 0.9


def test_one_problem_has_no_interval():
    found = paired_interval([0.5], [0.25])
    assert found.difference == 0.25
    assert np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize(
    "bad",
    [[], [[1.0, 2.0]], 3.0, [1.0, float("nan")], [1.0, float("inf")], [[1.0], [1.0, 2.0]], ["x"]],
)
def test_bad_values(bad):
    with pytest.raises(ValueError, match=r"values must be a list of|values holds nan or infinity"):
        mean_se(bad)
    with pytest.raises(ValueError, match=r"a must be a list of|a holds nan or infinity"):
        paired_interval(bad, [1.0, 2.0])
    with pytest.raises(ValueError, match=r"b must be a list of|b holds nan or infinity"):
        paired_interval([1.0, 2.0], bad)


def test_bad_settings():
    with pytest.raises(ValueError, match="same problems, but have 2 and 3 values"):
        paired_interval([1, 2], [1, 2, 3])
    for level in (0, 1, 95, float("nan")):
        with pytest.raises(ValueError, match="level must lie between 0 and 1"):
            paired_interval([1, 2], [1, 2], level=level)
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        paired_interval([1, 2], [1, 2], resamples=0)

"""Pass@1, Pass@k, the unbiased estimator, coverage: by hand, by brute force, by property."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from oddlm.metrics import (
    coverage,
    pass_at_1,
    pass_at_k,
    pass_at_k_unbiased,
    solutions_at_k,
    summarise,
)

from ..tolerances import EXACT

HAND = [[False, True, True, False], [False, False, False, True], [False] * 4]
CLASSES = [[None, 0, 0, 1], [None, None, None, 0], [None] * 4, [0, 1, 2, 1]]
TABLES = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=7))


def test_by_hand():
    assert pass_at_1(HAND).tolist() == [0.5, 0.25, 0.0]
    assert pass_at_k(HAND, 1).tolist() == [0.5, 0.25, 0.0]  # c/n, not the first sample
    assert pass_at_k(HAND, 2).tolist() == [1, 0, 0]
    assert pass_at_k(HAND, 4).tolist() == [1, 1, 0]
    assert pass_at_k_unbiased(HAND, 2, coupled=False) == pytest.approx([5 / 6, 3 / 6, 0], abs=EXACT)
    assert summarise(HAND, [1, 2, 4]) == {"pass@1": 0.25, "pass@2": 1 / 3, "pass@4": 2 / 3}
    assert coverage([HAND, [[0, 0], [0, 0], [0, 1]]]).tolist() == [1, 1, 1]
    assert coverage([HAND]).tolist() == [1, 1, 0]


@given(TABLES)
def test_unbiased_is_the_mean_over_all_choices(correct):
    for k in range(1, correct.shape[1] + 1):
        brute = [
            np.mean([any(choice) for choice in combinations(row, k)]) for row in correct.tolist()
        ]
        assert pass_at_k_unbiased(correct, k, coupled=False) == pytest.approx(brute, abs=EXACT)


@given(TABLES, st.randoms(use_true_random=False))
def test_properties(correct, random):
    n = correct.shape[1]
    first = [pass_at_k(correct, k) for k in range(1, n + 1)]
    unbiased = [pass_at_k_unbiased(correct, k, coupled=False) for k in range(1, n + 1)]
    assert all((a <= b).all() for a, b in pairwise(first[1:]))
    assert all((a <= b + EXACT).all() for a, b in pairwise(unbiased))
    assert all((values >= 0).all() and (values <= 1).all() for values in [*first, *unbiased])
    solved = correct.any(axis=1).astype(float)
    assert first[-1].tolist() == solved.tolist()
    assert unbiased[0] == pytest.approx(first[0], abs=EXACT)
    assert unbiased[-1] == pytest.approx(solved, abs=EXACT)
    order = random.sample(range(n), n)
    assert pass_at_1(correct[:, order]).tolist() == first[0].tolist()
    assert pass_at_k_unbiased(correct[:, order], n, coupled=False).tolist() == unbiased[-1].tolist()


@given(TABLES)
def test_coverage_is_a_union(correct):
    halves = [correct[:, :1], correct]
    assert (coverage(halves) == correct.any(axis=1)).all()
    assert (coverage(halves) >= coverage(halves[:1])).all()


def test_large_n_stays_finite():
    correct = np.zeros((2, 4096), dtype=bool)
    correct[1, 7] = True
    assert pass_at_k_unbiased(correct, 1024, coupled=False) == pytest.approx([0, 0.25], abs=EXACT)


def test_solutions_by_hand():
    by_k = {1: [0, 0, 0, 1], 2: [1, 0, 0, 2], 3: [1, 0, 0, 3], 4: [2, 1, 0, 3]}
    assert {k: solutions_at_k(CLASSES, k).tolist() for k in by_k} == by_k
    assert solutions_at_k(np.array(CLASSES, dtype=object), 4).tolist() == by_k[4]
    assert solutions_at_k(np.array([[3, 1, 3]]), 3).tolist() == [2]
    assert solutions_at_k([[np.int64(0), 0]], 2).dtype == np.float64


ROWS = st.integers(2, 6).flatmap(
    lambda n: st.lists(
        st.lists(st.none() | st.integers(0, 3), min_size=n, max_size=n), min_size=1, max_size=5
    )
)


@given(ROWS)
def test_solutions_against_pass_at_k(classes):
    n = len(classes[0])
    correct = [[number is not None for number in row] for row in classes]
    counts = [solutions_at_k(classes, k) for k in range(1, n + 1)]
    assert all(
        (np.diff(pair, axis=0) >= 0).all() and (np.diff(pair, axis=0) <= 1).all()
        for pair in pairwise(counts)
    )
    for k in range(2, n + 1):
        assert (np.minimum(counts[k - 1], 1) == pass_at_k(correct, k)).all()
        assert (counts[k - 1] <= np.sum(np.array(correct)[:, :k], axis=1)).all()


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ([], r"\[problems, n\] with at least one of each, not of shape \[0\]"),
        ([[], []], r"not of shape \[2, 0\]"),
        ([0, None], r"not of shape \[2\]"),
        ([[0], [0, None]], r"same number of samples, but they have \[1, 2\]"),
        ([[0, 1.0]], "not 1.0"),
        ([[True, None]], "not True"),
        ([[0, -1]], "not -1"),
        ([["0", None]], "not '0'"),
        ([[float("nan"), 0]], "not nan"),
        (np.array([[True, False]]), "not True"),
    ],
)
def test_bad_classes(classes, says):
    with pytest.raises(ValueError, match=says):
        solutions_at_k(classes, 1)


def test_coupled_samples_warn():
    with pytest.warns(
        UserWarning, match="independent samples; of coupled ones .* use Pass@k of the first k"
    ):
        pass_at_k_unbiased(HAND, 2, coupled=True)
    with pytest.raises(TypeError, match="coupled"):
        pass_at_k_unbiased(HAND, 2)


def test_input_is_left_alone():
    correct = np.array(HAND)
    before = correct.copy()
    summarise(correct, [1, 2])
    pass_at_k_unbiased(correct, 3, coupled=False)
    assert (correct == before).all()


@pytest.mark.parametrize(
    ("correct", "says"),
    [
        ([], r"\[problems, n\] with at least one of each, not of shape \[0\]"),
        ([[], []], r"not of shape \[2, 0\]"),
        (np.zeros((0, 4), dtype=bool), r"not of shape \[0, 4\]"),
        ([True, False], r"not of shape \[2\]"),
        ([[True], [True, False]], r"same number of samples, but they have \[1, 2\]"),
        ([[True], True], "same number of samples"),
        ([[float("nan"), 1.0]], "nothing but True and False"),
        ([[0, 2]], "nothing but True and False"),
        ([["yes", "no"]], "nothing but True and False"),
        ([[None, True]], "nothing but True and False"),
    ],
)
def test_bad_verdicts(correct, says):
    for call in (pass_at_1, lambda c: summarise(c, [1]), lambda c: coverage([c])):
        with pytest.raises(ValueError, match=says):
            call(correct)


@pytest.mark.parametrize("k", [0, -1, 5, 1.0, True, "2", None])
def test_bad_k(k):
    for call in (
        lambda: pass_at_k(HAND, k),
        lambda: pass_at_k_unbiased(HAND, k, coupled=False),
        lambda: solutions_at_k(CLASSES, k),
        lambda: summarise(HAND, [k]),
    ):
        with pytest.raises(
            ValueError, match="k must be an integer from 1 to the 4 samples of a problem"
        ):
            call()


def test_bad_settings():
    with pytest.raises(ValueError, match="ks is empty"):
        summarise(HAND, [])
    with pytest.raises(ValueError, match="at least one setting"):
        coverage([])
    with pytest.raises(ValueError, match=r"same problems, but have \[3, 2\]"):
        coverage([HAND, HAND[:2]])

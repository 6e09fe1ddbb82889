"""Majority votes: by hand, and against counting."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.metrics import (
    Lengths,
    answer_classes,
    batch_diversity,
    describe_metric,
    majority_at_k,
    most_voted,
)


def test_by_hand():
    classes = answer_classes(["a", "b", "c", "d", "e"], ["7", None, "8", "8", "7"])
    assert classes == [0, None, 1, 1, 0]
    assert most_voted(classes) == 0, "of two equally common answers the first wins"
    assert most_voted(classes[:4]) == 2
    correct = [False, False, True, True, False]
    assert majority_at_k(classes, correct, [1, 2, 4, 5]) == {
        "maj@1": 0,
        "maj@2": 0,
        "maj@4": 1,
        "maj@5": 0,
    }


def test_without_any_reading_similar_texts_are_one_answer():
    texts = ["the cat sat on the mat", "no", "the cat sat on the rug"]
    assert answer_classes(texts, [None] * 3) == [0, 1, 0]


def test_nobody_votes():
    assert most_voted([None, None]) is None
    assert majority_at_k([None, 0], [True, True], [1, 2]) == {"maj@1": 0, "maj@2": 1}


@given(st.lists(st.one_of(st.none(), st.sampled_from("abc")), min_size=1, max_size=9))
def test_the_winner_is_a_most_common_answer(readings):
    counts = Counter(one for one in readings if one is not None)
    winner = most_voted(answer_classes([""] * len(readings), readings))
    if counts:
        assert counts[readings[winner]] == max(counts.values())
        assert readings.index(readings[winner]) == winner


def test_a_problem_has_maj_at_powers_of_two_and_n():
    texts, n = ["1", "2", "2", "3", "3", "3"], 6
    lengths = [Lengths(1, 2, 1)] * n
    found = batch_diversity(texts, lengths, [text == "3" for text in texts], readings=texts)
    votes = {name: value for name, value in found.items() if name.startswith("maj@")}
    assert votes == {"maj@2": 0, "maj@4": 0, "maj@6": 1}
    assert "maj@2" not in batch_diversity(texts, lengths, [True] * n)
    assert describe_metric("maj@8") == describe_metric("maj@k")


def test_bad_input():
    with pytest.raises(ValueError, match=r"1 texts.*2 readings"):
        answer_classes(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="n = 1, not 2"):
        majority_at_k([0], [True], [2])

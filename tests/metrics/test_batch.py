"""Everything about one problem's batch, in one dict."""

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.metrics import (
    BATCH_METRICS,
    METRICS,
    Lengths,
    batch_diversity,
    describe_metric,
    right_classes,
)

TEXTS = ["a b c", "a b c", "x y z", "a b d e"]
LENGTHS = [Lengths(2, 4, 2), Lengths(4, 4, 0), Lengths(0, 4, 4), Lengths(1, 4, 2)]
CORRECT = [True, True, False, True]
ANSWERS = ["1 2", "1 3", None, "1 2"]
EMPTY, WHOLE = Lengths(0, 0, 0), Lengths(3, 3, 0)
VECTORS = {"a b c": [1.0, 0.0], "x y z": [0.0, 2.0], "a b d e": [1.0, 1.0], "new": [-1.0, 0.0]}


def embed(texts):
    return np.array([VECTORS[text] for text in texts])


def test_by_hand():
    found = batch_diversity(
        TEXTS, LENGTHS, CORRECT, answers=ANSWERS, embed=embed, plain=["a b c", "new"]
    )
    assert set(found) == set(BATCH_METRICS)
    assert all(type(value) is float for value in found.values())
    root = np.sqrt(0.5)
    by_hand = {
        "samples": 4,
        "correct": 3,
        "correct_different": 2,
        "distinct_texts": 3,
        "distinct_answers": 2,
        "answer_distance": (1 / 2 + 1 + 0 + 1 + 1 / 2 + 1) / 6,
        "distinct_2": 6 / 9,  # ab bc | ab bc | xy yz | ab bd de
        "embedding_diversity": 1 - (1 + 0 + root + 0 + root + root) / 6,
        "novelty": (0 + 0 + 1 + 0.5) / 4,
        "new_texts": 2,
        "novelty_embedding": (0 + 0 + 1 + (1 - root)) / 4,
        "length_mean": (2 + 4 + 0 + 1) / 4,
        "length_std": np.std([2, 4, 0, 1]),
        "length_min": 0,
        "length_median": 1.5,
        "length_max": 4,
        "ended": 3 / 4,
        "end_share": 8 / 16,
    }
    assert {key: found[key] for key in by_hand} == pytest.approx(by_hand)
    assert 0 < found["self_bleu"] < 1
    assert 1 < found["vendi_ngram"] < 3
    # K/4 over [1,0], [1,0], [0,1], [r,r] has the eigenvalues of the 2 x 2 matrix of second moments
    eigenvalues = np.linalg.eigvalsh(np.array([[2.5, 0.5], [0.5, 1.5]]) / 4)
    assert found["vendi_embedding"] == pytest.approx(
        np.exp(-(eigenvalues * np.log(eigenvalues)).sum())
    )


def test_what_cannot_be_said_is_left_out():
    one = batch_diversity(["word"], [EMPTY], [False])
    assert set(BATCH_METRICS) - set(one) == {
        "distinct_2", "self_bleu", "vendi_embedding", "embedding_diversity", "novelty", "new_texts", "novelty_embedding",
        "distinct_answers", "answer_distance", "end_share",
    }  # fmt: skip
    more = batch_diversity(["a b"], [WHOLE], [True], answers=["b"], embed=lambda t: np.ones((1, 2)))
    assert set(BATCH_METRICS) - set(more) == {
        "self_bleu", "embedding_diversity", "novelty", "new_texts", "novelty_embedding", "answer_distance",
    }  # fmt: skip
    assert np.isfinite(list(one.values())).all()


@pytest.mark.parametrize(
    ("answers", "distinct", "distance"),
    [
        (["7", "7"], 1, 0),
        (["7", "8"], 2, 1),
        (["7", None], 1, 1),
        ([None, None], 0, 0),
        (["", None], 1, 1),  # nothing was read, or nothing stood there
        (["", ""], 1, 0),
        (["a b c d", "a b c"], 2, 1 / 4),
        (["7", "7", "8", None], 2, 5 / 6),
    ],
)
def test_answers_differ_apart_from_their_texts(answers, distinct, distance):
    n = len(answers)
    for texts in (["same"] * n, [f"text {i}" for i in range(n)]):
        found = batch_diversity(texts, [WHOLE] * n, [False] * n, answers=answers)
        assert (found["distinct_answers"], found["answer_distance"]) == (
            distinct,
            pytest.approx(distance),
        )


PROGRAMS = ["def f(x): return x\n", "def g(y):\n    return y\n"]
FENCED = [
    "First thoughts.\n```python\ndef f(x): return x\n```",
    "Quite other words:\n```\ndef g(y):\n    return y\n```",
]
CLOSE = ["1 2 3", "1 2 4"]


@pytest.mark.parametrize(
    ("texts", "correct", "options", "classes"),
    [
        (FENCED, [True, True], {"code": True}, [0, 1]),
        (FENCED, [True, True], {"code": True, "answers": PROGRAMS}, [0, 0]),
        (FENCED, [True, True], {"code": False, "answers": PROGRAMS}, [0, 1]),
        (FENCED, [True, True], {"code": True, "answers": [None, None]}, [0, 1]),
        (FENCED, [False, True], {"code": True, "answers": [None, PROGRAMS[1]]}, [None, 0]),
        (FENCED, [False, False], {}, [None, None]),
        (CLOSE, [True, True], {}, [0, 1]),
        (CLOSE, [True, True], {"threshold": 0.5}, [0, 0]),
        (["1", "x", "2", "1"], [True, False, True, True], {}, [0, None, 1, 0]),
    ],
)
def test_solutions_told_apart(texts, correct, options, classes):
    assert right_classes(texts, correct, **options) == classes
    found = batch_diversity(texts, [WHOLE] * len(texts), correct, **options)
    assert found["correct_different"] == len(set(classes) - {None})


SAMPLES = st.lists(
    st.tuples(
        st.text("ab c\n", max_size=12),
        st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 2)),
        st.booleans(),
        st.none() | st.text("ab ", max_size=5),
    ),
    min_size=1,
    max_size=6,
)


def lengths_of(text: int, ends: int, more: int) -> Lengths:
    return Lengths(text, text + ends + (more if ends else 0), ends)


@given(SAMPLES, st.booleans(), st.randoms(use_true_random=False))
def test_properties(samples, code, order):
    def measure(some):
        texts, sizes, correct, answers = (list(column) for column in zip(*some, strict=True))
        lengths = [lengths_of(*size) for size in sizes]
        return batch_diversity(
            texts, lengths, correct, code=code, answers=answers, plain=["a", "b c"]
        )

    found, n = measure(samples), len(samples)
    assert found["correct_different"] <= found["correct"] <= found["samples"] == n
    assert (found["correct_different"] > 0) == (found["correct"] > 0)
    assert found["new_texts"] <= found["distinct_texts"] <= n
    assert found["distinct_answers"] <= n
    assert 1 - 1e-9 <= found["vendi_ngram"] <= found["distinct_texts"] + 1e-6
    assert found["length_min"] <= found["length_median"] <= found["length_max"]
    shares = ("distinct_2", "self_bleu", "novelty", "ended", "end_share", "answer_distance")
    assert all(0 <= found.get(key, 0) <= 1 + 1e-9 for key in shares)
    shuffled = measure(order.sample(samples, n))
    assert {**shuffled, "correct_different": 0} == pytest.approx(
        {**found, "correct_different": 0}, abs=1e-6
    )
    assert set(found) <= set(METRICS)


def test_inputs_are_left_alone():
    texts, lengths, correct, answers = list(TEXTS), list(LENGTHS), list(CORRECT), list(ANSWERS)
    batch_diversity(texts, lengths, correct, answers=answers, plain=TEXTS)
    assert (texts, lengths, correct, answers) == (TEXTS, LENGTHS, CORRECT, ANSWERS)
    assert batch_diversity(TEXTS, LENGTHS, np.array(CORRECT)) == batch_diversity(
        TEXTS, LENGTHS, CORRECT
    )


def measure_large(plain=True):
    """16 samples of 256 words, all right and all different."""
    draw = random.Random(0)
    texts = [" ".join(f"w{draw.randrange(400)}" for _ in range(256)) for _ in range(32)]
    start = time.process_time()
    batch_diversity(
        texts[:16], [Lengths(256, 256, 0)] * 16, [True] * 16, plain=texts[16:] if plain else None
    )
    return time.process_time() - start


def count_words() -> float:
    """Seconds to count 100 000 words, the least that statistics of texts can do: about 25 ms where
    a batch takes 35.
    """
    start = time.process_time()
    found: dict[str, int] = {}
    for i in range(100_000):
        found[f"w{i % 400}"] = found.get(f"w{i % 400}", 0) + 1
    return time.process_time() - start


def test_fast_enough():
    """Meant to take 50 ms at most, on a machine that counts 100 000 words in half of that."""
    assert min(measure_large() for _ in range(5)) < 4 * min(count_words() for _ in range(5))


def test_hostile_texts():
    texts = [
        "\0" * 1_000_000,
        "\ud800" * 100_000,
        "a " * 1_000_000,
        "",
        "(" * 1_000_000,
        "\n" * 1_000_000,
        "é\u0301" * 100_000,
    ]
    for code in (False, True):
        found = batch_diversity(
            texts, [EMPTY] * 7, [True] * 7, code=code, answers=texts, plain=texts[::-1]
        )
        assert found["distinct_texts"] == found["distinct_answers"] == 7
        assert found["novelty"] == 0
        assert np.isfinite(list(found.values())).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"texts": [], "lengths": [], "correct": []}, "the batch is empty"),
        ({"lengths": [WHOLE]}, "there are 4 texts, but 1 lengths"),
        ({"lengths": [[1, 2, 3]] * 4}, r"Lengths of whole numbers, not \[1, 2, 3\]"),
        ({"lengths": [Lengths(1.5, 2, 0)] * 4}, "Lengths of whole numbers"),
        ({"lengths": [Lengths(-1, 2, 1)] * 4}, "cannot be"),
        ({"lengths": [Lengths(3, 2, 0)] * 4}, "cannot be"),
        ({"lengths": [Lengths(2, 4, 3)] * 4}, "cannot be"),
        ({"lengths": [Lengths(2, 4, 0)] * 4}, "cannot be"),
        ({"lengths": [Lengths(2, 2, 1)] * 4}, "cannot be"),
        ({"lengths": [Lengths(-1, -1, 0)] * 4}, "cannot be"),
        ({"correct": [True]}, "there are 4 texts, but 1 correct"),
        ({"answers": ["x"]}, "there are 4 texts, but 1 answers"),
        ({"plain": []}, "the plain batch is empty"),
        ({"texts": "abcd"}, "texts must be a list of strings"),
        ({"texts": ["a", None, "b", "c"]}, "texts must be a list of strings"),
        ({"plain": [3]}, "plain must be a list of strings"),
        ({"plain": "abc"}, "plain must be a list of strings"),
        ({"answers": ["a", 3, None, "b"]}, "answers must be a list of strings"),
        ({"correct": [1, 0, 2, 0]}, "nothing but True and False"),
        ({"correct": [float("nan")] * 4}, "nothing but True and False"),
        ({"correct": ["yes"] * 4}, "nothing but True and False"),
        ({"correct": [None] * 4}, "nothing but True and False"),
        ({"embed": lambda texts: np.ones(4)}, r"embed gave \[4\] for 4 texts, not \[4, d\]"),
        ({"embed": lambda texts: np.ones((3, 2))}, r"embed gave \[3, 2\] for 4 texts"),
        ({"embed": lambda texts: np.full((4, 2), np.nan)}, "finite"),
        ({"embed": lambda texts: np.zeros((4, 2))}, "a vector of zeros"),
        ({"threshold": 2}, "threshold must be"),
    ],
)
def test_bad_input(change, says):
    given = {"texts": TEXTS, "lengths": LENGTHS, "correct": CORRECT, **change}
    with pytest.raises(ValueError, match=says):
        batch_diversity(given.pop("texts"), given.pop("lengths"), given.pop("correct"), **given)


def test_names():
    assert all(meaning and "\n" not in meaning for meaning in METRICS.values())
    assert describe_metric("self_bleu") == METRICS["self_bleu"]
    assert describe_metric("pass@1") == METRICS["pass@1"]
    assert describe_metric("pass@16") == METRICS["pass@k"]
    assert describe_metric("pass@16_unbiased") == METRICS["pass@k_unbiased"]
    assert describe_metric("solutions@4") == METRICS["solutions@k"]
    for name in (
        "solutions@0",
        "solutions@4_unbiased",
        "pas@16",
        "pass@",
        "pass@0",
        "pass@x",
        "pass@²",
        "pass@k2",
        f"pass@{'9' * 5000}x",
        "self_bleu@3",
        "",
    ):
        with pytest.raises(
            ValueError, match=r"unknown metric .*; known: pass@1, pass@k, .*self_bleu"
        ):
            describe_metric(name)

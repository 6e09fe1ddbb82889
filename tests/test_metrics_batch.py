"""Everything about one problem's batch, in one dict."""

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.metrics import BATCH_METRICS, METRICS, batch_diversity, describe_metric

TEXTS = ["a b c", "a b c", "x y z", "a b d e"]
TOKENS = [[5, 6, 1, 1], [5, 6, 7, 8], [1, 1, 1, 1], [5, 1, 6, 1]]
CORRECT = [True, True, False, True]
VECTORS = {"a b c": [1.0, 0.0], "x y z": [0.0, 2.0], "a b d e": [1.0, 1.0], "new": [-1.0, 0.0]}


def embed(texts):
    return np.array([VECTORS[text] for text in texts])


def test_by_hand():
    found = batch_diversity(TEXTS, TOKENS, CORRECT, embed=embed, plain=["a b c", "new"], end_ids=[1])
    assert set(found) == set(BATCH_METRICS)
    assert all(type(value) is float for value in found.values())
    root = np.sqrt(0.5)
    by_hand = {
        "samples": 4,
        "correct": 3,
        "correct_different": 2,
        "distinct_texts": 3,
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
    assert found["vendi_embedding"] == pytest.approx(np.exp(-(eigenvalues * np.log(eigenvalues)).sum()))


def test_what_cannot_be_said_is_left_out():
    one = batch_diversity(["word"], [[]], [False])
    assert set(BATCH_METRICS) - set(one) == {
        "distinct_2", "self_bleu", "vendi_embedding", "embedding_diversity", "novelty", "new_texts", "novelty_embedding",
        "ended", "end_share",
    }  # fmt: skip
    assert set(BATCH_METRICS) - set(batch_diversity(["a b"], [[]], [True], embed=lambda t: np.ones((1, 2)), end_ids=[1])) == {
        "self_bleu", "embedding_diversity", "novelty", "new_texts", "novelty_embedding", "end_share",
    }  # fmt: skip
    assert np.isfinite(list(one.values())).all()


def test_solutions_told_apart():
    texts = ["First thoughts.\n```python\ndef f(x): return x\n```", "Quite other words:\n```\ndef g(y):\n    return y\n```"]
    programs = ["def f(x): return x\n", "def g(y):\n    return y\n"]
    tokens = [[1], [2]]
    assert batch_diversity(texts, tokens, [True, True], code=True)["correct_different"] == 2
    assert batch_diversity(texts, tokens, [True, True], code=True, programs=programs)["correct_different"] == 1
    assert batch_diversity(texts, tokens, [True, True], code=True, programs=[None, None])["correct_different"] == 2
    assert batch_diversity(texts, tokens, [False, True], code=True, programs=[None, programs[1]])["correct_different"] == 1
    assert batch_diversity(texts, tokens, [False, False])["correct_different"] == 0
    assert batch_diversity(["1 2 3", "1 2 4"], tokens, [True, True])["correct_different"] == 2
    assert batch_diversity(["1 2 3", "1 2 4"], tokens, [True, True], threshold=0.5)["correct_different"] == 1


ROWS = st.lists(
    st.tuples(st.text("ab c\n", max_size=12), st.lists(st.integers(0, 3), max_size=5), st.booleans()), min_size=1, max_size=6
)


@given(ROWS, st.booleans(), st.randoms(use_true_random=False))
def test_properties(rows, code, order):
    def measure(some):
        texts, tokens, correct = (list(column) for column in zip(*some, strict=True))
        return batch_diversity(texts, tokens, correct, code=code, plain=["a", "b c"], end_ids=[0])

    found, n = measure(rows), len(rows)
    assert found["correct_different"] <= found["correct"] <= found["samples"] == n
    assert (found["correct_different"] > 0) == (found["correct"] > 0)
    assert found["new_texts"] <= found["distinct_texts"] <= n
    assert 1 - 1e-9 <= found["vendi_ngram"] <= found["distinct_texts"] + 1e-6
    assert found["length_min"] <= found["length_median"] <= found["length_max"]
    assert all(0 <= found.get(key, 0) <= 1 + 1e-9 for key in ("distinct_2", "self_bleu", "novelty", "ended", "end_share"))
    shuffled = measure(order.sample(rows, n))
    assert {**shuffled, "correct_different": 0} == pytest.approx({**found, "correct_different": 0}, abs=1e-6)
    assert set(found) <= set(METRICS)


def test_inputs_are_left_alone():
    texts, tokens, correct = list(TEXTS), [list(row) for row in TOKENS], list(CORRECT)
    batch_diversity(texts, tokens, correct, plain=TEXTS, end_ids=[1])
    assert (texts, tokens, correct) == (TEXTS, TOKENS, CORRECT)
    assert batch_diversity(TEXTS, np.array(TOKENS), np.array(CORRECT)) == batch_diversity(TEXTS, TOKENS, CORRECT)


def measure_large(plain=True):
    """16 samples of 256 words, all right and all different."""
    draw = random.Random(0)
    texts = [" ".join(f"w{draw.randrange(400)}" for _ in range(256)) for _ in range(32)]
    start = time.process_time()
    batch_diversity(texts[:16], [[3] * 256] * 16, [True] * 16, plain=texts[16:] if plain else None, end_ids=[1])
    return time.process_time() - start


def count_words() -> float:
    """Seconds to count 100 000 words, the least that statistics of texts can do: about 25 ms where a batch takes 35."""
    start = time.process_time()
    found: dict[str, int] = {}
    for i in range(100_000):
        found[f"w{i % 400}"] = found.get(f"w{i % 400}", 0) + 1
    return time.process_time() - start


def test_fast_enough():
    """Meant to take 50 ms at most, on a machine that counts 100 000 words in half of that."""
    assert min(measure_large() for _ in range(5)) < 4 * min(count_words() for _ in range(5))


def test_hostile_texts():
    texts = ["\0" * 1_000_000, "\ud800" * 100_000, "a " * 1_000_000, "", "(" * 1_000_000, "\n" * 1_000_000, "é\u0301" * 100_000]
    for code in (False, True):
        found = batch_diversity(texts, [[]] * 7, [True] * 7, code=code, plain=texts[::-1])
        assert found["distinct_texts"] == 7
        assert found["novelty"] == 0
        assert np.isfinite(list(found.values())).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"texts": [], "tokens": [], "correct": []}, "the batch is empty"),
        ({"tokens": [[1]]}, "there are 4 texts, but 1 tokens"),
        ({"correct": [True]}, "there are 4 texts, but 1 correct"),
        ({"code": True, "programs": ["x"]}, "there are 4 texts, but 1 programs"),
        ({"plain": []}, "the plain batch is empty"),
        ({"texts": "abcd"}, "texts must be a list of strings"),
        ({"texts": ["a", None, "b", "c"]}, "texts must be a list of strings"),
        ({"plain": [3]}, "plain must be a list of strings"),
        ({"plain": "abc"}, "plain must be a list of strings"),
        ({"code": True, "programs": ["a", 3, None, "b"]}, "programs must be a list of strings"),
        ({"programs": TEXTS}, "programs go with code=True"),
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
    given = {"texts": TEXTS, "tokens": TOKENS, "correct": CORRECT, **change}
    with pytest.raises(ValueError, match=says):
        batch_diversity(given.pop("texts"), given.pop("tokens"), given.pop("correct"), **given)


def test_names():
    assert all(meaning and "\n" not in meaning for meaning in METRICS.values())
    assert describe_metric("self_bleu") == METRICS["self_bleu"]
    assert describe_metric("pass@1") == METRICS["pass@1"]
    assert describe_metric("pass@16") == METRICS["pass@k"]
    assert describe_metric("pass@16_unbiased") == METRICS["pass@k_unbiased"]
    for name in ("pas@16", "pass@", "pass@0", "pass@x", "pass@²", "pass@k2", f"pass@{'9' * 5000}x", "self_bleu@3", ""):
        with pytest.raises(ValueError, match=r"unknown metric .*; known: pass@1, pass@k, .*self_bleu"):
            describe_metric(name)

"""The diversity of texts: by hand, by brute force, by property."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oddlm.metrics.batch import text_diversity
from oddlm.metrics.solutions import solution_classes
from oddlm.metrics.texts import (
    cosine_kernel,
    distinct_2,
    mean_dissimilarity,
    ngram_kernel,
    novelty,
    self_bleu,
    vendi_score,
)
from oddlm.metrics.words import (
    MOST_WORDS,
    count_ngrams,
    edit_distances,
    in_common,
    split_words,
    word_distances,
)

from ..growth import QUADRATIC, growth
from ..tolerances import EXACT

ROUNDING = 1e-9  # of eigenvalues of a singular kernel, through a logarithm
WORDS = st.lists(st.sampled_from("abc"), max_size=9).map(tuple)
BATCHES = st.lists(WORDS, min_size=2, max_size=6)
CATS = [
    tuple(text.split())
    for text in (
        "the cat sat on the mat today",
        "the cat sat on a mat",
        "a dog ran over the long road",
        "the cat sat on the mat today and slept",
    )
]


def grams(text, size):
    return Counter(text[i : i + size] for i in range(len(text) - size + 1))


def slow_edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def slow_bleu(text, others):
    if not text:
        return float(() in others)
    logs = []
    for size in range(1, min(4, len(text)) + 1):
        own, there = grams(text, size), [grams(other, size) for other in others]
        matches = sum(min(count, max(t[gram] for t in there)) for gram, count in own.items())
        if size == 1 and matches == 0:
            return 0.0
        logs.append(math.log((matches or 0.1) / own.total()))
    closest = min((abs(len(other) - len(text)), len(other)) for other in others)[1]
    return math.exp(sum(logs) / len(logs) + min(0, 1 - closest / len(text)))


def test_words():
    assert split_words("x_1 = f(3.5)\n# naïve 東京!") == (
        "x_1",
        "=",
        "f",
        "(",
        "3",
        ".",
        "5",
        ")",
        "#",
        "naïve",
        "東京",
        "!",
    )
    assert split_words(" \n\t") == ()
    assert len(split_words("a " * 10_000)) == MOST_WORDS


@given(BATCHES, st.integers(1, 4))
def test_ngram_counts(texts, size):
    counts = count_ngrams(texts, size)
    brute = [grams(text, size) for text in texts]
    columns = sorted(tuple(column) for column in counts.T.tolist())
    assert columns == sorted(tuple(b[gram] for b in brute) for gram in set().union(*brute))


@given(BATCHES, BATCHES)
def test_edit_distances(a, b):
    assert edit_distances(a, b).tolist() == [[slow_edit_distance(x, y) for y in b] for x in a]
    assert (edit_distances(a, b) == edit_distances(b, a).T).all()


@settings(max_examples=8)
@given(
    st.lists(
        st.lists(st.integers(0, 20).map(str), min_size=60, max_size=140).map(tuple),
        min_size=3,
        max_size=3,
    )
)
def test_edit_distances_of_long_texts(texts):
    """Longer than a machine word."""
    close = [*texts, (*texts[0][:50], "new", *texts[0][52:]), texts[1][1:]]
    assert edit_distances(close, close).tolist() == [
        [slow_edit_distance(x, y) for y in close] for x in close
    ]


def common_length(a, b) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


@given(WORDS, WORDS)
def test_words_in_common(a, b):
    kept = [word for word, there in zip(a, in_common(a, b), strict=True) if there]
    assert len(kept) == common_length(a, b)
    rest = iter(b)
    assert all(word in rest for word in kept), "in this order"


@pytest.mark.parametrize("text", ["abcd", "ab", "a"])
def test_words_in_common_take_a_step_per_word_whatever_they_are(text):
    def make(n: int):
        return tuple(text) * (n // len(text)), tuple(text[::-1]) * (n // len(text))

    assert growth(lambda both: in_common(*both), make, MOST_WORDS // 8, 8) < QUADRATIC


HOSTILE = [
    lambda n: "a b c d " * (n // 4),
    lambda n: "a" * n,
    lambda n: "( " * n,
    lambda n: " ".join(map(str, range(n))),
]


@pytest.mark.parametrize("make", HOSTILE)
@pytest.mark.parametrize(
    "measure", [text_diversity, solution_classes, lambda texts: solution_classes(texts, code=True)]
)
def test_measures_on_hostile_texts(make, measure):
    """They compare all words with all words, in a cap of words; nothing makes more of it."""
    texts = lambda n: [make(n), make(n)[::-1], make(n // 2)]  # noqa: E731
    assert growth(measure, texts, MOST_WORDS // 8, 8) < QUADRATIC


def test_word_distances_by_hand():
    kitten, sitting = tuple("kitten"), tuple("sitting")
    assert edit_distances([kitten], [sitting, kitten, ()]).tolist() == [[3, 0, 6]]
    assert word_distances([kitten], [sitting, kitten, ()]) == pytest.approx(
        np.array([[3 / 7, 0, 1]])
    )
    assert word_distances([()], [()]).tolist() == [[0]]
    assert [edit_distances(*some).shape for some in (([], [kitten]), ([kitten], []), ([], []))] == [
        (0, 1),
        (1, 0),
        (0, 0),
    ]


def test_distinct_2_by_hand():
    assert distinct_2([tuple("aba"), tuple("ab"), ("a",), ()]) == 2 / 3  # ab, ba, ab
    assert distinct_2([tuple("abcd")]) == 1
    with pytest.raises(ValueError, match="a text of two words"):
        distinct_2([("a",), ()])


def test_self_bleu_agrees_with_nltk():
    """NLTK 3.10.4's sentence_bleu with smoothing method 1, of each text against the others."""
    assert self_bleu(CATS) == pytest.approx(0.5603181622824822, abs=EXACT)


def test_self_bleu_by_hand():
    assert self_bleu([tuple("abc")] * 3) == pytest.approx(1, abs=EXACT)
    assert self_bleu([tuple("abc"), tuple("def")]) == 0
    assert self_bleu([(), (), ("a",)]) == pytest.approx(2 / 3)
    assert self_bleu([("a", "b"), ("a", "c")]) == pytest.approx(math.sqrt(0.5 * 0.1), abs=EXACT)


@given(BATCHES)
def test_self_bleu_by_brute_force(texts):
    brute = [slow_bleu(text, texts[:i] + texts[i + 1 :]) for i, text in enumerate(texts)]
    assert self_bleu(texts) == pytest.approx(np.mean(brute), abs=EXACT)


@given(BATCHES)
def test_ngram_kernel_by_brute_force(texts):
    def cosine(x, y):
        x, y = (counts or Counter({"nothing": 1}) for counts in (x, y))
        return sum(x[g] * y[g] for g in x) / math.sqrt(
            sum(v * v for v in x.values()) * sum(v * v for v in y.values())
        )

    brute = [
        [np.mean([cosine(grams(x, size), grams(y, size)) for size in (1, 2)]) for y in texts]
        for x in texts
    ]
    assert ngram_kernel(texts) == pytest.approx(np.array(brute), abs=EXACT)


def test_vendi_by_hand():
    assert vendi_score(np.eye(5)) == pytest.approx(5)
    assert vendi_score(np.ones((5, 5))) == pytest.approx(1)
    two_kinds = np.kron(np.eye(2), np.ones((3, 3)))
    assert vendi_score(two_kinds) == pytest.approx(2)
    half = np.array([[1, 0.5], [0.5, 1]])  # eigenvalues of K/2: 3/4 and 1/4
    assert vendi_score(half) == pytest.approx(
        math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4)), abs=EXACT
    )


def test_dissimilarity_by_hand():
    vectors = [[2, 0], [0, 3], [1, 1]]
    assert mean_dissimilarity(cosine_kernel(vectors)) == pytest.approx(
        1 - 2 * math.sqrt(0.5) / 3, abs=EXACT
    )
    assert mean_dissimilarity(cosine_kernel([[1, 2], [3, 6]])) == pytest.approx(0, abs=EXACT)
    assert mean_dissimilarity(cosine_kernel([[1, 2], [-1, -2]])) == pytest.approx(2, abs=EXACT)


def test_novelty_by_hand():
    plain = [tuple("abcd"), tuple("xy")]
    assert novelty([tuple("abcd"), tuple("abce"), tuple("pqrs")], plain) == pytest.approx(
        (0 + 0.25 + 1) / 3
    )
    assert novelty(plain, plain[::-1]) == 0


@given(BATCHES, BATCHES)
def test_novelty_by_brute_force(texts, plain):
    def distance(a, b):
        return slow_edit_distance(a, b) / max(len(a), len(b), 1)

    assert novelty(texts, plain) == pytest.approx(
        np.mean([min(distance(t, p) for p in plain) for t in texts]), abs=EXACT
    )


@given(BATCHES, st.randoms(use_true_random=False))
def test_bounds_and_order(texts, random):
    shuffled = random.sample(texts, len(texts))
    kernel = ngram_kernel(texts)
    assert 1 - ROUNDING <= vendi_score(kernel) <= len(texts) + ROUNDING
    assert vendi_score(ngram_kernel(shuffled)) == pytest.approx(vendi_score(kernel), abs=1e-6)
    assert 0 <= self_bleu(texts) <= 1 + EXACT
    assert self_bleu(shuffled) == pytest.approx(self_bleu(texts), abs=EXACT)
    assert 0 <= novelty(texts, texts[:1]) <= 1
    assert novelty(shuffled, texts) == 0
    assert 0 <= mean_dissimilarity(kernel) <= 1 + EXACT
    if any(len(text) > 1 for text in texts):
        assert 0 < distinct_2(texts) <= 1
        assert distinct_2(shuffled) == distinct_2(texts)


def test_a_repeated_text_makes_a_batch_less_diverse():
    repeated = [*CATS[:3], CATS[0]]
    assert vendi_score(ngram_kernel(repeated)) < vendi_score(
        ngram_kernel([*CATS[:3], ("quite", "another", "line")])
    )
    assert self_bleu(repeated) > self_bleu(CATS[:3])
    assert distinct_2(repeated) < distinct_2(CATS[:3])


@pytest.mark.parametrize(
    "bad", [np.ones((2, 3)), np.ones(3), np.zeros((0, 0)), [[1, np.nan], [np.nan, 1]]]
)
def test_not_a_kernel(bad):
    with pytest.raises(ValueError, match=r"a kernel is a finite matrix \[n, n\]"):
        vendi_score(bad)


def test_bad_input():
    for bad in ([[1, 0.5], [0.2, 1]], [[2, 0], [0, 2]]):
        with pytest.raises(ValueError, match="symmetric, with ones on its diagonal"):
            vendi_score(bad)
    with pytest.raises(ValueError, match="a vector of zeros has no direction"):
        cosine_kernel([[1, 2], [0, 0]])
    for bad in ([1, 2], [[np.nan, 1]], [[np.inf, 1]]):
        with pytest.raises(ValueError, match="vectors must be finite numbers"):
            cosine_kernel(bad)
    with pytest.raises(ValueError, match="needs two of them"):
        self_bleu(CATS[:1])
    with pytest.raises(ValueError, match="needs two of them"):
        mean_dissimilarity(np.ones((1, 1)))
    for texts, plain in (([], CATS), (CATS, [])):
        with pytest.raises(ValueError, match="at least one text on either side"):
            novelty(texts, plain)

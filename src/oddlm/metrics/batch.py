"""All metrics of the samples of one problem."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .solutions import THRESHOLD, solution_classes
from .texts import (
    cosine_kernel,
    distinct_2,
    mean_dissimilarity,
    ngram_kernel,
    novelty,
    self_bleu,
    vendi_score,
)
from .votes import answer_classes, majority_at_k
from .words import split_words, word_distances

Embed = Callable[[Sequence[str]], NDArray[np.floating]]  # n texts -> [n, d]

# The keys of `batch_diversity`. The comment above a key names what it needs; if that is missing,
# the key is left out.
BATCH_METRICS = {
    "samples": "samples in the batch",
    "correct": "samples that are right",
    "correct_different": (
        "right samples that differ from each other: by words, or for code by normal form"
    ),
    "distinct_texts": "texts that are not identical",
    # answers
    "distinct_answers": "different answers extracted from the texts",
    # answers, two samples
    "answer_distance": "mean share of words to change to turn one sample's answer into another's",
    # a text of two words
    "distinct_2": "different pairs of neighbouring words as a share of all pairs",
    # two samples
    "self_bleu": "mean BLEU-4 of each text against the others; 1 if all are the same",
    "vendi_ngram": "effective number of different texts, from 1 to n, by words and pairs of words",
    # embed
    "vendi_embedding": "effective number of different texts, from 1 to n, by sentence embeddings",
    # embed, two samples
    "embedding_diversity": "1 - mean cosine of the sentence embeddings of two texts",
    # plain
    "novelty": "mean share of words to change to turn a text into the nearest of the plain batch",
    # plain
    "new_texts": "different texts that are not in the plain batch",
    # plain, embed
    "novelty_embedding": "mean of 1 - cosine to the nearest text of the plain batch",
    "length_mean": "mean tokens before the first end token",
    "length_std": "standard deviation of the tokens before the first end token",
    "length_min": "fewest tokens before the first end token",
    "length_median": "median of the tokens before the first end token",
    "length_max": "most tokens before the first end token",
    "ended": "share of the samples with an end token",
    # a token
    "end_share": "share of all tokens that are end tokens",
}
# Not part of a stored record: computed beside it.
BESIDE = ("novelty", "new_texts", "novelty_embedding", "vendi_embedding", "embedding_diversity")
METRICS = {
    "pass@1": "share of the samples that are right, c/n",
    "pass@k": "share of the problems with a right sample among the first k",
    "pass@k_unbiased": (
        "mean of Pass@k over all choices of k samples; for independent samples only"
    ),
    "solutions@k": "different right solutions among the first k samples, mean over the problems",
    "maj@k": "share of the problems for which the most common answer of the first k is right",
    "coverage": "share of the problems that at least one setting solves",
    "nfe": "network evaluations per sample",
    **BATCH_METRICS,
}


def describe_metric(name: str) -> str:
    """Return what a metric means; pass@4 is described as pass@k."""
    family = (
        name if name in METRICS else re.sub(r"^(pass|maj|solutions)@[1-9][0-9]*", r"\1@k", name)
    )
    if family not in METRICS:
        raise ValueError(f"unknown metric {name!r}; known: {', '.join(METRICS)}")
    return METRICS[family]


class Lengths(NamedTuple):
    """The lengths of one sample, in tokens."""

    text: int  # before the first end token
    all: int
    ends: int  # end tokens among all


def batch_diversity(
    texts: Sequence[str],
    lengths: Sequence[Lengths],
    correct: Sequence[bool],
    *,
    code: bool = False,
    answers: Sequence[str | None] | None = None,
    readings: Sequence[str | None] | None = None,
    embed: Embed | None = None,
    plain: Sequence[str] | None = None,
    threshold: float = THRESHOLD,
) -> dict[str, float]:
    """Return the metrics of BATCH_METRICS for one problem, without those that are undefined.

    code: compare right texts as Python programs.
    answers: what was extracted from each text, None if nothing was; with `code`, programs.
    readings: the same in a form in which equal answers are equal; they vote (maj@k).
    plain: the texts of the same problem without repulsion. With equal seeds both batches share
    their first sample.
    threshold: share of the words that must change before two right texts (not programs) count as
    different.
    """
    _check(texts, correct, answers)
    if plain is not None and len(plain) == 0:
        raise ValueError("the plain batch is empty: leave `plain` out if there is none")
    _check_strings("plain", plain or ())
    _check_lengths(lengths, len(texts))
    classes = right_classes(texts, correct, code=code, answers=answers, threshold=threshold)
    right = [number for number in classes if number is not None]
    found = text_diversity(texts)
    found["correct"] = len(right)
    found["correct_different"] = len(set(right))
    if answers is not None:
        found |= _answered(answers)
    if readings is not None and len(texts) > 1:
        ks = [2**i for i in range(1, len(texts).bit_length()) if 2**i < len(texts)]
        votes = answer_classes(texts, readings)
        found |= majority_at_k(votes, correct, [*ks, len(texts)])
    found |= diversity_beside(texts, plain=plain, embed=embed)
    return {key: float(value) for key, value in (found | _length_metrics(lengths)).items()}


def right_classes(
    texts: Sequence[str],
    correct: Sequence[bool],
    *,
    code: bool = False,
    answers: Sequence[str | None] | None = None,
    threshold: float = THRESHOLD,
) -> list[int | None]:
    """Return each sample's class of right solutions (`solution_classes`), None for a wrong sample.

    With `code`, the program extracted from a text is compared in its place, if there is one.
    """
    _check(texts, correct, answers)
    right = [i for i, verdict in enumerate(correct) if verdict]
    solutions = [
        answers[i] or texts[i] if code and answers is not None else texts[i] for i in right
    ]
    numbers = dict(
        zip(right, solution_classes(solutions, code=code, threshold=threshold), strict=True)
    )
    return [numbers.get(i) for i in range(len(texts))]


def diversity_beside(
    texts: Sequence[str], *, plain: Sequence[str] | None = None, embed: Embed | None = None
) -> dict[str, float]:
    """Return the metrics of BESIDE for which the plain batch or an embedding is given."""
    found: dict[str, float] = {}
    if plain is not None:
        found["novelty"] = novelty(
            *([split_words(text) for text in some] for some in (texts, plain))
        )
        found["new_texts"] = float(len(set(texts) - set(plain)))
    if embed is not None:
        found |= _embedded(texts, plain, embed)
    return found


def text_diversity(texts: Sequence[str]) -> dict[str, float]:
    """Return the metrics that need the texts alone."""
    words = [split_words(text) for text in texts]
    found: dict[str, float] = {
        "samples": len(texts),
        "distinct_texts": len(set(texts)),
        "vendi_ngram": vendi_score(ngram_kernel(words)),
    }
    if any(len(text) > 1 for text in words):
        found["distinct_2"] = distinct_2(words)
    if len(words) > 1:
        found["self_bleu"] = self_bleu(words)
    return {key: float(value) for key, value in found.items()}


def _embedded(texts: Sequence[str], plain: Sequence[str] | None, embed: Embed) -> dict[str, float]:
    every = [*texts, *(plain or ())]
    vectors = np.asarray(embed(every), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(every):
        raise ValueError(
            f"embed gave {list(vectors.shape)} for {len(every)} texts, not [{len(every)}, d]"
        )
    cosines, n = cosine_kernel(vectors), len(texts)
    kernel = cosines[:n, :n]
    found = {"vendi_embedding": vendi_score(kernel)}
    if n > 1:
        found["embedding_diversity"] = mean_dissimilarity(kernel)
    if plain is not None:
        found["novelty_embedding"] = float((1 - cosines[:n, n:].max(axis=1)).mean())
    return found


def _answered(answers: Sequence[str | None]) -> dict[str, float]:
    found: dict[str, float] = {
        "distinct_answers": len({answer for answer in answers if answer is not None})
    }
    n = len(answers)
    if n > 1:
        words = [split_words(answer or "") for answer in answers]
        missing = np.array([answer is None for answer in answers])
        one_missing = missing[:, None] != missing  # [n, n]
        distances = np.where(one_missing, 1.0, word_distances(words, words))  # [n, n]
        found["answer_distance"] = float(distances.sum()) / (n * (n - 1))
    return found


def _length_metrics(lengths: Sequence[Lengths]) -> dict[str, float]:
    texts = np.array([length.text for length in lengths])
    found = {
        "length_mean": texts.mean(),
        "length_std": texts.std(),
        "length_min": texts.min(),
        "length_median": np.median(texts),
        "length_max": texts.max(),
        "ended": np.mean([length.text < length.all for length in lengths]),
    }
    total = sum(length.all for length in lengths)
    if total:
        found["end_share"] = sum(length.ends for length in lengths) / total
    return found


def _check(
    texts: Sequence[str], correct: Sequence[bool], answers: Sequence[str | None] | None
) -> None:
    if len(texts) == 0:
        raise ValueError("the batch is empty: give at least one sample")
    for name, given in (("correct", correct), ("answers", answers)):
        if given is not None and len(given) != len(texts):
            raise ValueError(f"there are {len(texts)} texts, but {len(given)} {name}")
    _check_strings("texts", texts)
    _check_strings("answers", [answer for answer in answers or () if answer is not None])
    if not all(
        isinstance(verdict, bool | np.bool_ | int) and verdict in (0, 1) for verdict in correct
    ):
        raise ValueError("correct must hold only True and False")


def _check_strings(name: str, strings: Sequence[str]) -> None:
    if isinstance(strings, str) or not all(isinstance(text, str) for text in strings):
        raise ValueError(f"{name} must be a list of strings")


def _check_lengths(lengths: Sequence[Lengths], samples: int) -> None:
    if len(lengths) != samples:
        raise ValueError(f"there are {samples} texts, but {len(lengths)} lengths")
    for length in lengths:
        if not isinstance(length, Lengths) or not all(
            isinstance(size, int | np.integer) for size in length
        ):
            raise ValueError(f"lengths must hold only Lengths of integers, not {length!r}")
        text, total, ends = length
        if not (0 <= text == total and ends == 0) and not (0 <= text < text + ends <= total):
            raise ValueError(
                f"{length} is impossible: either text equals all and there are no end tokens, "
                "or end tokens follow the text"
            )

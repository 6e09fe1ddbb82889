"""Everything that can be said of the samples of one problem."""

import re
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ..ends import text_length
from .solutions import THRESHOLD, different_solutions
from .texts import cosine_kernel, distinct_2, mean_dissimilarity, ngram_kernel, novelty, self_bleu, vendi_score
from .words import split_words

Embed = Callable[[Sequence[str]], NDArray[np.floating]]  # n texts -> [n, d]

# What `batch_diversity` gives. A comment says what a key needs; where that is missing, so is the key.
BATCH_METRICS = {
    "samples": "samples in the batch",
    "correct": "samples that are right",
    "correct_different": "samples that are right and different from each other: by words, or for code by normal form",
    "distinct_texts": "texts that are not the same to the letter",
    "distinct_2": "different pairs of neighbouring words as a share of all pairs",  # a text of two words
    "self_bleu": "mean BLEU-4 of each text against the others; 1 is all the same",  # two samples
    "vendi_ngram": "effective number of different texts, from 1 to n, by words and pairs of words",
    "vendi_embedding": "effective number of different texts, from 1 to n, by sentence embeddings",  # embed
    "embedding_diversity": "1 - mean cosine of the sentence embeddings of two texts",  # embed, two samples
    "novelty": "mean share of words to change before a text is one of the plain batch",  # plain
    "new_texts": "different texts that the plain batch does not hold",  # plain
    "novelty_embedding": "mean of 1 - cosine to the nearest text of the plain batch",  # plain, embed
    "length_mean": "mean tokens before the first end token",
    "length_std": "standard deviation of the tokens before the first end token",
    "length_min": "fewest tokens before the first end token",
    "length_median": "median of the tokens before the first end token",
    "length_max": "most tokens before the first end token",
    "ended": "share of the samples with an end token",  # end_ids
    "end_share": "share of all tokens that are end tokens",  # end_ids, a token
}
BESIDE = ("novelty", "new_texts", "novelty_embedding", "vendi_embedding", "embedding_diversity")  # no part of a stored record
METRICS = {
    "pass@1": "share of the samples that are right, c/n",
    "pass@k": "share of the problems with a right one among the first k samples",
    "pass@k_unbiased": "the mean of Pass@k over all choices of k samples; for independent samples only",
    "coverage": "share of the problems that some setting solves",
    "nfe": "network evaluations per sample",
    **BATCH_METRICS,
}


def describe_metric(name: str) -> str:
    """What a metric means; pass@4 is a pass@k."""
    family = name if name in METRICS else re.sub(r"^pass@[1-9][0-9]*", "pass@k", name)
    if family not in METRICS:
        raise ValueError(f"unknown metric {name!r}; known: {', '.join(METRICS)}")
    return METRICS[family]


def batch_diversity(
    texts: Sequence[str],
    tokens: Sequence[Sequence[int]],
    correct: Sequence[bool],
    *,
    code: bool = False,
    embed: Embed | None = None,
    programs: Sequence[str | None] | None = None,
    plain: Sequence[str] | None = None,
    end_ids: Collection[int] = (),
    threshold: float = THRESHOLD,
) -> dict[str, float]:
    """The metrics of BATCH_METRICS for one problem; those that cannot be said are left out.

    tokens: all tokens of each sample, end tokens included.
    code: right texts are told apart as Python programs.
    programs: with `code`, the program that was read out of each text; where there is none, the text itself.
    plain: the texts of the same problem without repulsion. With equal seeds the first sample is in both.
    end_ids: the tokens that end a sample.
    threshold: share of the words that must change before two right texts, not programs, are different.
    """
    if programs is not None and not code:
        raise ValueError("programs go with code=True")
    _check(texts, tokens, correct, programs, plain)
    right = [i for i, verdict in enumerate(correct) if verdict]
    solutions = [texts[i] if programs is None else programs[i] or texts[i] for i in right]
    found = text_diversity(texts)
    found["correct"] = len(right)
    found["correct_different"] = len(different_solutions(solutions, code=code, threshold=threshold))
    found |= diversity_beside(texts, plain=plain, embed=embed)
    return {key: float(value) for key, value in (found | _lengths(tokens, end_ids)).items()}


def diversity_beside(
    texts: Sequence[str], *, plain: Sequence[str] | None = None, embed: Embed | None = None
) -> dict[str, float]:
    """The metrics of BESIDE: they need the plain batch or an embedding, and are left out without."""
    found: dict[str, float] = {}
    if plain is not None:
        found["novelty"] = novelty(*([split_words(text) for text in some] for some in (texts, plain)))
        found["new_texts"] = float(len(set(texts) - set(plain)))
    if embed is not None:
        found |= _embedded(texts, plain, embed)
    return found


def text_diversity(texts: Sequence[str]) -> dict[str, float]:
    """What can be said of the texts alone."""
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
        raise ValueError(f"embed gave {list(vectors.shape)} for {len(every)} texts, not [{len(every)}, d]")
    cosines, n = cosine_kernel(vectors), len(texts)
    kernel = cosines[:n, :n]
    found = {"vendi_embedding": vendi_score(kernel)}
    if n > 1:
        found["embedding_diversity"] = mean_dissimilarity(kernel)
    if plain is not None:
        found["novelty_embedding"] = float((1 - cosines[:n, n:].max(axis=1)).mean())
    return found


def _lengths(tokens: Sequence[Sequence[int]], end_ids: Collection[int]) -> dict[str, float]:
    ends = set(end_ids)
    lengths = np.array([text_length(row, ends) for row in tokens])
    found = {
        "length_mean": lengths.mean(),
        "length_std": lengths.std(),
        "length_min": lengths.min(),
        "length_median": np.median(lengths),
        "length_max": lengths.max(),
    }
    total = sum(len(row) for row in tokens)
    if ends:
        found["ended"] = np.mean([length < len(row) for length, row in zip(lengths, tokens, strict=True)])
    if ends and total:
        found["end_share"] = sum(token in ends for row in tokens for token in row) / total
    return found


def _check(
    texts: Sequence[str],
    tokens: Sequence[Sequence[int]],
    correct: Sequence[bool],
    programs: Sequence[str | None] | None,
    plain: Sequence[str] | None,
) -> None:
    if len(texts) == 0:
        raise ValueError("the batch is empty: there must be at least one sample")
    if plain is not None and len(plain) == 0:
        raise ValueError("the plain batch is empty: leave `plain` out where there is none")
    for name, given in (("tokens", tokens), ("correct", correct), ("programs", programs)):
        if given is not None and len(given) != len(texts):
            raise ValueError(f"there are {len(texts)} texts, but {len(given)} {name}")
    read = [program for program in programs or () if program is not None]
    for name, strings in (("texts", texts), ("plain", plain or ()), ("programs", read)):
        if isinstance(strings, str) or not all(isinstance(text, str) for text in strings):
            raise ValueError(f"{name} must be a list of strings")
    if not all(isinstance(verdict, bool | np.bool_ | int) and verdict in (0, 1) for verdict in correct):
        raise ValueError("correct must hold nothing but True and False")

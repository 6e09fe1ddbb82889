"""How different the texts of a batch are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .words import Words, count_ngrams, word_distances

Floats = NDArray[np.float64]
BLEU_ORDER = 4
NO_MATCH = 0.1  # the count of an order without a match: NLTK's smoothing method 1


def distinct_2(texts: Sequence[Words]) -> float:
    """Return the share of different pairs among all pairs of neighbouring words.

    (Li et al. 2016, arXiv:1510.03055.)
    """
    total = sum(max(len(text) - 1, 0) for text in texts)
    if total == 0:
        raise ValueError("distinct-2 needs a text of at least two words")
    return int(count_ngrams(texts, 2).shape[1]) / total


def self_bleu(texts: Sequence[Words]) -> float:
    """Return the mean BLEU of each text against all others; 1 if all are the same.

    (Zhu et al. 2018, arXiv:1802.01886.) The orders are 1 to 4, or up to the length of a shorter
    text, so that equal texts of any length score 1.
    """
    _need_two(texts)
    lengths = np.array([len(text) for text in texts])
    logs, orders = np.zeros(len(texts)), np.minimum(lengths, BLEU_ORDER)
    for size in range(1, BLEU_ORDER + 1):
        counts = count_ngrams(texts, size)  # [n, grams]
        second, most = np.partition(counts, (-2, -1), axis=0)[-2:]
        most_elsewhere = np.where(counts == most, second, most)
        matches = np.minimum(counts, most_elsewhere).sum(axis=1).astype(np.float64)
        if size == 1:
            shared = matches > 0
        total = np.maximum(lengths - size + 1, 1)
        share = np.where(matches > 0, matches, NO_MATCH) / total
        logs += np.where(size <= orders, np.log(share), 0.0)
    scores = np.exp(logs / np.maximum(orders, 1)) * _brevity(lengths)
    empty = lengths == 0
    # An empty text is equal to other empty texts only.
    return float(np.where(empty, empty.sum() > 1, scores * shared).mean())


def _brevity(lengths: NDArray[np.int64]) -> Floats:
    """Return the brevity penalty [n] of each text against the other text closest in length.

    Of two equally close texts, the shorter counts.
    """
    gaps = np.abs(lengths[:, None] - lengths) * 2 + (lengths > lengths[:, None])
    np.fill_diagonal(gaps, np.iinfo(gaps.dtype).max)
    closest = lengths[gaps.argmin(axis=1)]
    penalty: Floats = np.exp(np.minimum(0.0, 1 - closest / np.maximum(lengths, 1)))
    return penalty


def ngram_kernel(texts: Sequence[Words]) -> Floats:
    """Return [n, n]: the cosine of word counts and the cosine of pair counts, averaged.

    Texts without words (or pairs) have similarity 1 to each other and 0 to all others.
    """
    kernels = []
    for size in (1, 2):
        counts = count_ngrams(texts, size).astype(np.float64)
        empty = counts.sum(axis=1, keepdims=True) == 0
        kernels.append(cosine_kernel(np.hstack([counts, empty])))
    return (kernels[0] + kernels[1]) / 2


def cosine_kernel(vectors: ArrayLike) -> Floats:
    """Return the cosines [n, n] of vectors [n, d]."""
    table = np.asarray(vectors, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise ValueError(
            "vectors must be finite numbers of shape [n, d], "
            f"not of shape {list(table.shape)} or with nan"
        )
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    if not norms.all():
        raise ValueError("a vector of zeros has no direction")
    unit = table / norms
    kernel: Floats = np.clip(unit @ unit.T, -1.0, 1.0)
    return kernel


def vendi_score(kernel: ArrayLike) -> float:
    """Return the effective number of different items: exp of the eigenvalue entropy of K/n.

    (Friedman & Dieng 2023, arXiv:2210.02410.) It is 1 if all items are the same and n if no two are
    alike. The kernel must have ones on its diagonal.
    """
    matrix = np.asarray(kernel, dtype=np.float64)
    if (
        matrix.ndim != 2
        or matrix.shape[0] != matrix.shape[1]
        or not matrix.size
        or not np.isfinite(matrix).all()
    ):
        raise ValueError(
            f"a kernel is a finite matrix [n, n], not of shape {list(matrix.shape)} or with nan"
        )
    if not np.allclose(matrix, matrix.T) or not np.allclose(matrix.diagonal(), 1):
        raise ValueError("a kernel is symmetric, with ones on its diagonal")
    values = np.linalg.eigvalsh(matrix / len(matrix))
    values = values[values > 1e-12]  # rounding leaves tiny values of either sign
    return float(np.exp(-(values * np.log(values)).sum()))


def mean_dissimilarity(kernel: Floats) -> float:
    """Return 1 - the mean of the kernel over all pairs of different items."""
    _need_two(kernel)
    n = len(kernel)
    return float(1 - (kernel.sum() - np.trace(kernel)) / (n * (n - 1)))


def novelty(texts: Sequence[Words], plain: Sequence[Words]) -> float:
    """Return the mean distance of each text to its nearest text of the plain batch.

    It is 0 if the plain batch already holds every text.
    """
    if not texts or not plain:
        raise ValueError("novelty needs at least one text in each batch")
    return float(word_distances(texts, plain).min(axis=1).mean())


def _need_two(items: Sequence[object] | Floats) -> None:
    if len(items) < 2:
        raise ValueError(f"comparing the texts of a batch needs at least two, not {len(items)}")

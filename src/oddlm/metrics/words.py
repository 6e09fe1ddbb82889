"""Texts as words and counts of n-grams: what the diversity of texts is measured on.

Words, not a model's tokens: models with different tokenizers compare, and padding does not count.
"""

import re
from collections.abc import Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq, Levenshtein
from rapidfuzz.process import cdist

# of a text; what follows is not looked at, so that a hostile text costs no more than a long one
MOST_WORDS = 4096

_WORD = re.compile(r"\w+|[^\w\s]")
Words = tuple[str, ...]


def split_words(text: str) -> Words:
    """Runs of letters, digits and underscores, and every other sign by itself; white space only
    separates.
    """
    return tuple(match[0] for match in islice(_WORD.finditer(text), MOST_WORDS))


def count_ngrams(texts: Sequence[Words], size: int) -> NDArray[np.int32]:
    """[texts, different n-grams of this size among them all]."""
    ids: dict[str, int] = {}
    words = np.array(
        [ids.setdefault(word, len(ids)) for word in chain.from_iterable(texts)], dtype=np.int64
    )
    lengths = [len(text) for text in texts]
    owner = np.repeat(np.arange(len(texts)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(
        len(words)
    )  # words from here to the end of the text
    grams = words
    for more in range(1, size):
        longer = grams[:-1] * (len(ids) or 1) + words[more:]
        grams = np.unique(longer, return_inverse=True)[1]
    here = left[: len(grams)] >= size
    kept, gram_of = np.unique(grams[here], return_inverse=True)
    counts = np.zeros((len(texts), len(kept)), dtype=np.int32)
    np.add.at(counts, (owner[: len(grams)][here], gram_of), 1)
    return counts


def edit_distances(a: Sequence[Words], b: Sequence[Words]) -> NDArray[np.int64]:
    """[a, b]: fewest insertions, deletions and replacements of words that make one text of the
    other.
    """
    if not a or not b:
        return np.zeros((len(a), len(b)), dtype=np.int64)
    numbered = _numbered([*a, *b])
    queries, choices = numbered[: len(a)], numbered[len(a) :]
    distances: NDArray[np.int64] = cdist(
        queries, choices, scorer=Levenshtein.distance, dtype=np.int64
    )
    return distances


def in_common(text: Words, other: Words) -> list[bool]:
    """For each word, whether it belongs to a longest sequence of words that both texts have in this
    order.
    """
    kept = [True] * len(text)
    for edit in LCSseq.editops(*_numbered([text, other])):
        if edit.tag == "delete":
            kept[edit.src_pos] = False
    return kept


def _numbered(texts: Sequence[Words]) -> list[list[int]]:
    """A number for each different word: rapidfuzz compares hashes, and those of small numbers never
    collide.
    """
    numbers: dict[str, int] = {}
    return [[numbers.setdefault(word, len(numbers)) for word in text] for text in texts]


def word_distances(a: Sequence[Words], b: Sequence[Words]) -> NDArray[np.float64]:
    """[a, b]: the edit distance over the longer length; 0 for the same words, 1 where none can
    stay.
    """
    longest = np.maximum.outer([len(text) for text in a], [len(text) for text in b])
    distances: NDArray[np.float64] = edit_distances(a, b) / np.maximum(longest, 1)
    return distances

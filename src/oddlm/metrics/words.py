"""Texts as words and n-gram counts, the basis of text diversity.

Metrics use words, not a model's tokens, so that models with different tokenizers can be compared
and padding does not count.
"""

import re
from collections.abc import Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq, Levenshtein
from rapidfuzz.process import cdist

# Words read from a text; the rest is ignored, so that a hostile text costs no more than a long one.
MOST_WORDS = 4096

_WORD = re.compile(r"\w+|[^\w\s]")
Words = tuple[str, ...]


def split_words(text: str) -> Words:
    """Split a text into runs of letters, digits and underscores, and single other characters.

    White space only separates words.
    """
    return tuple(match[0] for match in islice(_WORD.finditer(text), MOST_WORDS))


def count_ngrams(texts: Sequence[Words], size: int) -> NDArray[np.int32]:
    """Return the counts [texts, g] of the g different n-grams of this size in all texts."""
    ids: dict[str, int] = {}
    words = np.array(
        [ids.setdefault(word, len(ids)) for word in chain.from_iterable(texts)], dtype=np.int64
    )
    lengths = [len(text) for text in texts]
    owner = np.repeat(np.arange(len(texts)), lengths)
    ends = np.repeat(np.cumsum(lengths), lengths)
    left = ends - np.arange(len(words))  # words from here to the end of the text
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
    """Return [a, b]: the word-level Levenshtein distances between the texts of a and b."""
    if not a or not b:
        return np.zeros((len(a), len(b)), dtype=np.int64)
    numbered = _numbered([*a, *b])
    queries, choices = numbered[: len(a)], numbered[len(a) :]
    distances: NDArray[np.int64] = cdist(
        queries, choices, scorer=Levenshtein.distance, dtype=np.int64
    )
    return distances


def in_common(text: Words, other: Words) -> list[bool]:
    """Return for each word of `text` whether it is in a longest common subsequence with `other`."""
    kept = [True] * len(text)
    for edit in LCSseq.editops(*_numbered([text, other])):
        if edit.tag == "delete":
            kept[edit.src_pos] = False
    return kept


def _numbered(texts: Sequence[Words]) -> list[list[int]]:
    """Replace each different word by a number.

    rapidfuzz compares hashes, and the hashes of small numbers never collide.
    """
    numbers: dict[str, int] = {}
    return [[numbers.setdefault(word, len(numbers)) for word in text] for text in texts]


def word_distances(a: Sequence[Words], b: Sequence[Words]) -> NDArray[np.float64]:
    """Return [a, b]: the edit distance divided by the longer length, from 0 to 1.

    It is 0 for the same words and 1 if no word can stay.
    """
    longest = np.maximum.outer([len(text) for text in a], [len(text) for text in b])
    distances: NDArray[np.float64] = edit_distances(a, b) / np.maximum(longest, 1)
    return distances

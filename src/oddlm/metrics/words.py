"""Texts as words and counts of n-grams: what the diversity of texts is measured on.

Words, not a model's tokens: models with different tokenizers compare, and padding does not count.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

MOST_WORDS = 4096  # of a text; what follows is not looked at, so that a hostile text costs no more than a long one

BITS = 1 << 14  # of an integer that holds texts side by side

_WORD = re.compile(r"\w+|[^\w\s]")
Words = tuple[str, ...]


def split_words(text: str) -> Words:
    """Runs of letters, digits and underscores, and every other sign by itself; white space only separates."""
    return tuple(match[0] for match in islice(_WORD.finditer(text), MOST_WORDS))


def count_ngrams(texts: Sequence[Words], size: int) -> NDArray[np.int32]:
    """[texts, different n-grams of this size among them all]."""
    ids: dict[str, int] = {}
    words = np.array([ids.setdefault(word, len(ids)) for word in chain.from_iterable(texts)], dtype=np.int64)
    lengths = [len(text) for text in texts]
    owner = np.repeat(np.arange(len(texts)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(words))  # words from here to the end of the text
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
    """[a, b]: fewest insertions, deletions and replacements of words that make one text of the other."""
    parts = [_side_by_side(a, some) for some in _in_parts(b)]
    return np.hstack(parts) if parts else np.zeros((len(a), 0), dtype=np.int64)


def _in_parts(texts: Sequence[Words]) -> Iterator[Sequence[Words]]:
    """Neighbours that have BITS words together, or one text: each different word takes as many bits as all words together."""
    first = words = 0
    for i, text in enumerate(texts):
        if words and words + len(text) > BITS:
            yield texts[first:i]
            first, words = i, 0
        words += len(text) + 1
    if first < len(texts):
        yield texts[first:]


def _side_by_side(a: Sequence[Words], b: Sequence[Words]) -> NDArray[np.int64]:
    """Bit-parallel (Myers 1999, Hyyrö 2003), with all texts of b side by side in one long integer; the bit above each of them
    catches its carries and is cleared.
    """
    places: dict[str, int] = {}  # word -> the bits where it stands
    starts = np.cumsum([0, *(len(text) + 1 for text in b)]).tolist()
    for start, text in zip(starts, b, strict=False):
        for i, word in enumerate(text, start):
            places[word] = places.get(word, 0) | 1 << i
    inside = [((1 << len(text)) - 1) << start for start, text in zip(starts, b, strict=False)]
    first = sum(1 << start for start in starts[:-1])
    return np.array([_column(text, places, inside, sum(inside), first) for text in a], dtype=np.int64).reshape(len(a), len(b))


def _column(text: Words, places: dict[str, int], inside: Sequence[int], full: int, first: int) -> list[int]:
    """Distances of one text: the last column of each table, summed from its vertical differences +1 and -1."""
    up, down = full, 0
    for word in text:
        match = places.get(word, 0) | down
        diagonal = (((match & up) + up) ^ up) | match
        right = (down | (full & ~(diagonal | up))) << 1 | first
        left = (up & diagonal) << 1
        up, down = full & (left | ~(diagonal | right)), full & right & diagonal
    return [len(text) + (up & bits).bit_count() - (down & bits).bit_count() for bits in inside]


def in_common(text: Words, other: Words) -> list[bool]:
    """For each word, whether it belongs to a longest sequence of words that both texts have in this order.

    Bit-parallel (Hyyrö 2004): a step per word, whatever the words are. A zero at place j of row i says that the first i words
    of the text have one word more in common with the first j + 1 of the other than with the first j.
    """
    places: dict[str, int] = {}
    for j, word in enumerate(other):
        places[word] = places.get(word, 0) | 1 << j
    full = (1 << len(other)) - 1
    rows = [full]
    for word in text:
        row = rows[-1]
        match = row & places.get(word, 0)
        rows.append(((row + match) | (row - match)) & full)
    kept = [False] * len(text)
    i, j = len(text), len(other)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            kept[i] = True
    return kept


def word_distances(a: Sequence[Words], b: Sequence[Words]) -> NDArray[np.float64]:
    """[a, b]: the edit distance over the longer length; 0 for the same words, 1 where none can stay."""
    longest = np.maximum.outer([len(text) for text in a], [len(text) for text in b])
    distances: NDArray[np.float64] = edit_distances(a, b) / np.maximum(longest, 1)
    return distances

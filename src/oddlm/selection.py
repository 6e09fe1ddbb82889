"""Selectors, which choose the samples of a pool to keep.

A selector sees texts and probabilities, never a verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .core.step import Sample
from .metrics.words import split_words, word_distances
from .registry import Registry

# Samples of one prompt, and how many to keep -> their indices, best first.
Selector = Callable[[Sequence[Sample], int], Sequence[int]]

SELECTORS: Registry[Selector] = Registry("selector")


@SELECTORS.register
def first(samples: Sequence[Sample], n: int) -> Sequence[int]:
    """The first n, as if no more had been drawn."""
    return range(n)


@SELECTORS.register
def most_confident(samples: Sequence[Sample], n: int) -> Sequence[int]:
    """Those whose tokens were most likely under the network when they were written."""
    return sorted(range(len(samples)), key=lambda i: -sum(samples[i].base_logprobs))[:n]


@SELECTORS.register
def k_centre(samples: Sequence[Sample], n: int) -> Sequence[int]:
    """Sample 0, then repeatedly the one farthest from all chosen, in word edit distance.

    This is the greedy algorithm of Gonzalez (1985).
    """
    texts = [split_words(sample.text) for sample in samples]
    distances = word_distances(texts, texts)
    chosen, nearest = [0], distances[0]
    while len(chosen) < n:
        nearest = np.minimum(nearest, distances[chosen[-1]])
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
    return chosen


def keep(
    samples: Sequence[Sample], n: int, selector: str | Mapping[str, Any] | Selector
) -> list[Sample]:
    """Keep n samples of one prompt, in the order in which the selector chose them."""
    indices = list(SELECTORS.build(selector)(samples, n))
    valid = all(0 <= i < len(samples) for i in indices)
    if not valid or len(indices) != n or len(set(indices)) != n:
        raise ValueError(
            f"selector {selector!r} must choose {n} different indices below {len(samples)}, "
            f"not {indices}"
        )
    return [samples[i] for i in indices]

"""Over-generation: of a pool of samples, which to keep.

A selector sees texts and probabilities, never a verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .core.step import Sample
from .metrics.words import split_words, word_distances
from .registry import Registry

Selector = Callable[
    [Sequence[Sample], int], Sequence[int]
]  # samples of one prompt, how many to keep -> places, best first

SELECTORS: Registry[Selector] = Registry("selector")


@SELECTORS.register
def first(samples: Sequence[Sample], n: int) -> Sequence[int]:
    """The first n, as if no more had been drawn."""
    return range(n)


@SELECTORS.register
def most_confident(samples: Sequence[Sample], n: int) -> Sequence[int]:
    """Those whose tokens the network held likeliest when they were written."""
    return sorted(range(len(samples)), key=lambda i: -sum(samples[i].base_logprobs))[:n]


@SELECTORS.register
def k_centre(samples: Sequence[Sample], n: int) -> Sequence[int]:
    """Sample 0, then always the one farthest from all chosen (Gonzalez 1985), by share of words to
    edit.
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
    """n of the samples of one prompt, in the order in which they were chosen."""
    places = list(SELECTORS.build(selector)(samples, n))
    if (
        len(set(places)) != n
        or len(places) != n
        or not all(0 <= place < len(samples) for place in places)
    ):
        raise ValueError(
            f"selector {selector!r} must choose {n} different places below {len(samples)}, not {places}"
        )
    return [samples[place] for place in places]

"""Which answer most samples of a problem give, and whether it is right.

Samples give the same answer if their readings are equal: texts in which equal answers look equal,
such as the final number of a solution (`Task.read`).
"""

from collections.abc import Hashable, Sequence

from .solutions import solution_classes


def answer_classes(texts: Sequence[str], readings: Sequence[str | None]) -> list[int | None]:
    """Return the class of each sample's answer: 0, 1, ... in order of first appearance.

    The class is None where nothing could be read. If that is so for all samples, similar texts are
    one answer (`solution_classes`).
    """
    if len(texts) != len(readings):
        raise ValueError(f"there are {len(texts)} texts, but {len(readings)} readings")
    if all(reading is None for reading in readings):
        return list(solution_classes(texts))
    numbers: dict[Hashable, int] = {}
    return [
        None if reading is None else numbers.setdefault(reading, len(numbers))
        for reading in readings
    ]


def most_voted(classes: Sequence[int | None]) -> int | None:
    """Return the first sample of the largest class, None if nobody voted.

    Of several largest classes, the one that appears first wins.
    """
    votes = [classes.count(number) if number is not None else 0 for number in classes]
    return votes.index(max(votes)) if any(votes) else None


def majority_at_k(
    classes: Sequence[int | None], correct: Sequence[bool], ks: Sequence[int]
) -> dict[str, float]:
    """Return {"maj@2": ..., "maj@4": ...}: 1 if the vote of the first k samples is right, else 0.

    Maj@k of one problem; its mean over problems is what papers call maj@k or self-consistency
    (Wang et al. 2022, arXiv:2203.11171).
    """
    found = {}
    for k in ks:
        if not 1 <= k <= len(correct):
            raise ValueError(f"k must be from 1 to n = {len(correct)}, not {k}")
        winner = most_voted(classes[:k])
        found[f"maj@{k}"] = float(winner is not None and bool(correct[winner]))
    return found

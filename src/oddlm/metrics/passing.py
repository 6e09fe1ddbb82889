"""How often each problem is solved: Pass@1, Pass@k, different solutions among k, coverage.

`correct` is [problems, n]: whether sample i of a problem is right, in the order in which the
samples were drawn.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def pass_at_1(correct: ArrayLike) -> Floats:
    """Return c/n, the share of a problem's samples that are right.

    It is not whether the first sample is right: repulsion never moves that one.
    """
    share: Floats = _verdicts(correct).mean(axis=1, dtype=np.float64)
    return share


def pass_at_k(correct: ArrayLike, k: int) -> Floats:
    """Return 1 if one of the first k samples is right, else 0; k = 1 is `pass_at_1`.

    From k = 2 on it never falls as k grows; Pass@1 looks at all n samples and may exceed Pass@2.
    """
    verdicts = _verdicts(correct)
    _check_k(k, verdicts.shape[1])
    return pass_at_1(verdicts) if k == 1 else _solved(verdicts[:, :k])


def pass_at_k_unbiased(correct: ArrayLike, k: int, *, coupled: bool) -> Floats:
    """Return 1 - C(n - c, k) / C(n, k), the mean of Pass@k over all choices of k samples.

    The estimator is that of Chen et al. 2021 (arXiv:2107.03374).

    coupled: the samples of a problem saw each other (repulsion). Choosing k of them is then not the
    same as drawing k: the estimate is biased, and a warning reports that.
    """
    verdicts = _verdicts(correct)
    n = verdicts.shape[1]
    _check_k(k, n)
    if coupled:
        message = (
            "the unbiased Pass@k is for independent samples; "
            "for coupled samples (repulsion) use pass_at_k, which takes the first k"
        )
        warnings.warn(message, stacklevel=2)
    wrong = n - verdicts.sum(axis=1)
    drawn = np.arange(k)
    all_wrong = np.clip(wrong[:, None] - drawn, 0, None) / (n - drawn)  # [problems, k]
    estimate: Floats = 1.0 - all_wrong.prod(axis=1)
    return estimate


def solutions_at_k(classes: Sequence[Sequence[int | None]] | NDArray[Any], k: int) -> Floats:
    """Return the number of different right solutions among the first k samples.

    classes: [problems, n], the number of each sample's class of right solutions, None for a wrong
    sample (`right_classes`).
    """
    table = _table("classes", classes, np.object_)
    _check_k(k, table.shape[1])
    for value in table.flat:
        if value is not None and (
            isinstance(value, bool | np.bool_)
            or not isinstance(value, int | np.integer)
            or value < 0
        ):
            raise ValueError(
                f"classes must hold only None and integers of at least 0, not {value!r}"
            )
    return np.array([len(set(row) - {None}) for row in table[:, :k].tolist()], dtype=np.float64)


def coverage(settings: Sequence[ArrayLike]) -> Floats:
    """Return 1 if any sample under any setting is right, else 0.

    All settings must have the same problems; n may differ.
    """
    if len(settings) == 0:
        raise ValueError("coverage needs at least one setting")
    solved = [_solved(_verdicts(correct)) for correct in settings]
    counts = [len(s) for s in solved]
    if len(set(counts)) > 1:
        raise ValueError(f"all settings must have the same problems, but they have {counts}")
    union: Floats = np.max(solved, axis=0)
    return union


def summarise(correct: Sequence[Sequence[bool]], ks: Sequence[int]) -> dict[str, float]:
    """Return {"pass@1": ..., "pass@4": ...}, the means over the problems for each k."""
    if len(ks) == 0:
        raise ValueError("ks is empty: give at least one k, such as 1")
    verdicts = _verdicts(correct)
    return {f"pass@{k}": float(pass_at_k(verdicts, k).mean()) for k in ks}


def _solved(verdicts: NDArray[np.bool_]) -> Floats:
    return np.asarray(verdicts.any(axis=1), dtype=np.float64)


def _verdicts(correct: ArrayLike) -> NDArray[np.bool_]:
    """Return `correct` as a table of booleans [problems, n]."""
    table = _table("correct", correct)
    if table.dtype != np.bool_ and not (
        np.issubdtype(table.dtype, np.number) and np.isin(table, (0, 1)).all()
    ):
        raise ValueError("correct must hold only True and False")
    return table.astype(np.bool_)


def _table(name: str, rows: Any, dtype: type[np.object_] | None = None) -> NDArray[Any]:
    """Return the table [problems, n]; raise ValueError if it is ragged or empty."""
    if not isinstance(rows, np.ndarray):
        rows = list(rows)
        lengths = sorted({len(row) if hasattr(row, "__len__") else -1 for row in rows})
        if len(lengths) > 1:
            raise ValueError(
                f"every problem must have the same number of samples, but they have {lengths}"
            )
    table = np.asarray(rows, dtype=dtype)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"{name} must have shape [problems, n] with at least one of each, "
            f"not {list(table.shape)}"
        )
    return table


def _check_k(k: int, n: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= n:
        raise ValueError(f"k must be an integer from 1 to n = {n}, not {k!r}")

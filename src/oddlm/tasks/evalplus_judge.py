"""Tests of EvalPlus as the judge runs them: a program and the reference get the same inputs.

The sandbox runs the text of this file (sandbox/inside/judge.py), so it needs nothing but the
standard library. The rules are those of evalplus 0.3 (evalplus/eval, Liu et al. 2023,
arXiv:2305.01210; Apache-2.0).
"""

import copy
import json
import math
import signal
import time
from collections.abc import Callable
from typing import Any

FLOATS_ATOL, RTOL = 1e-6, 1e-7
# A call may take this long, or this many times as long as the reference. The former is 1 s in
# evalplus; here, arguments and results cross between processes.
LEAST_S, TIMES = 4.0, 4.0
Judge = Callable[[Any, Any, list[Any], float], bool]


def check(program: Any, solution: str, name: str, task: str, inputs: str, atol: float) -> None:
    """Raise AssertionError at the first of the inputs, a JSON list, that a program gets wrong."""
    scope: dict[str, Any] = {}
    exec(solution, scope)
    right = SPECIAL.get(name)
    for number, arguments in enumerate(converted(task, json.loads(inputs)), start=1):
        before = time.perf_counter()
        expected = scope[name](*copy.deepcopy(arguments))
        limit = max(LEAST_S, TIMES * (time.perf_counter() - before))
        given = copy.deepcopy(arguments)
        with _Alarm(f"input {number}: took longer than {limit:.3g} s", limit):
            found = program(*given)
        if right is not None:
            assert right(found, expected, arguments, atol), f"input {number}"
            continue
        if atol == 0 and _floats(expected):
            atol = FLOATS_ATOL  # for the rest of the inputs, too, as there
        assert found == expected or (
            atol != 0 and type(found) is type(expected) and _close(found, expected, atol)
        ), f"input {number}: expected {expected!r:.80}"


class _Alarm:
    def __init__(self, message: str, seconds: float) -> None:
        self.message, self.seconds = message, seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def _ring(self, *_: Any) -> None:
        raise AssertionError(self.message)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _floats(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(one, float) for one in value)
    return isinstance(value, float)


def _close(found: Any, expected: Any, atol: float) -> bool:
    if isinstance(expected, list | tuple):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(expected)
            and all(_close(*pair, atol) for pair in zip(found, expected, strict=True))
        )
    if not isinstance(found, int | float | complex) or not isinstance(
        expected, int | float | complex
    ):
        return False
    return found == expected or abs(found - expected) <= atol + RTOL * abs(expected)


# Problems with several right answers, or whose reference is ambiguous.


def _root(found: Any, _: Any, arguments: list[Any], atol: float) -> bool:
    value = sum(c * math.pow(found, i) for i, c in enumerate(arguments[0]))
    return bool(abs(value) <= atol)


def _or_zero(found: Any, expected: Any, *_: Any) -> bool:
    return bool(found == expected or found == 0)


def _pyramid(found: Any, expected: Any, arguments: list[Any], atol: float) -> bool:
    """The height may be that of the apex, too, instead of that of a side."""
    edge, height = arguments
    other = round(edge**2 + 2 * edge * math.hypot(edge / 2, height))
    return bool(found == expected or abs(found - other) <= atol)


def _digits(found: Any, expected: Any, arguments: list[Any], _: float) -> bool:
    """The difference may be taken digit by digit."""
    size = max(len(str(number)) for number in arguments)
    pairs = zip(*(str(number).zfill(size) for number in arguments), strict=True)
    return bool(found == expected or found == sum(abs(int(a) - int(b)) for a, b in pairs))


def _same_set(found: Any, expected: Any, *_: Any) -> bool:
    return set(found) == set(expected)


def _match(found: Any, expected: Any, *_: Any) -> bool:
    """A match or a bool: whether there is one is what counts."""
    return (found if isinstance(found, bool) else found is not None) == (expected is not None)


SPECIAL: dict[str, Judge] = {
    "find_zero": _root,
    "are_equivalent": lambda *_: True,
    "sum_div": _or_zero,
    "surface_Area": _pyramid,
    "digit_distance_nums": _digits,
    **dict.fromkeys(("check_str", "text_match_three", "text_starta_endb"), _match),
    **dict.fromkeys(
        (
            *("similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly"),
            *("larg_nnum", "intersection_array", "find_dissimilar", "Diff"),
        ),
        _same_set,
    ),
}

# JSON has neither tuples nor sets nor complex numbers: how the arguments of MBPP+ are to be read,
# by task_id (evalplus/data/mbpp.py).


def _deep(value: Any) -> Any:
    return tuple(map(_deep, value)) if isinstance(value, list) else value


def _inner(values: Any) -> Any:
    return [tuple(one) if isinstance(one, list) else one for one in values]


def _sets(values: Any) -> Any:
    return [set(one) if isinstance(one, list) and one else {} for one in values]


def _as_is(value: Any) -> Any:
    return value


def _values(value: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(one) for key, one in value.items()}


Read = Callable[[Any], Any]
# What to do with the first argument, and with every other one.
READ: dict[int, tuple[Read, Read]] = {
    **dict.fromkeys(
        (
            *(2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424),
            *(429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809),
        ),
        (tuple, tuple),
    ),
    **dict.fromkeys(
        (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780),
        (lambda value: [tuple(one) for one in value],) * 2,
    ),
    **dict.fromkeys((75, 413, 444, 753), (lambda value: [tuple(one) for one in value], _as_is)),
    **dict.fromkeys((106, 750), (_as_is, tuple)),
    115: (_sets, _as_is),
    124: (float, complex),
    **dict.fromkeys((250, 307, 405, 446, 617, 720, 763, 808), (tuple, _as_is)),
    252: (complex, _as_is),
    **dict.fromkeys((259, 401, 445), (lambda value: tuple(tuple(one) for one in value),) * 2),
    278: (_inner, _as_is),
    **dict.fromkeys((580, 615, 791), (_deep, _deep)),
    722: (_values, _as_is),
}


def converted(task: str, inputs: list[list[Any]]) -> list[list[Any]]:
    """Return the inputs of a problem, each the list of its arguments, as Python's own types."""
    kind, _, number = task.partition("/")
    if kind != "Mbpp" or int(number) not in READ:
        return inputs
    first, rest = READ[int(number)]
    return [[first(one[0]), *map(rest, one[1:])] if one else one for one in inputs]

"""Search spaces over the fields of SampleParams. Does not import torch or Optuna.

temperature=0..1.5          a range
alpha=0,1..128:log          0, or a range on a log scale
policy=low_confidence,margin
policy=["margin", {"name": "threshold", "threshold": 0.8}]
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from ...config import check_fields, json_or_text, parse_json, read_toml
from ...params import PUSH, SampleParams

DEFAULT = (
    "alpha=0,1..128:log",
    "temperature=0..1.5",
    "objective=odd,odd_sequential,dpp",
    "alpha_schedule=linear,constant,cosine",
)
_FIRST = ("alpha", "objective")  # drawn first: they decide which other settings matter
DIGITS = 3  # significant digits of a number drawn from a range
_RANGE = re.compile(r"(.+?)\.\.(.+?)(:log)?")


class Suggest(Protocol):
    """The part of an Optuna trial that is used here."""

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> Any: ...

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float: ...

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int: ...


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float
    log: bool
    whole: bool

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"

    def draw(self, name: str, trial: Suggest) -> float:
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return self._rounded(trial.suggest_float(name, self.low, self.high, log=self.log))

    def holds(self, value: Any) -> bool:
        """Return whether this value can be drawn."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high:
            return False
        return value == (int(value) if self.whole else self._rounded(value))

    def _rounded(self, number: float) -> float:
        return min(max(float(f"{number:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True, slots=True)
class Axis:
    """One field: values to choose among, a range, or both."""

    name: str
    values: tuple[Any, ...]
    span: Range | None

    def __str__(self) -> str:
        return f"{self.name}={','.join(self._labels())}"

    def draw(self, trial: Suggest) -> Any:
        if self.span is not None and not self.values:
            return self.span.draw(self.name, trial)
        labels = self._labels()
        chosen = labels.index(trial.suggest_categorical(self.name, labels))
        if chosen < len(self.values):
            return self.values[chosen]
        assert self.span is not None
        return self.span.draw(self._inside, trial)

    def suggested(self, value: Any) -> dict[str, Any]:
        """Return Optuna's parameters of a trial that draws this value.

        Raises ValueError if the value is not in the space.
        """
        for known in self.values:
            if (known, isinstance(known, bool)) == (value, isinstance(value, bool)):
                return {self.name: _label(known)}
        if self.span is None or not self.span.holds(value):
            rounded = self.span is not None and not self.span.whole
            digits = f", whose range has {DIGITS} significant digits" if rounded else ""
            raise ValueError(f"{self.name} {_label(value)} is not in the space {self}{digits}")
        if not self.values:
            return {self.name: value}
        return {self.name: str(self.span), self._inside: value}

    @property
    def _inside(self) -> str:
        """The name of the number drawn from the range, if the axis also has values."""
        return f"{self.name} in {self.span}"

    def examples(self) -> tuple[Any, ...]:
        """Return all values and the ends of the range, all of which must be legal."""
        ends = () if self.span is None else (self.span.low, self.span.high)
        return (*self.values, *(map(int, ends) if self.span and self.span.whole else ends))

    def _labels(self) -> list[str]:
        return [*map(_label, self.values), *([] if self.span is None else [str(self.span)])]


def draw(space: Sequence[Axis], fixed: Mapping[str, Any], trial: Suggest) -> dict[str, Any]:
    """Draw settings from the space, on top of the fixed ones.

    Settings of the repulsion are not drawn for plain sampling.
    """
    drawn = dict(fixed)

    def order(axis: Axis) -> int:
        return _FIRST.index(axis.name) if axis.name in _FIRST else len(_FIRST)

    for axis in sorted(space, key=order):
        plain = drawn.get("alpha") == 0 or drawn.get("objective") == "none"
        if not (plain and axis.name in PUSH):
            drawn[axis.name] = axis.draw(trial)
    return drawn


def read_space(given: Sequence[str], fixed: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Parse axes written as `name=...`, or in the table [space] of a TOML file given by its path.

    Raises ValueError for axes that are wrong, given twice, or also fixed.
    """
    pairs: list[tuple[str, Any]] = []
    for text in given:
        name, equals, values = text.partition("=")
        if equals:
            pairs.append((name.strip(), values.strip()))
        elif text.endswith(".toml"):
            pairs += _from_toml(Path(text)).items()
        else:
            raise ValueError(
                f"--space takes NAME=LOW..HIGH, NAME=A,B,C or a .toml file, not {text!r}"
            )
    if not pairs:
        raise ValueError("the space is empty: give at least one NAME=LOW..HIGH or NAME=A,B,C")
    space = tuple(_axis(name, values) for name, values in pairs)
    names = [axis.name for axis in space]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is in the space twice")
        if name in fixed:
            raise ValueError(f"{name} is both fixed and in the space: remove one of them")
    return space


def read_settings(text: str) -> dict[str, Any]:
    """Parse `{"alpha": 8, "policy": "margin"}` or `alpha=8,policy=margin`."""
    if text.startswith("{"):
        return dict(json_or_text(text))
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError(f"write settings as NAME=VALUE,... or as a JSON object, not {text!r}")
    return {name.strip(): json_or_text(value.strip()) for name, _, value in pairs}


def _from_toml(path: Path) -> dict[str, Any]:
    content = read_toml(path)
    if set(content) != {"space"} or not isinstance(content["space"], dict):
        raise ValueError(
            f"{path} must hold one table, [space], with a line for each setting; "
            f"it holds: {', '.join(content)}"
        )
    return content["space"]


def _axis(name: str, given: Any) -> Axis:
    known = [field for field in SampleParams.model_fields if field != "seed"]
    if name not in known:
        raise ValueError(f"unknown setting {name!r} in the space; known: {', '.join(known)}")
    values: list[Any] = []
    spans: list[Range] = []
    for part in _parts(name, given):
        match = _RANGE.fullmatch(part) if isinstance(part, str) else None
        if match:
            spans.append(_range(name, match[1], match[2], log=bool(match[3])))
        else:
            values.append(part)
    if len(spans) > 1:
        raise ValueError(f"{name} has two ranges; at most one is possible, next to values")
    axis = Axis(name, tuple(values), spans[0] if spans else None)
    labels = [_label(value) for value in values]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{name} has the value {label} twice")
    for value in axis.examples():
        check_fields(SampleParams, {name: value})
    return axis


def _parts(name: str, given: Any) -> list[Any]:
    """Return values and ranges, the latter still as text."""
    if isinstance(given, str):
        try:
            found = (
                parse_json(given)
                if given.startswith("[")
                else [_part(text.strip()) for text in given.split(",")]
            )
        except ValueError as error:
            raise ValueError(f"{name}: {given!r:.100} is not a JSON list ({error})") from error
    else:
        found = given if isinstance(given, list) else [given]
    if not found or "" in found:
        raise ValueError(f"{name} needs values: LOW..HIGH, LOW..HIGH:log or A,B,C; not {given!r}")
    return list(found)


def _part(text: str) -> Any:
    return text if _RANGE.fullmatch(text) else json_or_text(text)


def _range(name: str, low: str, high: str, *, log: bool) -> Range:
    kinds = {
        SampleParams.model_fields[name].annotation,
        *get_args(SampleParams.model_fields[name].annotation),
    }
    if not kinds & {int, float}:
        raise ValueError(f"{name} is not a number: list its values as A,B,C, not {low}..{high}")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise ValueError(f"{name}: a range is LOW..HIGH with numbers, not {low}..{high}") from None
    whole = float not in kinds
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise ValueError(
            f"{name}: the low end of a range must be below its high end, not {low}..{high}"
        )
    if whole and not all(end.is_integer() for end in ends):
        raise ValueError(f"{name} is an integer, but {low}..{high} is not a range of integers")
    if log and ends[0] <= 0:
        raise ValueError(
            f"{name}: a log scale must start above 0, not at {low}; "
            f"add 0 as a value: {name}=0,1..{high}:log"
        )
    return Range(*ends, log=log, whole=whole)


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)

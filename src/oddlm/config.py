"""Settings as text: TOML and JSON read with care, and validation whose complaints fit on a line.
Imports no torch.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

Seed = Annotated[
    int, Field(ge=-(2**63), lt=2**63)
]  # what the noise, databases and HTTP can all hold
Checked = TypeVar("Checked", bound=BaseModel)
T = TypeVar("T")
DEEPEST = 32
TOO_DEEP = f"lists and tables are nested more than {DEEPEST} deep"


def no_flag(given: Any) -> Any:
    """pydantic would read true as 1, and a seed that is true is a mistake."""
    if isinstance(given, bool):
        raise ValueError(f"must be a number, not {json.dumps(given)}")
    return given


def read_toml(path: Path) -> dict[str, Any]:
    """ValueError for what cannot be read, or is no TOML."""
    try:
        return _shallow(tomllib.loads(path.read_text()))
    except RecursionError:
        raise ValueError(f"{path}: {TOO_DEEP}") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def json_or_text(text: str) -> Any:
    """`8`, `true` or `{"name": "odd"}` as JSON; whatever is none is text."""
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return text


def parse_json(text: str) -> Any:
    """JSON as people write it."""
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise ValueError(f"{text[:30]}...: {TOO_DEEP}") from None


def _shallow(value: T) -> T:
    """The same; RecursionError for lists and tables inside each other beyond anything that a
    setting needs.
    """
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, list | dict)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return value
    raise RecursionError


def checked(cls: type[Checked], content: Mapping[str, Any]) -> Checked:
    """cls(**content); what is wrong is a ValueError in one line that says what is allowed."""
    try:
        return cls.model_validate(content)
    except ValidationError as error:
        raise _complaints(cls, error.errors(include_url=False)) from None


def check_fields(cls: type[BaseModel], content: Mapping[str, Any]) -> None:
    """ValueError for values that are wrong by themselves; whether they go together is not asked."""
    try:
        cls.model_validate(content)
    except ValidationError as error:
        if alone := [e for e in error.errors(include_url=False) if e["loc"]]:
            raise _complaints(cls, alone) from None


def _complaints(cls: type[BaseModel], errors: Sequence[Any]) -> ValueError:
    return ValueError("; ".join(_complaint(cls, e) for e in errors))


def _complaint(cls: type[BaseModel], error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        said = error["msg"].removeprefix("Value error, ")
        given = (
            "" if error["type"] == "value_error" else f", not {error['input']!r:.100}"
        )  # validators of ours say it all
        return f"{where}: {said}{given}" if where else said
    for part in error["loc"][:-1]:
        field = cls.model_fields.get(str(part))
        cls = field.annotation if field is not None and isinstance(field.annotation, type) else cls
    return f"unknown field {where!r}; known: {', '.join(cls.model_fields)}"

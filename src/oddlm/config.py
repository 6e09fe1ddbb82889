"""Settings as text: reading TOML and JSON, and validation with one-line error messages.

This module does not import torch.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

# 64 bits: the noise, databases and HTTP can all hold that.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Checked = TypeVar("Checked", bound=BaseModel)
T = TypeVar("T")
DEEPEST = 32
TOO_DEEP = f"lists and tables are nested more than {DEEPEST} deep"


def no_flag(given: Any) -> Any:
    """Reject booleans for numbers: pydantic would read true as 1."""
    if isinstance(given, bool):
        raise ValueError(f"must be a number, not {json.dumps(given)}")
    return given


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise ValueError if it cannot be read or is not TOML."""
    try:
        return _shallow(tomllib.loads(path.read_text()))
    except RecursionError:
        raise ValueError(f"{path}: {TOO_DEEP}") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error


def json_or_text(text: str) -> Any:
    """Parse `8`, `true` or `{"name": "odd"}` as JSON; anything without braces is text."""
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        if text.lstrip().startswith("{"):
            raise ValueError(
                f'{text!r:.100} is not a JSON object such as {{"name": "odd"}} ({error})'
            ) from None
        return text


def parse_options(text: str, form: str) -> dict[str, Any]:
    """Parse `workers=4,timeout=60`, the options behind a name; may be empty.

    form: how name and options are written, for the message.
    """
    given: dict[str, Any] = {}
    for pair in text.split(",") if text else ():
        key, equals, value = pair.partition("=")
        if not key.strip() or not equals:
            raise ValueError(f"write {form}, not {text!r}")
        if key.strip() in given:
            raise ValueError(f"{key.strip()} is given twice in {text!r}")
        given[key.strip()] = json_or_text(value)
    return given


def parse_json(text: str) -> Any:
    """Parse JSON that is not nested too deeply."""
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise ValueError(f"{text[:30]}...: {TOO_DEEP}") from None


def _shallow(value: T) -> T:
    """Return the value; raise RecursionError if it is nested deeper than any setting needs."""
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
    """Return cls(**content), or raise a one-line ValueError that says what is allowed."""
    try:
        return cls.model_validate(content)
    except ValidationError as error:
        raise _complaints(cls, error.errors(include_url=False)) from None


def check_fields(cls: type[BaseModel], content: Mapping[str, Any]) -> None:
    """Raise ValueError for invalid values, without checking whether they fit together."""
    try:
        cls.model_validate(content)
    except ValidationError as error:
        if alone := [e for e in error.errors(include_url=False) if e["loc"]]:
            raise _complaints(cls, alone) from None


def _complaints(cls: type[BaseModel], errors: Sequence[Any]) -> ValueError:
    strangers = [e for e in errors if e["type"] == "extra_forbidden"]
    # One of several unknown fields will do: all of them would be named with all known ones.
    shown = [e for e in errors if e not in strangers] + strangers[:1]
    return ValueError("; ".join(_complaint(cls, e) for e in shown))


def _complaint(cls: type[BaseModel], error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        message = error["msg"].removeprefix("Value error, ")
        # Messages of our own validators are complete, and what is missing has no value.
        complete = error["type"] in ("value_error", "missing")
        given = "" if complete else f", not {error['input']!r:.100}"
        return f"{where}: {message}{given}" if where else message
    for part in error["loc"][:-1]:
        field = cls.model_fields.get(str(part))
        cls = field.annotation if field is not None and isinstance(field.annotation, type) else cls
    return f"unknown field {where!r}; known: {', '.join(cls.model_fields)}"

"""The help of every command: it fits 80 columns, gives an example that parses, explains options."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from rich.cells import cell_len
from typer.main import get_command
from typer.testing import CliRunner

from oddlm.cli import app
from oddlm.cli.app import ORDER

ROOT = get_command(app)
EXAMPLE = re.compile(r"^Example: (.+)$", re.MULTILINE)


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*path, name))


COMMANDS = dict(walk(ROOT))
every_command = pytest.mark.parametrize(
    "path", COMMANDS, ids=[" ".join(("oddlm", *path)) for path in COMMANDS]
)


def parse(words: list[str]) -> tuple[tuple[str, ...], Any]:
    """Parse a command line without running it; return the command's path and its context."""
    path: tuple[str, ...] = ()
    command, context = ROOT, None
    while True:
        name = " ".join(("oddlm", *path))
        context = command.make_context(name, list(words), parent=context)
        if not hasattr(command, "commands"):
            return path, context
        words = [*getattr(context, "_protected_args", ()), *context.args]
        if not words:
            return path, context
        chosen, command, words = command.resolve_command(context, words)
        path = (*path, chosen)


def test_there_are_many_commands():
    assert {("demo",), ("eval",), ("runs", "sql"), ("bench", "overhead")} <= set(COMMANDS)
    assert set(ORDER) == {path[0] for path in COMMANDS if path}


@every_command
def test_help_fits_80_columns(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line for line in lines if cell_len(line) > 80] == []
    assert any(line.strip().startswith("Example: oddlm ") for line in lines)
    assert "…" not in result.output, "nothing is cut"


@every_command
def test_examples_parse(path):
    examples = EXAMPLE.findall(COMMANDS[path].help)
    assert examples
    used = []
    for example in examples:
        name, *words = shlex.split(example)
        assert name == "oddlm"
        used.append(parse(words)[0])
    assert any(one[: len(path)] == path for one in used), "one of them is of this command"


@pytest.mark.parametrize(
    "words", ["eval", "eval countdown --alfa 8", "sample x --n no", "evil", "runs sql"]
)
def test_an_example_that_does_not_parse_is_noticed(words):
    with pytest.raises(Exception) as error:  # noqa: PT011 -- typer has its own copy of click's
        parse(words.split())
    assert error.value.exit_code == 2


@every_command
def test_every_parameter_is_explained(path):
    command = COMMANDS[path]
    context = command.make_context("oddlm", [], resilient_parsing=True)
    for parameter in command.get_params(context):
        text = parameter.help
        assert text, parameter.name
        assert text[0].isupper(), text
        assert text.endswith("."), text
        before, *defaults = text.split("Default: ")
        assert "default" not in before.lower(), text
        if parameter.default is not None and not isinstance(parameter.default, bool):
            assert [default.rstrip(".") for default in defaults] == [shown(parameter.default)]
        else:
            assert len(defaults) <= 1


def shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


@every_command
def test_long_lists_of_options_are_in_panels(path):
    loose = [
        option.name
        for option in COMMANDS[path].params
        if option.param_type_name == "option" and not option.rich_help_panel
    ]
    assert len(loose) <= 4, loose


@pytest.mark.parametrize("name", ["max-n", "max-queue", "max-body"])
def test_the_limits_of_a_server_have_a_panel(name):
    panels = {one.opts[0]: one.rich_help_panel for one in COMMANDS["serve",].params}
    assert panels[f"--{name}"] == "Limits"

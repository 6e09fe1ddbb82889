"""The reference pages, made from the code when the site is built."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel
from typer.main import get_command

from oddlm import presets
from oddlm.cli import app
from oddlm.params import SampleParams
from oddlm.spec import Loading, RunSpec

# `Help. Default: 2.  [x>=1]`
FACTS = re.compile(r"^(?P<text>.*?)(?:  \[(?P<facts>[^\[\]]*)\])?$", re.DOTALL)
EXAMPLE = re.compile(r"^Example: ", re.MULTILINE)


def table(*columns: str, rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Prose whose angle brackets are not HTML."""
    return text.replace("<", "&lt;")


# The command line.


def cli_page() -> str:
    root = get_command(app)
    parts = [
        "# Command line\n",
        "Made from the command line itself; `oddlm COMMAND --help` prints the same.\n",
    ]
    found = list(commands(root))
    parts.append(table("command", "what it does", rows=[_command_row(*one) for one in found]))
    parts += [_command(name, command) for name, command in found]
    return "\n".join(parts)


def commands(group: Any, before: str = "oddlm") -> Iterator[tuple[str, Any]]:
    """Every command with its full name; a group that runs by itself is one, too."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        full = f"{before} {name}"
        inner = getattr(command, "commands", None)
        if inner is None or command.invoke_without_command:
            yield full, command
        if inner is not None:
            yield from commands(command, full)


def _command_row(name: str, command: Any) -> list[str]:
    return [f"[`{name}`](#{name.replace(' ', '-')})", _plain(command.help.partition("\n")[0])]


def _command(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    about, *examples = EXAMPLE.split(command.help)
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [
        f"## `{name}` {{#{name.replace(' ', '-')}}}\n",
        _plain(about).strip() + "\n",
        f"```text\n{usage}\n```\n",
    ]
    parts += [f"Example:\n\n```sh\n{' '.join(example.split())}\n```\n" for example in examples]
    panels: dict[str, list[list[str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
        panel = getattr(parameter, "rich_help_panel", None) or usual
        panels.setdefault(panel, []).append(_parameter_row(*record))
    for panel, rows in panels.items():
        parts.append(
            f"**{panel}**\n\n" + table("name", "value", "default", "what it does", rows=rows)
        )
    return "\n".join(parts)


def _parameter_row(names: str, text: str) -> list[str]:
    """A row from a record such as (`--n INT`, `Samples. Default: 16.  [x>=1]`)."""
    name, _, value = names.partition(" ")
    found = FACTS.match(text)
    assert found is not None
    facts = dict(_fact(fact) for fact in (found["facts"] or "").split("; ") if fact)
    value = value.replace(" range", "").strip("<>")
    bounds = facts.get("range", "").replace("<=x<=", " to ")
    bounds = bounds.replace("x>=", "≥ ").replace("x<=", "≤ ")
    about, _, default = found["text"].partition("Default: ")
    default = "required" if "required" in facts else _code(default.removesuffix("."))
    about = _plain(about.strip())
    if "env var" in facts:
        about += f" Environment: `{facts['env var']}`."
    return [f"`{name.rstrip(',')}`", f"{_code(value)} {_plain(bounds)}".strip(), default, about]


def _fact(fact: str) -> tuple[str, str]:
    name, colon, value = fact.partition(": ")
    return (name, value) if colon else (name, "") if name == "required" else ("range", fact)


def _code(text: str) -> str:
    """A value as code; words (with a space) as words."""
    if not text:
        return ""
    return _plain(text) if " " in text else f"`{text}`"


# Settings.

PIECE_PAGES = ("policy", "objective", "feature", "selector")  # of docs/extend
SETTINGS_ABOUT = """Made from the code. A setting has the same name and default in Python, on the
command line, in a sweep's `[params]` and in a request to the server.
"""
NAMED_ABOUT = """A setting that names a piece takes a name, a table with options such as
`{"name": "odd", "enough": 0.6}`, or a dotted path.
"""


def settings_page() -> str:
    named = {name: f"[`{name}`](../extend/{name}.md)" for name in PIECE_PAGES}
    return "\n".join(
        [
            "# Settings\n",
            SETTINGS_ABOUT,
            "## Settings of the sampler {#sampleparams}\n",
            "The fields of `oddlm.SampleParams`.\n",
            model_table(SampleParams, named),
            NAMED_ABOUT,
            "## Presets\n",
            "A preset is expanded on input. Settings given next to it win.\n",
            table("preset", "settings", "what it is", rows=preset_rows()),
            "## Pieces\n",
            "What the settings that name a piece can name; `oddlm names` prints it, too.\n",
            table("setting", "name", "options", "what it does", rows=piece_rows()),
            "## A run {#runspec}\n",
            "The fields of `oddlm.RunSpec`: one setting on one task. Its id is a hash of them.\n",
            model_table(
                RunSpec, {"params": "[`params`](#sampleparams)", "loading": "[`loading`](#loading)"}
            ),
            "## Loading a model {#loading}\n",
            "The options of `oddlm.load` that may change samples, and so are part of a run.\n",
            model_table(Loading),
        ]
    )


def model_table(model: type[BaseModel], names: Mapping[str, str] | None = None) -> str:
    return schema_table(model.model_json_schema(), names)


def schema_table(
    schema: Mapping[str, Any], names: Mapping[str, str] | None = None, anchors: bool = False
) -> str:
    """The fields of a JSON schema."""
    rows = []
    for name, field in schema.get("properties", {}).items():
        required = name in schema.get("required", ())
        nested = any("$ref" in one for one in (field, *field.get("anyOf", ())))
        default = field.get("default", None if not required and not nested else ...)
        shown = "required" if required else "" if default is ... else f"`{json.dumps(default)}`"
        about = _plain(field.get("description", ""))
        rows.append([(names or {}).get(name, f"`{name}`"), kind_of(field, anchors), shown, about])
    return table("name", "type", "default", "what it is", rows=rows)


def kind_of(field: Mapping[str, Any], anchors: bool = False) -> str:
    """The type of a field in words, with its range."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})" if anchors else f"`{name}`"
    if ways := field.get("anyOf") or field.get("oneOf") or field.get("allOf"):
        kinds = dict.fromkeys(kind_of(way, anchors) for way in ways if way.get("type") != "null")
        return " or ".join(kinds) + (", or null" if {"type": "null"} in ways else "")
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return " or ".join(f"`{json.dumps(one)}`" for one in field["enum"])
    kind = field.get("type", "anything")
    if kind == "array":
        inner = kind_of(field["items"], anchors) if "items" in field else "anything"
        return f"list of {inner.replace(', or null', '/null')}"
    return f"{kind}{_range(field)}"


def _range(field: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "&lt;"}
    bounds = [f"{sign} {_number(field[key])}" for key, sign in signs.items() if key in field]
    return f" {' and '.join(bounds)}" if bounds else ""


def _number(value: float) -> str:
    exponent = len(bin(abs(int(value)))) - 3
    if value == int(value) and exponent >= 31 and abs(int(value)) == 1 << exponent:
        return f"{'-' if value < 0 else ''}2^{exponent}"
    return f"{value:g}" if abs(value) < 1e6 else f"{int(value)}"


def preset_rows() -> list[list[str]]:
    return [
        [
            f"`{name}`",
            ", ".join(f"`{k}={v!r}`" for k, v in given.items()),
            _plain(presets.ABOUT[name]),
        ]
        for name, given in presets.PRESETS.items()
    ]


def piece_rows() -> list[list[str]]:
    from oddlm.pieces import PIECES

    rows = []
    for field, registry in PIECES.items():
        for name in registry.names:
            options = ", ".join(
                f"`{key}={value!r}`" for key, value in registry.options(name).items()
            )
            about = (registry.find(name).__doc__ or "").partition("\n")[0]
            rows.append([f"`{field}`", f"`{name}`", options, _plain(about)])
    return rows


# HTTP.


def http_page() -> str:
    document = openapi()
    schemas = document["components"]["schemas"]
    shared = set(SampleParams.model_fields) - {"seed"}
    parts = [
        "# HTTP\n",
        _plain(document["info"]["description"]) + "\n",
        "Made from the server's OpenAPI document, which a server gives at `/openapi.json`.\n",
    ]
    found = [
        (path, method, one)
        for path, ways in document["paths"].items()
        for method, one in ways.items()
    ]
    rows = [[f"[`{m.upper()} {p}`](#{_anchor(m, p)})", _first_line(one)] for p, m, one in found]
    parts.append(table("request", "what it does", rows=rows))
    parts += [_operation(path, method, one) for path, method, one in found]
    parts.append("## Schemas\n")
    for name in sorted(schemas):
        schema = schemas[name]
        parts.append(f"### {name}\n")
        parts.append(_plain(schema.get("description", "")) + "\n")
        own = {
            key: value for key, value in schema.get("properties", {}).items() if key not in shared
        }
        if own != schema.get("properties", {}) and name != "SampleParams":
            parts.append(
                "Every [setting](settings.md#sampleparams) of the sampler is an optional field.\n"
            )
        if name == "SampleParams":
            parts.append("The [settings of the sampler](settings.md#sampleparams).\n")
        elif own:
            parts.append(schema_table({**schema, "properties": own}, anchors=True))
    return "\n".join(parts)


def openapi() -> dict[str, Any]:
    import oddlm
    from oddlm.serve.api import create_app
    from oddlm.serve.settings import ServeSettings

    with TemporaryDirectory() as store:  # a server with a store answers for runs, too
        return create_app(
            oddlm.load("toy"), ServeSettings(model="toy", store=Path(store))
        ).openapi()


def _anchor(method: str, path: str) -> str:
    return f"{method}-{re.sub(r'[^a-z0-9]+', '-', path.lower()).strip('-')}"


def _first_line(operation: Mapping[str, Any]) -> str:
    return _plain(operation.get("description", operation.get("summary", "")).partition("\n")[0])


def _operation(path: str, method: str, one: Mapping[str, Any]) -> str:
    parts = [f"## `{method.upper()} {path}` {{#{_anchor(method, path)}}}\n"]
    parts.append(_plain(one.get("description", "")) + "\n")
    if parameters := one.get("parameters"):
        rows = []
        for parameter in parameters:
            schema = parameter["schema"]
            default = (
                "required" if parameter["required"] else f"`{json.dumps(schema.get('default'))}`"
            )
            rows.append([f"`{parameter['name']}`", parameter["in"], kind_of(schema), default])
        parts.append(table("parameter", "in", "type", "default", rows=rows))
    if body := one.get("requestBody"):
        parts.append(f"Body: {_content(body['content'])}.\n")
    answers = [
        [status, _content(answer.get("content", {}))] for status, answer in one["responses"].items()
    ]
    parts.append(table("status", "answer", rows=answers))
    return "\n".join(parts)


def _content(content: Mapping[str, Any]) -> str:
    told = []
    for media, one in content.items():
        kind = kind_of(one["schema"], True) if "$ref" in json.dumps(one.get("schema", {})) else ""
        told.append(f"{kind} (`{media}`)" if kind and "event-stream" not in media else f"`{media}`")
    return " or ".join(told)


PAGES: Mapping[str, Callable[[], str]] = {
    "cli": cli_page,
    "settings": settings_page,
    "http": http_page,
}

"""One set of defaults: declared, effective, documented, and the same through every door."""

import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest
from fastapi.openapi.utils import get_openapi
from typer.testing import CliRunner

import oddlm
from oddlm import Repulsion, SampleParams, diversify, presets
from oddlm.cli.app import app as cli
from oddlm.core.settings import Settings
from oddlm.drawing import repulsion
from oddlm.experiments.grid import expand
from oddlm.params import NAMED
from oddlm.pieces import PIECES
from oddlm.sampler import Options
from oddlm.serve.request import sample_params
from oddlm.serve.schema import CompletionRequest, SamplerFields
from oddlm.serve.settings import ServeSettings
from oddlm.spec import RunSpec
from oddlm.store import Store

ROOT = Path(__file__).parents[1]
FIELDS = list(SampleParams.model_fields)
LOOP = (
    "fork",
    "stop_at_end",
)  # what the loop itself leaves to its caller: docs/concepts/presets.md says so


@pytest.mark.parametrize("field", FIELDS)
def test_the_declared_default_is_the_effective_one(field):
    declared = SampleParams.model_fields[field].default
    assert getattr(SampleParams(), field) == declared
    assert getattr(SampleParams.model_validate({}), field) == declared
    assert SampleParams.model_json_schema()["properties"][field]["default"] == declared


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "seed"])
def test_a_request_that_says_nothing_gets_it(field):
    body = CompletionRequest.model_validate({"model": "toy", "prompt": "t5"})
    assert getattr(sample_params(ServeSettings(model="toy"), body.settings()), field) == getattr(
        SampleParams(), field
    )


@pytest.mark.parametrize("field", SamplerFields.model_fields)
def test_the_http_schema_says_it(field):
    described = CompletionRequest.model_json_schema()["properties"][field]["description"]
    known = SampleParams.model_fields[field]
    assert described.startswith(known.description.partition("; default: ")[0].rstrip("."))
    if known.default is not None:
        assert f"Default: {json.dumps(known.default)}" in described


def test_the_server_tells_its_defaults(served):
    (card,) = served.get("/v1/models").json()["data"]
    assert card["defaults"] == json.loads(SampleParams().model_dump_json())
    schema = get_openapi(title="", version="", routes=served.app.routes)["components"]["schemas"][
        "SampleParams"
    ]
    assert {name: one.get("default") for name, one in schema["properties"].items()} == card[
        "defaults"
    ]


@pytest.fixture
def served():
    from fastapi.testclient import TestClient

    from oddlm.serve.api import create_app

    with TestClient(create_app(oddlm.load("toy"), ServeSettings(model="toy"))) as client:
        yield client


def test_a_guide_by_default_is_that_of_generate():
    assert Repulsion() == repulsion(SampleParams())
    assert Repulsion.preset("paper") == repulsion(SampleParams(preset="paper"))
    assert Repulsion("dpp") == repulsion(SampleParams(objective="dpp"))


def defaults(function) -> dict:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def test_the_loop_has_them_too():
    shared = {
        name: value
        for name, value in defaults(Settings).items()
        if name in FIELDS and name not in LOOP
    }
    assert len(shared) >= 8
    assert shared == {name: getattr(SampleParams(), name) for name in shared}
    known = {field.name for field in fields(Settings)}
    assert set(Options.__annotations__) == known | {"guide", "history", "templates"}
    own = {
        name: value
        for name, value in defaults(diversify).items()
        if name in FIELDS and name != "objective"
    }
    assert len(own) >= 5
    assert own == {name: getattr(SampleParams(), name) for name in own}


def test_the_loop_draws_what_generate_draws():
    """Token by token, with nothing said but what the loop leaves to its caller."""
    lm = oddlm.load("toy")
    shape = {"n": 4, "length": 8, "steps": 4}
    plain = oddlm.denoise(lm.model, [lm.tokenizer.encode("t5 t6")], **shape)
    assert [
        list(s.tokens) for s in lm.generate("t5 t6", alpha=0, **shape)[0]
    ] == plain.tokens.tolist()
    pushed = oddlm.denoise(
        lm.model, [lm.tokenizer.encode("t5 t6")], guide=Repulsion(), fork=True, **shape
    )
    assert [list(s.tokens) for s in lm.generate("t5 t6", **shape)[0]] == pushed.tokens.tolist()


def test_diversify_pushes_as_a_guide_does():
    lm = oddlm.load("toy")
    seen = []
    shape = {"n": 3, "length": 5, "steps": 2}
    oddlm.denoise(
        lm.model, [[5]], guide=Repulsion(alpha_schedule="constant"), observe=seen.append, **shape
    )
    event = seen[0]
    pushed = diversify(
        event.base_logits,
        event.step.tokens,
        event.step.masked,
        alpha=presets.ALPHA,
        protected=[1, 2],
    )
    assert pushed.equal(event.pushed_logits)


def stored(folder: Path) -> list[RunSpec]:
    store = Store(folder)
    return [store.read(run).spec for run in store.ids()]


def test_commands_that_say_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    default = SampleParams(length=4).canonical()
    plain = SampleParams(length=4, alpha=0).canonical()
    run = CliRunner()
    assert (
        run.invoke(
            cli, ["sample", "t5", "--model", "toy", "--length", "4", "--store", "a"]
        ).exit_code
        == 0
    )
    (spec,) = stored(tmp_path / "a")
    assert spec.params == default
    words = [
        "eval",
        "countdown",
        "--model",
        "toy",
        "--limit",
        "1",
        "--n",
        "2",
        "--length",
        "4",
        "--store",
        "b",
    ]
    assert run.invoke(cli, words).exit_code == 0
    assert {spec.params for spec in stored(tmp_path / "b")} == {default, plain}
    ((spec, _),) = expand(
        {"model": "toy", "task": {"name": "countdown", "params": {"length": 4}}}, "grid", {}
    )
    assert spec.params == default
    assert RunSpec(model="toy").params == SampleParams().canonical()


def test_what_measures_the_published_method_has_the_alpha_of_its_preset():
    from oddlm.cli.bench import overhead
    from oddlm.cli.demo import demo

    assert (
        defaults(overhead)["alpha"] == defaults(demo)["alpha"] == presets.PRESETS["paper"]["alpha"]
    )


def test_every_setting_that_names_a_piece_has_a_registry():
    assert set(PIECES) == set(NAMED)
    for field, registry in PIECES.items():
        default = getattr(SampleParams(), field)
        assert (default if isinstance(default, str) else default["name"]) in registry.names

"""Presets and the objective "auto": names that stand for settings, and are nowhere to be seen behind the door."""

import json
from pathlib import Path
from typing import get_args

import pytest
import torch

import oddlm as package
from oddlm import Repulsion, SampleParams, diversify, presets
from oddlm.experiments.grid import expand
from oddlm.experiments.run import check_spec
from oddlm.params import PUSH, checked
from oddlm.presets import ABOUT, AUTO, PRESETS, PresetName
from oddlm.serve.errors import ApiError
from oddlm.serve.request import sample_params
from oddlm.serve.schema import CompletionRequest
from oddlm.serve.settings import ServeSettings
from oddlm.store import Store

from .test_cli_eval import oddlm  # noqa: F401
from .test_params import spec

SLOW = {"objective": "dpp", "alpha": 2.0, "temperature": 0.9, "policy": "margin", "fork": False}
PAPER = PRESETS["paper"] | {"preset": "paper"}


@pytest.fixture
def others(monkeypatch):
    """Another preset than that of today."""
    monkeypatch.setattr(presets, "PRESETS", {**PRESETS, "careful": SLOW})


def params(**given) -> SampleParams:
    return checked(SampleParams, given)


def test_the_constants_say_what_sampling_takes():
    assert set(AUTO) <= {"alpha", "fork", *PUSH} - {"preset"}, "settings that only matter where something is pushed"
    assert AUTO.items() <= params().model_dump().items(), "the default"
    assert set(get_args(PresetName)) == set(PRESETS)
    assert set(ABOUT) == {"auto", *PRESETS}
    for settings in (AUTO, *PRESETS.values()):
        assert not {"seed", "preset", "length"} & set(settings)
        assert not params(**settings).plain
        check_spec(spec(**settings))


def test_a_preset_is_the_settings_it_stands_for():
    assert params(preset="careful") == params(**PRESETS["careful"])
    assert params(preset="careful").preset is None
    assert spec(preset="careful").id == spec(**PRESETS["careful"]).id
    assert params(preset="paper") == params(**PAPER)
    assert params(preset="paper").preset == "paper"
    assert spec().id == spec(**AUTO).id == spec(objective="auto").id == spec(objective={"name": "auto"}).id


def test_what_is_given_wins(others):
    assert params(preset="careful", alpha=7, policy="random") == params(**SLOW | {"alpha": 7, "policy": "random"})
    assert params(preset="careful", objective="auto") == params(**SLOW | {"objective": AUTO["objective"]})
    assert params(preset="paper", objective="dpp", alpha=3) == params(**PAPER | {"objective": "dpp", "alpha": 3})
    assert params(objective="dpp") == params(**AUTO | {"objective": "dpp"}), "an objective by its name brings nothing along"


def test_plain_sampling_is_one_run():
    ways = [{"alpha": 0}, {"objective": "none"}, {"alpha": 0, "objective": "dpp"}, {"preset": "paper", "alpha": 0}]
    assert len({spec(**settings).id for settings in ways}) == 1
    assert spec(alpha=0, fork=True).id != spec(alpha=0).id


def test_dumped_and_read_again(others):
    for given in ({}, {"preset": "careful"}, {"preset": "paper"}, {"alpha": 0}):
        one = params(**given)
        assert SampleParams.model_validate(one.model_dump()) == SampleParams.model_validate_json(one.model_dump_json()) == one


AUTO_WITH_OPTIONS = {"name": "auto", "enough": 0.3}


@pytest.mark.parametrize(
    "door",
    [
        lambda objective: params(objective=objective),
        lambda objective: params().with_settings({"objective": objective}),
        lambda objective: Repulsion(objective),
        lambda objective: package.load("toy").generate("t5", 2, length=4, objective=objective),
        lambda objective: sample_params(ServeSettings(model="toy"), {"objective": objective}),
        lambda objective: ServeSettings(model="toy", given={"objective": objective}),
        lambda objective: expand({"model": "toy", "task": "countdown", "params": {"objective": objective}}, "grid", {}),
    ],
    ids=["params", "with_settings", "guide", "generate", "request", "operator", "grid"],
)
def test_auto_with_options_is_refused_without_calling_it_known(door):
    with pytest.raises((ValueError, ApiError)) as refused:
        door(AUTO_WITH_OPTIONS)
    told = str(refused.value)
    assert "'auto' has no options" in told
    assert "'enough': 0.5" in told, "what it stands for"
    assert "known:" not in told


def test_auto_with_options_on_the_command_line(oddlm):  # noqa: F811
    for words in (["sample", "t5"], ["eval", "countdown"]):
        code, _, err = oddlm(*words, "--model", "toy", "--objective", json.dumps(AUTO_WITH_OPTIONS))
        assert code == 2
        assert "'auto' has no options" in err
        assert "known:" not in err


def test_an_unknown_objective_lists_what_there_is():
    for door in (lambda: Repulsion("odder"), lambda: sample_params(ServeSettings(model="toy"), {"objective": "odder"})):
        with pytest.raises((ValueError, ApiError), match=r"'odder'; known: dpp, none, odd"):
            door()


@pytest.mark.parametrize("wrong", ["carefull", ["careful"], 3])
def test_an_unknown_preset(wrong):
    with pytest.raises(ValueError, match=r"^preset: Input should be 'paper' or 'careful', not "):
        params(preset=wrong)


def test_a_guide_takes_both():
    assert Repulsion("auto") == Repulsion() == Repulsion(AUTO["objective"], alpha=AUTO["alpha"])
    assert Repulsion("auto", alpha=8, feature="mean_pool") == Repulsion(AUTO["objective"], "mean_pool", 8)
    assert Repulsion(preset="paper") == Repulsion("odd", alpha=8.0, preset="paper")
    assert Repulsion("dpp", alpha=3, preset="paper").alpha == 3
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(4, 6, 11, generator=generator), torch.zeros(4, 6).long(), torch.ones(4, 6, dtype=torch.bool)
    auto = diversify(*batch, alpha=5.0, objective="auto")
    assert torch.equal(auto, diversify(*batch, alpha=5.0, objective=AUTO["objective"]))
    assert not torch.equal(auto, diversify(*batch, alpha=5.0, objective="odd"))
    paper = diversify(*batch, alpha=5.0, preset="paper")
    assert torch.equal(paper, diversify(*batch, alpha=5.0, objective="odd", preset="paper"))
    with pytest.raises(ValueError, match="alpha must be"):
        diversify(*batch, alpha=None)


def test_generate_takes_both(others):
    lm = package.load("toy")

    def drawn(**settings) -> list[tuple[int, ...]]:
        given = {"length": 8, "steps": 4, "progress": False} | settings
        return [sample.tokens for sample in lm.generate("t5 t6", 4, **given)[0]]

    assert drawn() == drawn(objective="auto") == drawn(**AUTO)
    assert drawn() != drawn(objective="odd")
    assert drawn(preset="careful") == drawn(**SLOW) != drawn()
    hot = params(objective="odd", alpha=16, temperature=0.1)
    assert drawn(params=hot, preset="careful") == drawn(**SLOW), "the later word wins"


def test_a_grid_takes_both(others):
    task = {"name": "countdown", "params": {"temperature": 1}}
    content = {"model": "toy", "task": task, "params": {"length": 8, "objective": "dpp"}}
    ((one, _),) = expand(content, "grid", {})
    assert one.params == params(length=8, objective="dpp", temperature=1).canonical(), "a task's table brings no objective"
    ((one, _),) = expand(content | {"params": {"preset": "careful", "alpha": 5}}, "grid", {})
    assert one.params == params(**SLOW | {"alpha": 5, "temperature": 1, "length": one.params.length}).canonical()


@pytest.mark.parametrize(
    ("operator", "request_", "expected"),
    [
        ({}, {}, AUTO),
        ({"alpha": 9}, {}, AUTO | {"alpha": 9}),
        ({}, {"objective": "odd"}, AUTO | {"objective": "odd"}),
        ({"temperature": 0.2, "alpha": 9}, {"preset": "careful"}, SLOW),
        ({"temperature": 0.2}, {"preset": "careful", "alpha": 1}, SLOW | {"alpha": 1}),
        ({"preset": "careful"}, {"temperature": 1}, SLOW | {"temperature": 1}),
        ({"objective": "dpp", "fork": True}, {"objective": "auto"}, AUTO),
        ({"fork": True}, {"fork": "auto"}, AUTO),
        ({}, {"preset": "paper"}, PAPER),
        ({"objective": "dpp"}, {"preset": "paper"}, PAPER),
        ({"preset": "paper"}, {"objective": "dpp"}, PAPER | {"objective": "dpp"}),
    ],
)
def test_a_request_goes_before_the_operator(others, operator, request_, expected):
    settings = ServeSettings(model="toy", given=operator)
    assert sample_params(settings, {"seed": 0, **request_}) == params(**expected)


def test_a_request_names_a_preset():
    body = {"model": "toy", "prompt": "t5", "max_tokens": 8, "seed": 3}
    for name in get_args(PresetName):
        asked = CompletionRequest.model_validate({**body, "preset": name}).settings()
        assert sample_params(ServeSettings(model="toy"), asked) == params(preset=name, length=8, seed=3)
    with pytest.raises(ValueError, match="Input should be 'paper' or 'careful'"):
        CompletionRequest.model_validate({**body, "preset": "carefull"})


def stored() -> set[str]:
    """The settings of all runs."""
    store = Store(Path("runs"))
    return {store.read(run).spec.params.model_dump_json() for run in store.ids()}


def test_commands_take_both(oddlm, others):  # noqa: F811
    short = ["--model", "toy", "--n", "2", "--length", "4"]
    assert oddlm("sample", "t5", *short, "--set", "preset=careful")[0] == 0
    assert stored() == {params(**SLOW, length=4).canonical().model_dump_json()}
    Path("in.jsonl").write_text('{"prompt": "t5"}\n')
    assert oddlm("generate", "--in", "in.jsonl", "--out", "out.jsonl", *short, "--objective", "auto", "--alpha", "1")[0] == 0
    assert params(**AUTO | {"alpha": 1}, length=4).canonical().model_dump_json() in stored()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--set", "preset=careful"], [SLOW]),
        (["--set", "preset=careful", "--alpha", "1,5"], [SLOW | {"alpha": 1}, SLOW | {"alpha": 5}]),
        ([], [AUTO]),
        (["--objective", "auto,odd"], [AUTO, AUTO | {"objective": "odd"}]),
        (["--objective", "auto,odd", "--alpha", "1"], [AUTO | {"alpha": 1}, AUTO | {"objective": "odd", "alpha": 1}]),
    ],
    ids=str,
)
def test_eval_measures_a_preset_beside_plain_sampling(oddlm, others, words, expected):  # noqa: F811
    code, _, err = oddlm("eval", "countdown", "--model", "toy", "--n", "1", "--limit", "1", "--length", "4", *words)
    assert (code, err) == (0, "")
    wanted = [params(**settings, length=4).canonical() for settings in expected]
    plain = [one.model_copy(update={"alpha": 0.0, "fork": False}).canonical() for one in wanted]
    assert stored() == {one.model_dump_json() for one in (*wanted, *plain)}


def test_names_say_what_they_stand_for(oddlm):  # noqa: F811
    out = oddlm("names")[1]
    assert all(f" {name} " in out for name in ("auto", *get_args(PresetName)))

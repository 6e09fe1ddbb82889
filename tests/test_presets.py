"""Presets: names that stand for settings and are replaced by them on input."""

from pathlib import Path
from typing import get_args

import pytest
import torch

import oddlm as package
from oddlm import Repulsion, SampleParams, diversify, presets
from oddlm.config import checked
from oddlm.experiments.grid import expand
from oddlm.experiments.plan import check_spec
from oddlm.params import PUSH
from oddlm.presets import ABOUT, PRESETS, PresetName
from oddlm.serve.errors import ApiError
from oddlm.serve.request import sample_params
from oddlm.serve.schema import CompletionRequest
from oddlm.serve.settings import ServeSettings
from oddlm.store import Store

from .cli.test_eval import oddlm  # noqa: F401
from .test_params import spec

SLOW = {
    "objective": "dpp",
    "alpha": 2.0,
    "alpha_end": 1.0,
    "temperature": 0.9,
    "policy": "margin",
    "fork": False,
}
AUTO, PAPER = PRESETS["auto"], PRESETS["paper"]


@pytest.fixture
def others(monkeypatch):
    """Another preset than that of today."""
    monkeypatch.setattr(presets, "PRESETS", {**PRESETS, "careful": SLOW})


def params(**given) -> SampleParams:
    return checked(SampleParams, given)


def test_the_constants_say_what_sampling_takes():
    assert AUTO.items() <= params().model_dump().items(), "the default"
    assert set(get_args(PresetName)) == set(PRESETS) == set(ABOUT)
    for settings in PRESETS.values():
        assert set(settings) == set(AUTO) <= {"alpha", "fork", *PUSH}, (
            "alike, and only about the push"
        )
        assert not params(**settings).plain
        check_spec(spec(**settings))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_settings_it_stands_for(name):
    assert params(preset=name) == params(**PRESETS[name])
    assert params(preset=name).preset is None
    assert "preset" not in params(preset=name).model_dump()
    assert spec(preset=name).id == spec(**PRESETS[name]).id
    assert (spec().id == spec(preset=name).id) == (name == "auto")


def test_what_is_given_wins(others):
    assert params(preset="careful", alpha=7, policy="random") == params(
        **SLOW | {"alpha": 7, "policy": "random"}
    )
    assert params(preset="paper", objective="dpp", alpha=3) == params(
        **PAPER | {"objective": "dpp", "alpha": 3}
    )
    assert params(objective="dpp") == params(**AUTO | {"objective": "dpp"}), (
        "an objective by its name brings nothing along"
    )


def test_plain_sampling_is_one_run():
    ways = [
        {"alpha": 0},
        {"objective": "none"},
        {"alpha": 0, "objective": "dpp"},
        {"preset": "paper", "alpha": 0},
    ]
    assert len({spec(**settings).id for settings in ways}) == 1
    assert spec(alpha=0, fork=True).id != spec(alpha=0).id


def test_dumped_and_read_again(others):
    for given in ({}, {"preset": "careful"}, {"preset": "paper"}, {"alpha": 0}):
        one = params(**given)
        assert (
            SampleParams.model_validate(one.model_dump())
            == SampleParams.model_validate_json(one.model_dump_json())
            == one
        )


def test_an_unknown_objective_lists_what_there_is():
    for door in (
        lambda: Repulsion("odder"),
        lambda: sample_params(ServeSettings(model="toy"), {"objective": "odder"}),
    ):
        with pytest.raises((ValueError, ApiError), match=r"'odder'; known: dpp, none, odd"):
            door()


@pytest.mark.parametrize("wrong", ["carefull", ["careful"], 3])
def test_an_unknown_preset(wrong):
    with pytest.raises(
        ValueError, match=r"^preset: Input should be 'auto', 'careful' or 'paper', not "
    ):
        params(preset=wrong)


def test_a_guide_takes_presets():
    assert (
        Repulsion()
        == Repulsion.preset("auto")
        == Repulsion(AUTO["objective"], alpha=AUTO["alpha"], alpha_end=AUTO["alpha_end"])
    )
    assert Repulsion.preset("auto", alpha=16) == Repulsion(alpha=16) != Repulsion()
    paper = Repulsion.preset("paper")
    assert paper == Repulsion("odd", alpha=8.0, arithmetic="published")
    assert Repulsion.preset("paper", objective="dpp", alpha=3).alpha == 3
    assert Repulsion.preset("careful", feature="mean_pool") == Repulsion("odd", "mean_pool", 2.0)
    with pytest.raises(ValueError, match="auto, careful, paper"):
        Repulsion.preset("carefull")


def test_diversify_has_the_default_objective():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, 11, generator=generator)
    batch = logits, torch.zeros(4, 6).long(), torch.ones(4, 6, dtype=torch.bool)
    auto = diversify(*batch, alpha=5.0)
    assert torch.equal(auto, diversify(*batch, alpha=5.0, objective=AUTO["objective"]))
    assert not torch.equal(auto, diversify(*batch, alpha=5.0, objective="odd"))
    with pytest.raises(ValueError, match="alpha must be"):
        diversify(*batch, alpha=None)


def test_generate_takes_presets(others):
    lm = package.load("toy")

    def drawn(**settings) -> list[tuple[int, ...]]:
        given = {"length": 16, "steps": 16, "progress": False} | settings
        return [sample.tokens for sample in lm.generate("t5 t6", 4, **given)[0]]

    assert drawn() == drawn(preset="auto") == drawn(**AUTO)
    assert drawn() != drawn(objective="dpp")
    assert drawn(preset="careful") == drawn(**SLOW) != drawn()
    hot = params(objective="odd", alpha=16, temperature=0.1)
    assert drawn(params=hot, preset="careful") == drawn(**SLOW), "the later word wins"


def test_a_grid_takes_presets(others):
    task = {"name": "countdown", "params": {"temperature": 1}}
    content = {"model": "toy", "task": task, "params": {"length": 8, "objective": "dpp"}}
    ((one, _),) = expand(content, "grid", {})
    assert one.params == params(length=8, objective="dpp", temperature=1).canonical(), (
        "a task's table brings no objective"
    )
    ((one, _),) = expand(content | {"params": {"preset": "careful", "alpha": 5}}, "grid", {})
    assert (
        one.params
        == params(**SLOW | {"alpha": 5, "temperature": 1, "length": one.params.length}).canonical()
    )


@pytest.mark.parametrize(
    ("operator", "request_", "expected"),
    [
        ({}, {}, AUTO),
        ({"alpha": 9}, {}, AUTO | {"alpha": 9, "alpha_end": 1}),
        ({}, {"objective": "odd"}, AUTO | {"objective": "odd"}),
        ({"temperature": 0.2, "alpha": 9}, {"preset": "careful"}, SLOW),
        ({"temperature": 0.2}, {"preset": "careful", "alpha": 1}, SLOW | {"alpha": 1}),
        ({"preset": "careful"}, {"temperature": 1}, SLOW | {"temperature": 1}),
        ({"objective": "dpp", "fork": True}, {"preset": "auto"}, AUTO),
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
        assert sample_params(ServeSettings(model="toy"), asked) == params(
            preset=name, length=8, seed=3
        )
    with pytest.raises(ValueError, match="'auto', 'careful' or 'paper'"):
        CompletionRequest.model_validate({**body, "preset": "carefull"})


def stored() -> set[str]:
    """The settings of all runs."""
    store = Store(Path("runs"))
    return {store.read(run).spec.params.model_dump_json() for run in store.ids()}


def test_commands_take_presets(oddlm, others):  # noqa: F811
    short = ["--model", "toy", "--n", "2", "--length", "4"]
    assert oddlm("sample", "t5", *short, "--preset", "careful")[0] == 0
    assert stored() == {params(**SLOW, length=4).canonical().model_dump_json()}
    Path("in.jsonl").write_text('{"prompt": "t5"}\n')
    assert (
        oddlm(
            "generate",
            "--in",
            "in.jsonl",
            "--out",
            "out.jsonl",
            *short,
            "--preset",
            "auto",
            "--alpha",
            "1",
        )[0]
        == 0
    )
    assert (
        params(**AUTO | {"alpha": 1, "alpha_end": 1}, length=4).canonical().model_dump_json()
        in stored()
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--preset", "careful"], [SLOW]),
        (["--preset", "careful", "--alpha", "1,5"], [SLOW | {"alpha": 1}, SLOW | {"alpha": 5}]),
        ([], [AUTO]),
        (["--preset", "auto,careful"], [AUTO, SLOW]),
        (
            ["--preset", "auto,careful", "--alpha", "1"],
            [AUTO | {"alpha": 1, "alpha_end": 1}, SLOW | {"alpha": 1}],
        ),
    ],
    ids=str,
)
def test_eval_measures_a_preset_beside_plain_sampling(oddlm, others, words, expected):  # noqa: F811
    code, _, err = oddlm(
        "eval", "countdown", "--model", "toy", "--n", "1", "--limit", "1", "--length", "4", *words
    )
    assert (code, err) == (0, "")
    wanted = [params(**settings, length=4).canonical() for settings in expected]
    plain = [one.model_copy(update={"alpha": 0.0, "fork": False}).canonical() for one in wanted]
    assert stored() == {one.model_dump_json() for one in (*wanted, *plain)}


def test_names_say_what_they_stand_for(oddlm):  # noqa: F811
    out = oddlm("names")[1]
    assert all(f" {name} " in out for name in PRESETS)

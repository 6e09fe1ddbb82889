"""Presets and the objective "auto": names that stand for settings, and are nowhere to be seen behind the door."""

from pathlib import Path
from typing import get_args

import pytest
import torch

import oddlm as package
from oddlm import Repulsion, SampleParams, diversify, presets
from oddlm.diversity.guide import USUAL
from oddlm.evaluate import check_spec
from oddlm.experiments.grid import expand
from oddlm.params import PUSH, checked
from oddlm.presets import ABOUT, AUTO, PRESETS, PresetName
from oddlm.serve.prepare import sample_params
from oddlm.serve.schema import CompletionRequest
from oddlm.serve.settings import ServeSettings
from oddlm.store import Store

from .test_cli_eval import oddlm  # noqa: F401
from .test_params import spec

RICH = {"objective": {"name": "odd", "quality": "none"}, "feature": "mean_pool", "alpha": 3.0, "schedule": "cosine"}
SLOW = {"objective": "dpp", "alpha": 2.0, "temperature": 0.9, "policy": "margin"}
IDS = [  # of runs that were stored before there were presets
    ({"alpha": 0}, "65d0b19c7582"),
    ({"objective": "odd"}, "1cf5a16eb66a"),
    ({"objective": "dpp"}, "7cf7c27c99ba"),
    ({"preset": "paper"}, "7727c5b37e28"),
    ({"preset": "paper", "objective": "dpp", "alpha": 16}, "e454936cc616"),
    ({"objective": "odd", "feature": "mean_pool", "schedule": "cosine"}, "3b739e341c2f"),
    (
        {"objective": "odd", "alpha": 4, "temperature": 1, "fork": True, "length": 24, "steps": 12, "eos": "late"},
        "e32422275048",
    ),
    ({"objective": {"name": "odd", "quality": "none"}, "duplicates": "skip"}, "48361cd35993"),
]


@pytest.fixture
def others(monkeypatch):
    """Another recommendation and another preset than those of today."""
    monkeypatch.setattr(presets, "AUTO", RICH)
    monkeypatch.setattr(presets, "PRESETS", {"careful": SLOW})


def params(**given) -> SampleParams:
    return checked(SampleParams, given)


def test_the_constants_say_what_sampling_takes():
    assert set(AUTO) <= {"alpha", "fork", *PUSH} - {"preset"}, "settings that only matter where something is pushed"
    assert AUTO.get("fork") in (None, "auto"), "which plain sampling does not have"
    assert set(get_args(PresetName)) == {"paper", *PRESETS}
    assert set(ABOUT) == {"auto", "paper", *PRESETS}
    assert AUTO["objective"] not in ("auto", "none")
    for settings in (AUTO, *PRESETS.values()):
        assert not {"seed", "preset", "length"} & set(settings)
        assert not params(**settings).plain
        check_spec(spec(**settings))
    assert {name: SampleParams.model_fields[name].default for name in USUAL} == USUAL


@pytest.mark.parametrize(("settings", "run"), [pytest.param(*each, id=each[1]) for each in IDS])
def test_stored_runs_keep_their_ids(settings, run):
    assert spec(**settings).id == run


@pytest.mark.parametrize(("settings", "run"), [pytest.param(*each, id=each[1]) for each in IDS])
def test_whatever_is_recommended(others, settings, run):
    assert spec(**settings).id == run


def test_a_preset_is_the_settings_it_stands_for():
    for name, settings in PRESETS.items():
        assert params(preset=name) == params(**settings)
        assert params(preset=name).preset is None
        assert spec(preset=name).id == spec(**settings).id
    assert params(preset="paper").preset == "paper"
    assert spec().id == spec(**AUTO).id


def test_what_is_given_wins(others):
    assert params(preset="careful", alpha=7, policy="random") == params(**SLOW | {"alpha": 7, "policy": "random"})
    assert params(feature="max_pool", alpha=0.5) == params(**RICH | {"feature": "max_pool", "alpha": 0.5})
    assert params(preset="careful", objective="auto") == params(**RICH | SLOW | {"objective": RICH["objective"]})
    for asked in ({}, {"objective": "auto"}, {"objective": {"name": "auto"}}):
        assert params(**asked) == params(**RICH)
        assert spec(**asked).id == spec(**RICH).id
    assert params(objective="odd").feature == "max_pool", "an objective by its name brings nothing along"
    assert params(preset="paper") == params(preset="paper", objective="odd", feature="max_pool", alpha=8, schedule="linear")


def test_plain_sampling_is_one_run_whatever_is_recommended(others):
    assert spec(alpha=0).id == spec(objective="none").id == spec(**RICH | {"alpha": 0}).id


def test_dumped_and_read_again(others):
    for given in ({}, {"preset": "careful"}, {"preset": "paper"}, {"alpha": 0}):
        one = params(**given)
        assert SampleParams.model_validate(one.model_dump()) == SampleParams.model_validate_json(one.model_dump_json()) == one


@pytest.mark.parametrize("wrong", ["carefull", ["careful"], 3])
def test_an_unknown_preset(wrong):
    with pytest.raises(ValueError, match=r"^preset: Input should be 'paper' or 'careful', not "):
        params(preset=wrong)


def test_a_guide_takes_auto(others):
    assert Repulsion("auto") == Repulsion(**RICH)
    assert Repulsion("auto", alpha=8, feature="max_pool") == Repulsion(**RICH | {"alpha": 8, "feature": "max_pool"})
    assert Repulsion() == Repulsion("odd", "max_pool", 8.0, "linear", gradient="normalized")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, 11, generator=generator)
    tokens, masked = torch.zeros(4, 6, dtype=torch.long), torch.ones(4, 6, dtype=torch.bool)
    same = {"objective": RICH["objective"], "feature": "mean_pool"}
    auto = diversify(logits, tokens, masked, alpha=5.0, objective="auto")
    assert torch.equal(auto, diversify(logits, tokens, masked, alpha=5.0, **same))
    assert not torch.equal(auto, diversify(logits, tokens, masked, alpha=5.0))
    with pytest.raises(ValueError, match="alpha must be"):
        diversify(logits, tokens, masked, alpha=None)


def test_generate_takes_both(others):
    lm = package.load("toy")

    def drawn(**settings) -> list[tuple[int, ...]]:
        given = {"length": 8, "steps": 4, "progress": False} | settings
        return [sample.tokens for sample in lm.generate("t5 t6", 4, **given)[0]]

    assert drawn() == drawn(objective="auto") == drawn(**RICH)
    assert drawn() != drawn(objective="odd")
    assert drawn(preset="careful") == drawn(**SLOW) != drawn()
    hot = params(objective="odd", alpha=16, temperature=0.1)
    assert drawn(params=hot, preset="careful") == drawn(**SLOW), "the later word wins"


def test_a_grid_takes_both(others):
    task = {"name": "countdown", "params": {"temperature": 1}}
    content = {"model": "toy", "task": task, "params": {"length": 8, "objective": "dpp"}}
    (one,) = expand(content, "grid", {})
    assert one.params == params(length=8, objective="dpp", temperature=1).canonical(), "a task's table brings no objective"
    (one,) = expand(content | {"params": {"preset": "careful", "alpha": 5}}, "grid", {})
    assert one.params == params(**SLOW | {"alpha": 5, "temperature": 1, "length": one.params.length}).canonical()


@pytest.mark.parametrize(
    ("operator", "request_", "expected"),
    [
        ({}, {}, RICH),
        ({"alpha": 9}, {}, RICH | {"alpha": 9}),
        ({}, {"objective": "odd"}, {"objective": "odd"}),
        ({"temperature": 0.2, "alpha": 9}, {"preset": "careful"}, SLOW),
        ({"temperature": 0.2}, {"preset": "careful", "alpha": 1}, SLOW | {"alpha": 1}),
        ({"preset": "careful"}, {"temperature": 1}, SLOW | {"temperature": 1}),
        ({"objective": "dpp"}, {"objective": "auto"}, RICH),
        ({}, {"preset": "paper"}, {"preset": "paper", "objective": "odd"}),
        ({"objective": "dpp"}, {"preset": "paper"}, {"preset": "paper", "objective": "dpp"}),
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
    assert stored() == {params(**SLOW, length=4).model_dump_json()}
    Path("in.jsonl").write_text('{"prompt": "t5"}\n')
    assert oddlm("generate", "--in", "in.jsonl", "--out", "out.jsonl", *short, "--objective", "auto", "--alpha", "1")[0] == 0
    assert params(**RICH | {"alpha": 1}, length=4).model_dump_json() in stored()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--set", "preset=careful"], [SLOW]),
        (["--set", "preset=careful", "--alpha", "1,5"], [SLOW | {"alpha": 1}, SLOW | {"alpha": 5}]),
        ([], [RICH]),
        (
            ["--objective", "auto,odd"],
            [RICH | {"alpha": a} for a in (8, 16)] + [{"objective": "odd", "alpha": a} for a in (8, 16)],
        ),
    ],
    ids=str,
)
def test_eval_measures_a_preset_beside_plain_sampling(oddlm, others, words, expected):  # noqa: F811
    code, _, err = oddlm("eval", "countdown", "--model", "toy", "--n", "1", "--limit", "1", "--length", "4", *words)
    assert (code, err) == (0, "")
    wanted = [params(**settings, length=4).canonical() for settings in expected]
    plain = [one.model_copy(update={"alpha": 0.0}).canonical() for one in wanted]
    assert stored() == {one.model_dump_json() for one in (*wanted, *plain)}


def test_names_say_what_they_stand_for(oddlm):  # noqa: F811
    out = oddlm("names")[1]
    assert all(f" {name} " in out for name in ("auto", *get_args(PresetName)))

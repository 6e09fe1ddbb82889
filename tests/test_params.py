"""A run's id: the same content gives the same id, another content another."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.config import checked
from oddlm.params import SampleParams, SampleSettings
from oddlm.report.compare import baseline
from oddlm.spec import RunSpec


def spec(**changes):
    params = {k: v for k, v in changes.items() if k in SampleParams.model_fields and k != "seed"}
    rest = {k: v for k, v in changes.items() if k not in params}
    return checked(RunSpec, {"model": "toy", "task": "countdown", "params": params, **rest})


@pytest.mark.parametrize(
    "plain",
    [
        {"alpha": 0},
        {"objective": "none"},
        {"objective": {"name": "none"}, "alpha": 3},
        {
            "alpha": 0.0,
            "objective": "dpp",
            "feature": "mean_pool",
            "alpha_schedule": "cosine",
            "arithmetic": "published",
        },
        {"alpha": 0, "duplicates": "skip", "tolerance": 0.1, "gradient": "raw"},
        {"alpha": 0, "alpha_end": 0.5},
    ],
)
def test_plain_runs_are_one_run(plain):
    assert spec(**plain).id == spec(alpha=0, objective="none").id
    assert spec(**plain).id != spec(alpha=8).id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"alpha": 8}, {"alpha": 8.0}),
        ({"objective": "odd"}, {"objective": {"name": "odd"}}),
        ({"length": 32}, {"length": 32, "steps": 32}),
        ({"fork": False}, {"fork": False, "fork_temperature": 0.5}),
        ({"fork": True}, {"fork": "auto"}),
        ({"alpha": 0, "fork": False}, {"alpha": 0}),
        ({}, {"selector": "first"}),
        ({"pool": 32}, {"pool": 32, "selector": {"name": "k_centre"}}),
        ({"fork": True}, {"fork": True, "fork_temperature": 0, "prompt_noise": 0}),
        ({}, {"alpha_end": 0.25}),
        ({}, {"alpha": 16, "alpha_end": 0.25}),
        ({"alpha": 16}, {"alpha": 16, "alpha_end": 1}),
        ({"alpha": 8}, {"preset": "auto", "alpha": 8}),
        ({}, {"loading": {"raw": False, "cache": None}}),
        ({"data": "a/x.jsonl", "data_digest": "00"}, {"data": "b/y.jsonl", "data_digest": "00"}),
        ({"task": "a/own.jsonl", "data_digest": "00"}, {"task": "own.jsonl", "data_digest": "00"}),
    ],
)
def test_spellings_do_not_count(one, other):
    assert spec(**one).id == spec(**other).id


DIFFERENT = [
    {},
    {"alpha": 5},
    {"alpha": 16},
    {"alpha_end": 0.5},
    {"alpha": 0},
    {"alpha": 0, "temperature": 1},
    {"objective": "dpp"},
    {"objective": {"name": "odd", "quality": True}},
    {"n": 8},
    {"task_version": 2},
    {"scorer_version": "1.2"},
    {"sampler_version": 3},
    {"seed": 1},
    {"steps": 32},
    {"prompt_noise": 0.5},
    {"fork": False},
    {"fork": True, "fork_temperature": 0.5},
    {"pool": 32},
    {"pool": 17},
    {"pool": 32, "selector": "first"},
    {"model": "mini"},
    {"task": "gsm8k"},
    {"task": None},
    {"protocol": "paper"},
    {"scorer": "exact"},
    {"exclude_train": True},
    {"data": "x.jsonl"},
    {"data": "x.jsonl", "data_digest": "00"},
    {"data": "x.jsonl", "data_digest": "01"},
    {"loading": {"revision": "v1"}},
    {"loading": {"dtype": "bf16"}},
    {"loading": {"quantize": "nf4"}},
    {"loading": {"raw": True}},
    {"loading": {"cache": "prefix"}},
    {"loading": {"cache": "dual"}},
]


def test_contents_count():
    assert len({spec(**changes).id for changes in DIFFERENT}) == len(DIFFERENT)


def test_the_id_outlives_the_process_and_the_file():
    one = spec(alpha=8, policy={"name": "threshold", "threshold": 0.8})
    assert checked(RunSpec, json.loads(one.model_dump_json())).id == one.id
    text = one.model_dump_json()
    code = f"from oddlm.spec import *; print(RunSpec.model_validate_json({text!r}).id)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == one.id
    )


@given(st.integers(-(2**63), 2**63 - 2), st.text(max_size=20), st.text(max_size=20))
def test_problem_seeds_depend_on_seed_and_problem_alone(seed, one, other):
    a, b = spec(seed=seed), spec(seed=seed, alpha=3, n=4, temperature=0)
    assert a.problem_seed(one) == b.problem_seed(one)
    assert 0 <= a.problem_seed(one) < 2**63
    assert (a.problem_seed(one) == a.problem_seed(other)) == (one == other)
    assert a.problem_seed(one) != spec(seed=seed + 1).problem_seed(one)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": "toy", "taks": "x"}, "unknown field 'taks'; known: model, "),
        (
            {"model": "toy", "params": {"temprature": 1}},
            r"unknown field 'params\.temprature'; known: length, steps",
        ),
        ({"model": "toy", "n": 0}, "n: Input should be greater than or equal to 1, not 0"),
        (
            {"model": "toy", "params": {"alpha": -1}},
            r"params\.alpha: Input should be greater than or equal to 0, not -1",
        ),
        (
            {"model": "toy", "params": {"alpha": float("nan")}},
            r"params\.alpha: Input should be a finite number",
        ),
        (
            {"model": "toy", "params": {"pool": 15}},
            "pool must be at least n.*: 15 < 16",
        ),
        (
            {"model": "toy", "params": {"pool": 0}},
            r"params\.pool: Input should be greater than or equal to 1, not 0",
        ),
        ({"model": "toy", "params": {"seed": 3}}, "the seed of a run is its own field"),
        ({"model": "toy", "taks": "x", "seeds": 1}, "^unknown field 'taks'; known: [^;]*$"),
        ({}, "model: Field required$"),
        (
            {"model": "toy", "loading": {"dtype": "bf17"}},
            r"loading\.dtype: Input should be 'bf16', 'fp16', 'fp32' or 'fp64'",
        ),
    ],
)
def test_a_wrong_spec_is_one_line_that_says_what_is_allowed(content, message):
    with pytest.raises(ValueError, match=message) as caught:
        checked(RunSpec, content)
    assert "\n" not in str(caught.value)


def test_a_spec_does_not_change():
    with pytest.raises(ValueError, match="frozen"):
        spec().n = 3


def test_settings_that_do_not_go_together_are_told_without_the_others():
    with pytest.raises(ValueError, match=r"^block_length 3 does not divide length 8$"):
        checked(SampleParams, {"length": 8, "block_length": 3})


@pytest.mark.parametrize(
    ("own", "settings", "fork"),
    [
        ({}, {}, True),
        ({}, {"temperature": 1}, True),
        ({}, {"alpha": 0}, False),
        ({}, {"objective": "none"}, False),
        ({}, {"steps": 1}, False),
        ({}, {"alpha": 0, "fork": True}, True),
        ({"preset": "careful"}, {"alpha": 0}, False),
        ({"objective": "odd", "fork": True}, {"alpha": 0}, False),
        ({"objective": "odd"}, {"alpha": 16}, True),
        ({"preset": "paper"}, {"alpha": 16}, False),
        ({"alpha": 0}, {"preset": "careful"}, True),
        ({"alpha": 0, "fork": True}, {"temperature": 1}, True),
        (
            {"fork": True, "steps": 1},
            {"temperature": 1},
            True,
        ),  # which sampling refuses, as it does without the temperature
    ],
)
def test_the_fork_goes_with_the_push(own, settings, fork):
    changed = SampleParams(**own).with_settings(settings)
    assert changed.forks is fork
    for name, value in settings.items():
        assert name == "preset" or getattr(changed, name) == value


def test_plain_sampling_is_the_same_through_every_door():
    for own in ({}, {"preset": "careful"}, {"temperature": 1, "steps": 12}):
        params = SampleParams(**own)
        assert (
            params.with_settings({"alpha": 0}).canonical()
            == baseline(params)
            == SampleParams(**own, alpha=0).canonical()
        )


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (SampleParams, {name: True})
        for name in ("seed", "length", "steps", "block_length", "top_k", "pool")
    ]
    + [(RunSpec, {"model": "toy", name: True}) for name in ("seed", "n")],
    ids=repr,
)
def test_a_flag_is_no_number(kind, content):
    """`true` would be read as 1 otherwise."""
    with pytest.raises(ValueError, match=f"{list(content)[-1]}: .*true"):
        checked(kind, content)


def test_keyword_arguments_are_the_fields():
    assert SampleSettings.__annotations__.keys() == SampleParams.model_fields.keys()

"""`oddlm verify`: mini passes, a copy of it with other weights does not."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from oddlm.cli import app
from oddlm.models.loading.checkpoint import describe
from oddlm.models.loading.quant import footprint
from oddlm.models.mini import HERE, WHOLE
from oddlm.verify.checks import agreeing, cost, overall, score_check
from oddlm.verify.published import find_published

from ..models import published_layout as layout

PROBLEMS = 12
NOISE = 0.6  # of the weights' spread: it still finds hidden tokens, but solves nothing


def verify(*arguments):
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def checks(path):
    content = json.loads(path.read_text())
    return content, {one["name"]: one for one in content["checks"]}


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("passed")
    out = folder / "mini.json"
    done = verify("mini", "--limit", PROBLEMS, "--store", folder / "runs", "--json", out)
    assert done.exit_code == 0, done.output
    return done.output, out


@pytest.fixture(scope="module")
def shaken(tmp_path_factory):
    """The folder of a copy of mini with noise on its weights."""
    folder = tmp_path_factory.mktemp("shaken")
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(HERE / name, folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(HERE / WHOLE)
    for name, value in weights.items():
        noise = torch.randn(value.shape, generator=generator) * value.float().std()
        weights[name] = (value.float() + NOISE * noise).to(value.dtype)
    save_file(weights, folder / WHOLE)
    return folder


def test_mini_is_verified(passed):
    output, out = passed
    content, found = checks(out)
    assert content["verdict"] == "passed"
    assert set(found) == {"weights", "reading", "fingerprint", "score on countdown"}
    assert {one["verdict"] for one in found.values()} == {"passed"}
    assert content["fingerprint"] == list(find_published("mini").fingerprint)
    assert content["digest"][:19] in output  # a narrow table cuts it


def test_a_copy_with_other_weights_is_refused_before_any_problem(shaken, tmp_path):
    out = tmp_path / "copy.json"
    done = verify(shaken, "--as", "mini", "--store", tmp_path / "runs", "--json", out)
    assert done.exit_code == 1
    _, found = checks(out)
    assert found["weights"]["verdict"] == found["fingerprint"]["verdict"] == "failed"
    assert not any(name.startswith("score") for name in found)
    assert not (tmp_path / "runs").exists()


def test_a_copy_that_solves_less_is_refused_by_its_score(shaken, tmp_path):
    own = tmp_path / "own.json"
    verify(shaken, "--as", "mini", "--json", own)
    out = tmp_path / "copy.json"
    options = ["--limit", PROBLEMS, "--store", tmp_path / "runs", "--json", out]
    done = verify(shaken, "--as", "mini", "--fingerprint", own, *options)
    assert done.exit_code == 1
    _, found = checks(out)
    assert found["fingerprint"]["verdict"] == "passed"
    assert found["score on countdown"]["verdict"] == "failed"


def test_a_model_that_is_not_known_is_not_verified(tmp_path):
    out = tmp_path / "toy.json"
    done = verify("toy", "--json", out)
    assert done.exit_code == 1
    content, found = checks(out)
    assert content["as"] is None
    assert found["reading"]["verdict"] == "failed"
    assert found["weights"]["verdict"] == "unknown"


def test_a_checkpoint_without_a_score_is_told_why(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name = "google/diffusiongemma-26B-A4B-it"
    done = verify(name, "--dry-run")
    assert done.exit_code == 0
    assert find_published(name).source in done.output
    refused = verify(name, "--task", "gsm8k")
    assert "gsm8k" in str(refused.exception)


def test_a_dry_run_says_what_a_run_takes_and_loads_nothing(tmp_path):
    folder = tmp_path / "llada"
    layout.write_llada(folder)
    (folder / "model-00001-of-00003.safetensors").write_bytes(b"")  # it cannot be loaded
    data = tmp_path / "gsm8k.jsonl"
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(5)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = "GSAI-ML/LLaDA-8B-Instruct"
    done = verify(folder, "--as", name, "--data", data, "--limit", 3, "--dry-run")
    assert done.exit_code == 0, done.output
    score = find_published(name).scores[0]
    takes = cost(str(folder), {}, "cpu", score.params, ["a", "b b"])
    assert takes.weights == footprint(describe(folder).config, None, torch.float32).total
    assert takes.evaluations == 2 * 256
    assert f"{3 * 256}" in done.output
    assert score.source in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mini", "--as", "nobody/nothing"], "nobody/nothing"),
        (["mini", "--task", "humaneval"], "humaneval"),
        (["mini", "--fingerprint", "/nowhere/a.json"], "/nowhere/a.json"),
        (["mini", "--fingerprint", __file__], __file__),
        (["mini", "--calibration"], "--dry-run"),
        (["nothing"], "nothing"),
    ],
)
def test_bad_input_is_refused(arguments, said):
    done = verify(*arguments)
    assert isinstance(done.exception, ValueError)
    assert said in str(done.exception)


def test_nothing_compared_is_not_verified():
    assert overall([]) == "unknown"


def test_a_score_that_any_model_would_reach_verifies_nothing():
    score = find_published("mini").scores[0]
    found = [score_check(score, 1, agreeing(score, problems)) for problems in (1, 50)]
    assert [one.verdict for one in found] == ["unknown", "failed"]
    assert overall(found[:1]) == "unknown"

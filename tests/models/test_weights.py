"""A run is identified by its model's weights: retraining makes it another run, moving does not."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import oddlm
from oddlm.experiments.grid import read_grid
from oddlm.experiments.identity import identified
from oddlm.experiments.plan import make_plan
from oddlm.models import model_digest
from oddlm.models.loading import weights
from oddlm.models.mini import HERE, Mini
from oddlm.models.toy import Toy
from oddlm.spec import RunSpec
from oddlm.store import Store

from ..cli.test_eval import oddlm as command  # noqa: F401
from ..runs import carry_out, run
from . import published_layout as layout


def mini_copy(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copyfile(HERE / name, folder / name)
    return folder


def retrain(folder: Path) -> None:
    """Replace the weights by others of the same size under the same name."""
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            about, names = file.metadata(), list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        noisy = {
            name: (x.float() + 0.1 * torch.randn(x.shape)).to(x.dtype)
            for name, x in tensors.items()
        }
        size = path.stat().st_size
        path.unlink()
        save_file(noisy, path, about)
        assert path.stat().st_size == size


@pytest.fixture(params=["mini", "published", "shards"])
def folder(request, tmp_path) -> Path:
    if request.param == "mini":
        return mini_copy(tmp_path / "here" / "model")
    return layout.write_llada(
        tmp_path / "here" / "model", shards=2 if request.param == "shards" else 1
    )


def spec(model: Path | str) -> RunSpec:
    return identified(RunSpec(model=str(model), task="countdown", n=2))


def test_where_the_folder_lies_does_not_count(folder, tmp_path, monkeypatch):
    before = spec(folder)
    monkeypatch.chdir(folder.parent)
    assert spec("model").id == before.id
    assert spec("../here/model").id == before.id
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)  # other timestamps and inodes
    shutil.rmtree(folder)
    assert spec(moved).id == before.id
    (moved / "README.md").write_text("what it is")
    assert spec(moved).id == before.id


def test_retrained_in_place_it_is_another(folder):
    before = spec(folder)
    retrain(folder)
    assert spec(folder).model_digest != before.model_digest
    assert spec(folder).id != before.id


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_whatever_else_changes_tokens_counts(folder, name):
    path, before = folder / name, spec(folder)
    if not path.exists() and path.suffix == ".json":
        pytest.skip(f"this layout has no {name}")
    # the mini model has no chat template
    if folder.joinpath("tokenizer_config.json").exists() or path.exists():
        path.write_text(path.read_text() + " " if path.exists() else "{{ messages }}")
        assert spec(folder).id != before.id


def test_the_model_of_the_package_is_known_by_its_files(tmp_path):
    assert spec(mini_copy(tmp_path / "copy")).id == spec("mini").id
    assert spec("mini").id != spec("toy").id


def test_an_incomplete_folder_has_no_digest(folder):
    next(folder.glob("*.safetensors")).unlink()
    with pytest.raises(ValueError, match=str(folder)):
        model_digest(str(folder))


def test_a_run_without_weights_is_not_found_among_others(tmp_path):
    bare = RunSpec(model="toy", task="countdown", n=2)
    with pytest.raises(ValueError, match=r"'toy' has no model_digest.*identified"):
        run(tmp_path, bare, limit=1)


EVAL = ["eval", "countdown", "--n", "2", "--limit", "1", "--length", "8", "--alpha", "0"]


def test_the_same_command_after_retraining_draws_anew(command, tmp_path):  # noqa: F811
    folder = mini_copy(tmp_path / "out" / "model")
    for _ in range(2):
        code, _, err = command(*EVAL, "--model", str(folder), "--store", "runs")
        assert code == 0, err
    (first,) = Store(Path("runs")).ids()
    retrain(folder)
    assert command(*EVAL, "--model", str(folder), "--store", "runs")[0] == 0
    store = Store(Path("runs"))
    (other,) = set(store.ids()) - {first}
    one, two = (
        [sample.text for record in store.read(name).records for sample in record.samples]
        for name in (first, other)
    )
    assert one != two
    folder.rename(tmp_path / "renamed")
    assert command(*EVAL, "--model", str(tmp_path / "renamed"), "--store", "runs")[0] == 0
    assert set(store.ids()) == {first, other}
    for name in (first, other):
        start, _ = store.read(name).starts  # the second scored
        assert start["model_digest"] == store.read(name).spec.model_digest
        assert start["model_digest"].startswith("sha256:")


@pytest.fixture
def grid(tmp_path):
    folder = mini_copy(tmp_path / "model")
    path = tmp_path / "grid.toml"
    task = '{ name = "countdown", limit = 1, params = { length = 8 } }'
    path.write_text(
        f'model = ["{folder}", "{tmp_path}/./model"]\ntask = {task}\nn = 2\n[params]\nalpha = 0\n'
    )
    return path


def test_two_names_of_one_model_are_one_run(grid):
    assert len(read_grid(grid)) == 2
    (one,) = (run.spec for run in make_plan(read_grid(grid)).runs)
    assert one.model_digest == model_digest(one.model)


def test_a_worker_that_has_other_weights_refuses(grid, tmp_path):
    plan = make_plan(read_grid(grid))
    retrain(tmp_path / "model")
    with pytest.raises(ValueError, match=plan.runs[0].spec.model_digest) as refused:
        carry_out(plan, tmp_path / "runs")
    assert model_digest(str(tmp_path / "model")) in str(refused.value)
    assert not list(tmp_path.glob("runs/*"))


def test_a_sweep_says_which_weights(grid, tmp_path):
    plan = make_plan(read_grid(grid))
    assert carry_out(plan, tmp_path / "runs").complete == 1
    run = Store(tmp_path / "runs").read(plan.runs[0].spec.id)
    assert (
        run.starts[0]["model_digest"]
        == run.spec.model_digest
        == model_digest(str(tmp_path / "model"))
    )


def test_weights_that_change_under_a_loaded_model(tmp_path):
    folder = mini_copy(tmp_path / "model")
    assert oddlm.load(str(folder)).model.weights.digest == spec(folder).model_digest
    late = oddlm.load(str(folder))
    retrain(folder)
    with pytest.raises(ValueError, match="changed since"):
        _ = late.model.weights.digest


def drawn(model, history=None, guide=None):
    prompt = model.tokenizer.encode("73,32,7,19,28\n")
    return oddlm.denoise(model, [prompt], n=2, length=8, steps=4, guide=guide, history=history)


@pytest.mark.parametrize("quick", [True, False], ids=["small files", "large files"])
def test_a_history_is_for_the_weights_it_was_made_with(tmp_path, monkeypatch, quick):
    monkeypatch.setattr(weights, "QUICK", weights.QUICK if quick else 0)
    folder, other = mini_copy(tmp_path / "one"), mini_copy(tmp_path / "two")
    retrain(other)
    guide = oddlm.Repulsion("odd", remember="exact")
    history = drawn(Mini(folder), guide=guide).history
    assert drawn(Mini(folder), history, guide).history.samples == 4
    with pytest.raises(ValueError, match="model"):
        drawn(Mini(other), history, guide)
    retrain(folder)
    with pytest.raises(ValueError, match="model"):
        drawn(Mini(folder), history, guide)


def test_a_copy_of_small_files_goes_on_from_a_history(tmp_path):
    history = drawn(
        Mini(mini_copy(tmp_path / "one")), guide=oddlm.Repulsion("odd", remember="exact")
    ).history
    assert drawn(Mini(), history, oddlm.Repulsion("odd", remember="exact")).history.samples == 4


def test_the_toy_is_known_by_its_version_and_options(monkeypatch):
    assert model_digest("toy") == Toy().weights.digest == "code:toy 1 (200, 32, 8, 4.0, 0)"
    assert Toy(seed=1).weights.digest != Toy().weights.digest
    monkeypatch.setattr("oddlm.models.toy.VERSION", 2)
    assert model_digest("toy") != "code:toy 1 (200, 32, 8, 4.0, 0)"


def test_a_model_of_ones_own_is_known_by_its_name_and_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digests = []
    for body in ("pass", "pass", "x = 1"):
        Path("somebodys.py").write_text(f"class Net:\n    {body}\nclass Other:\n    pass\n")
        code = (
            "from oddlm.models import model_digest as digest\n"
            "print(digest('somebodys.Net'), digest('somebodys.Other'))"
        )
        done = subprocess.run(
            [sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True
        )
        digests.append(done.stdout.split())
    assert digests[0] == digests[1] != digests[2]
    assert all(digest.startswith("source:") for digest in digests[0])
    net, other = (
        RunSpec(model=f"somebodys.{name}", model_digest=digests[0][0]) for name in ("Net", "Other")
    )
    assert net.id != other.id, "a file may hold several models"
    assert model_digest("builtins.dict") == "name:builtins.dict"


@pytest.fixture
def large(monkeypatch, tmp_path):
    """Treat every file as large, with a new cache; return the names of the files read."""
    monkeypatch.setattr(weights, "LARGE", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    read, seen = weights._read, []
    monkeypatch.setattr(weights, "_read", lambda path: seen.append(path.name) or read(path))
    return seen


def old(folder: Path) -> Path:
    """Give the files an old mtime, as if nobody were writing them."""
    for path in folder.iterdir():
        os.utime(path, (1_000_000, 1_000_000))
    return folder


def test_large_files_are_read_once(large, tmp_path):
    folder = old(mini_copy(tmp_path / "model"))
    first = model_digest(str(folder))
    assert len(large) == 3
    assert model_digest(str(folder)) == first
    assert len(large) == 3, "the digest is cached"
    state = folder.joinpath("model.safetensors").stat()
    retrain(folder)
    os.utime(folder / "model.safetensors", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert model_digest(str(folder)) != first, "the mtime alone proves nothing"
    assert large[3:] == ["model.safetensors"]


def test_a_file_that_may_still_change_is_not_kept(large, tmp_path):
    folder = mini_copy(tmp_path / "model")
    assert model_digest(str(folder)) == model_digest(str(folder))
    assert len(large) == 6


@pytest.mark.parametrize("damage", ["content", "folder"])
def test_a_cache_that_cannot_be_used_is_done_without(large, tmp_path, damage):
    folder = old(mini_copy(tmp_path / "model"))
    first = model_digest(str(folder))
    for path in (tmp_path / "cache" / "oddlm" / "digests").iterdir():
        path.write_text("nothing")
    if damage == "folder":
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").write_text("no folder")
    assert model_digest(str(folder)) == first
    assert len(large) == 6


def test_blobs_of_the_hub_go_by_their_names(large, tmp_path):
    folder = mini_copy(tmp_path / "snapshots" / "commit")
    blob = tmp_path / "blobs" / weights._sha256(folder / "model.safetensors")
    blob.parent.mkdir()
    before, path = model_digest(str(folder)), folder / "model.safetensors"
    path.rename(blob)
    path.symlink_to(blob)
    large.clear()
    assert model_digest(str(folder)) == before
    assert "model.safetensors" not in large


def test_a_spec_is_read_without_its_model(tmp_path):
    folder = mini_copy(tmp_path / "model")
    about = spec(folder)
    shutil.rmtree(folder)
    again = RunSpec.model_validate_json(about.model_dump_json())
    assert again.id == about.id
    assert json.loads(about.model_dump_json())["model_digest"] == about.model_digest

"""The examples of docs/contributing.md, added to a copy of the package at the paths they name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import oddlm
from oddlm import Store
from oddlm.core.noise import normal
from oddlm.kernels.contract import Batch, Coordinates
from oddlm.kernels.directions import Duplicates

from ..models import published_layout as layout
from .pages import BLOCKS

SRC = Path(oddlm.__file__).parent
EXAMPLES = {
    block.title: block.text
    for block in BLOCKS["docs/contributing.md"]
    if "in-package" in block.markers
}
POLICY, OBJECTIVE = "core/policies.py", "diversity/objectives/spread.py"
TASK, FAMILY = "tasks/even.py", "models/families/llama_mdm.py"


GRID = """
model = "toy"
n = 3
task = { name = "even", limit = 2 }
[params]
objective = "spread"
policy = { name = "left_to_right", bonus = 100.0 }
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A copy of the package with all examples in it."""
    folder = tmp_path_factory.mktemp("package")
    copied = folder / "oddlm"
    shutil.copytree(SRC, copied, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    (copied / "models/mini/model.safetensors").symlink_to(SRC / "models/mini/model.safetensors")
    for path, text in EXAMPLES.items():
        assert (copied / path).parent.is_dir(), path
        with (copied / path).open("a") as file:
            file.write(f"\n\n{text}" if file.tell() else text)
    return folder


def run(package: Path, folder: Path, words: str) -> str:
    around = {**os.environ, "PYTHONPATH": str(package), "COLUMNS": "300"}
    command = [sys.executable, "-P", "-m", "oddlm", *words.split()]
    done = subprocess.run(
        command, cwd=folder, env=around, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_one_of_each():
    assert set(EXAMPLES) == {POLICY, OBJECTIVE, TASK, FAMILY}
    assert [path for path in EXAMPLES if (SRC / path).exists()] == [
        POLICY
    ]  # the others are new files


def test_they_are_found_and_run(package, tmp_path):
    names = run(package, tmp_path, "names")
    assert "left_to_right" in names
    assert "spread" in names
    assert "even" in run(package, tmp_path, "tasks")
    shown = run(package, tmp_path, "eval even --model toy --n 3 --limit 2 --objective spread")
    assert "even, toy: 2 problems, 3 samples each" in shown
    assert "spread" in shown
    (tmp_path / "grid.toml").write_text(GRID)
    run(package, tmp_path, "sweep grid.toml --executor inline --store swept")
    (spec,) = (Store(tmp_path / "swept").read(run).spec for run in Store(tmp_path / "swept").ids())
    assert spec.params.policy == {"name": "left_to_right", "bonus": 100.0}


LOGITS = """
import torch, oddlm
model = oddlm.load("tiny", dtype="fp64", device="cpu").model
torch.save(model(torch.load("tokens.pt"), 0, torch.tensor([9, 9])), "logits.pt")
"""


def test_the_family_loads_a_checkpoint(package, tmp_path):
    network = layout.llama()
    network.config.head_dim = network.config.hidden_size // network.config.num_attention_heads
    tokens = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(0))
    torch.save(tokens, tmp_path / "tokens.pt")
    config = {
        "rope_theta": 500000.0,
        "mask_token_id": len(layout.vocabulary()) + 3,
        "architectures": ["LlamaMDM"],
    }
    layout.write_qwen3(tmp_path / "tiny", network=network, model_type="llama-mdm", **config)
    with pytest.raises(ValueError, match="LlamaMDM"):
        oddlm.load(str(tmp_path / "tiny"))  # unknown without the example
    around = {**os.environ, "PYTHONPATH": str(package)}
    subprocess.run(
        [sys.executable, "-c", LOGITS], cwd=tmp_path, env=around, check=True, timeout=120
    )
    both_ways = torch.zeros(2, 1, 9, 9, dtype=torch.float64)
    with layout.nothing_narrower(), torch.no_grad():
        expected = network(input_ids=tokens, attention_mask=both_ways).logits
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected)


def test_the_examples_outside_and_inside_are_the_same_objective():
    """Its slope is the derivative of its loss, and its weights are the slope."""
    outside = next(b.text for b in BLOCKS["docs/extend/objective.md"] if b.title == "spread.py")
    names: dict = {}
    exec(outside, names)
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(2, 3, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    quality = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    duplicates = Duplicates()
    batch = Batch(
        features, quality, None, duplicates, lambda k, size: normal(torch.arange(2), size)
    )
    (expected,) = torch.autograd.grad(names["spread"](batch).sum(), features)
    by_feature, by_quality = names["slope"](batch)
    torch.testing.assert_close(by_feature, expected)
    assert not by_quality.any()
    rows = torch.cat(
        [features, torch.randn(2, 4, 7, generator=generator, dtype=torch.float64)], dim=1
    ).detach()
    nothing = torch.zeros(2, 3)
    seen = Coordinates(
        rows @ rows.mT,
        quality,
        torch.zeros(2, 3, 7),
        nothing.bool(),
        nothing.bool(),
        nothing,
        duplicates,
    )
    torch.testing.assert_close(names["weigh"](seen).by_feature @ rows, expected)

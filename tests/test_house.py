"""The plan of the house: who may import whom, what starts without torch, and how outsiders add to
it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oddlm

SRC = Path(oddlm.__file__).parent
ROOT = Path(__file__).parents[1]

TORCHLESS = [
    "oddlm",
    "oddlm.cli",
    "oddlm.explorer.assets",
    "oddlm.explorer.messages",
    "oddlm.files",
    "oddlm.signals",
    "oddlm.params",
    "oddlm.registry",
    "oddlm.tasks",
    "oddlm.metrics",
    "oddlm.store",
    "oddlm.store.query",
    "oddlm.report.compare",
    "oddlm.experiments.grid",
    "oddlm.cli.views",
    "oddlm.experiments.trackers",
    "oddlm.experiments.tune.space",
    "oddlm.report.cells",
    "oddlm.report.page",
    "oddlm.report.result_files",
    "oddlm.report.write",
    "oddlm.report.released_runs",
    "oddlm.serve.settings",
]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """The contract of pyproject.toml on the package in a folder."""
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); "
        "from importlinter.cli import lint_imports_command as main; main()"
    )
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    return subprocess.run(
        [sys.executable, "-c", code, *config], cwd=folder, capture_output=True, text=True
    )


def test_rooms_import_those_below_them():
    done = lint(SRC.parent)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        (
            "core/run.py",
            "from ..kernels import dispatch",
            "oddlm.core is not allowed to import oddlm.kernels",
        ),
        (
            "store/query.py",
            "from ..report.compare import compare",
            "oddlm.store is not allowed to import oddlm.report",
        ),
        ("attic.py", "import json", "oddlm.attic"),
    ],
)
def test_the_contract_sees_a_wrong_import_and_a_new_room(tmp_path, file, line, told):
    shutil.copytree(
        SRC, tmp_path / "oddlm", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
    )
    path = tmp_path / "oddlm" / file
    path.write_text((path.read_text() if path.exists() else "") + f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert told in done.stdout


@pytest.mark.parametrize("module", TORCHLESS)
def test_starts_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names():
    for name in oddlm.__all__:
        assert getattr(oddlm, name) is not None
    assert set(oddlm.__all__) <= set(dir(oddlm))
    with pytest.raises(AttributeError, match="no attribute 'denoize'"):
        _ = oddlm.denoize


OUTSIDE = '''
import torch

def bigger_last(prediction, step, *, slope=1.0):
    """Right to left."""
    return slope * torch.arange(step.tokens.shape[1]).double().expand(step.tokens.shape)

def spread(batch, *, power=1.0):
    """Push every pair apart."""
    u = torch.nn.functional.normalize(batch.features.double(), dim=-1)
    return (u @ u.mT).abs().pow(power).sum(dim=-1)

def first_position(canvas):
    return canvas[..., 0, :]

class Net:
    mask_id, vocab_size, end_ids = 29, 30, (1,)

    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, tokens, start, prompt_lengths):
        g = torch.Generator().manual_seed(0)
        logits = self.scale * torch.randn(tokens.shape[1] - start, 30, generator=g)
        return logits.expand(len(tokens), -1, -1)
'''


def test_an_outside_package_adds_pieces_by_dotted_path(tmp_path, monkeypatch):
    package = tmp_path / "somebodys_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "pieces.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    from oddlm.models import load_model

    model = load_model("somebodys_package.pieces.Net", scale=2.0)
    assert model.scale == 2.0
    policy = {"name": "somebodys_package.pieces:bigger_last", "slope": 2.0}
    guides = [
        oddlm.Repulsion(
            {"name": "somebodys_package.pieces.spread", "power": 2.0}, alpha=8, duplicates="skip"
        ),
        oddlm.Repulsion("odd", feature="somebodys_package.pieces.first_position", alpha=8),
    ]
    plain = oddlm.denoise(model, [[3]], n=4, length=6, steps=6, policy=policy, temperature=1.0)
    assert plain.commit_step.tolist() == [[5, 4, 3, 2, 1, 0]] * 4
    for guide in guides:
        diverse = oddlm.denoise(
            model, [[3]], n=4, length=6, steps=6, policy=policy, temperature=1.0, guide=guide
        )
        assert diverse.tokens.tolist() != plain.tokens.tolist()
    with pytest.raises(ValueError, match="has no option 'weight'; options: power"):
        oddlm.Repulsion({"name": "somebodys_package.pieces.spread", "weight": 2.0})


def test_models_by_name():
    from oddlm.models import load_model

    assert load_model("toy", vocab_size=50).vocab_size == 50
    with pytest.raises(
        ValueError, match="unknown model 'toi'; known: mini, toy, smol, or the dotted path"
    ):
        load_model("toi")
    with pytest.raises(ValueError, match=r"model 'oddlm\.nothing\.here' cannot be imported"):
        load_model("oddlm.nothing.here")
    with pytest.raises(
        ValueError, match=r"model 'builtins\.dict' is a dict without mask_id, vocab_size, end_ids"
    ):
        load_model("builtins.dict")


def test_every_room_is_explained():
    page = (ROOT / "docs" / "contributing.md").read_text()
    (table,) = re.findall(r"\| folder of `src/oddlm/` .*?\n\n", page, re.DOTALL)
    named = re.findall(r"`(\w+/|\w+\.py)`", "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE)))
    rooms = {one.name if one.is_file() else f"{one.name}/" for one in SRC.iterdir()}
    assert sorted(named) == sorted(
        rooms - {"__init__.py", "__main__.py", "__pycache__/", "py.typed"}
    )

"""The plan of the house: who may import whom, what starts without torch, and how outsiders add to it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import oddlm

SRC = Path(oddlm.__file__).parent

# Room -> the rooms it may import. A room is a top-level file or folder of the package.
ARROWS = {
    "__init__": {"core", "params", "sampler", "diversity", "generate"},
    "__main__": {"cli"},
    "registry": set(),
    "checks": set(),
    "signals": set(),
    "files": set(),
    "ends": set(),
    "syntax": set(),
    "core": {"checks", "presets", "registry"},
    "progress": {"core"},
    "kernels": {"core"},
    "sampler": {"core", "kernels", "progress"},
    "diversity": {"checks", "core", "presets", "registry", "kernels"},
    "models": {"checks", "core", "registry"},
    "presets": set(),
    "wording": set(),
    "params": {"checks", "presets"},
    "train": {"models", "params", "registry"},
    "pieces": {"core", "registry", "diversity", "selection"},
    "selection": {"core", "registry", "metrics"},
    "generate": {
        "checks",
        "ends",
        "presets",
        "core",
        "params",
        "progress",
        "sampler",
        "selection",
        "diversity",
        "models",
    },
    "costs": {"files", "models"},
    "bench": {"core", "costs", "sampler", "diversity", "models"},
    "demo": {
        "core",
        "files",
        "sampler",
        "diversity",
        "models",
        "generate",
        "metrics",
        "params",
        "sandbox",
        "tasks",
        "views",
        "wording",
    },
    "sandbox": {"syntax"},
    "tasks": {"files", "sandbox", "registry", "syntax", "wording"},
    "metrics": {"ends", "syntax"},
    "store": {"files", "params"},
    "query": {"store"},
    "compare": {"params", "store", "metrics"},
    "evaluate": {"ends", "core", "params", "models", "generate", "sandbox", "tasks", "metrics", "store"},
    "views": {"ends", "core", "params", "store", "query", "compare", "metrics", "wording"},
    "analysis": {"files", "params", "store", "metrics", "compare", "views", "wording"},
    "experiments": {"__init__", "params", "signals", "models", "generate", "sandbox", "tasks", "store", "evaluate", "trackers"},
    "embedding": set(),
    "trackers": {"params", "store"},
    "space": {"params"},
    "study": set(),
    "tune": {"params", "presets", "generate", "space", "store", "study", "tasks", "metrics", "evaluate", "trackers"},
    "serve": {
        "__init__",
        "checks",
        "ends",
        "files",
        "core",
        "params",
        "presets",
        "registry",
        "signals",
        "pieces",
        "diversity",
        "models",
        "generate",
        "metrics",
        "analysis",
        "sandbox",
        "selection",
        "store",
        "tasks",
    },
    "cli": {
        "__init__",
        "bench",
        "costs",
        "checks",
        "files",
        "signals",
        "core",
        "demo",
        "train",
        "pieces",
        "diversity",
        "sandbox",
        "tasks",
        "params",
        "presets",
        "generate",
        "models",
        "metrics",
        "store",
        "query",
        "compare",
        "evaluate",
        "experiments",
        "embedding",
        "trackers",
        "space",
        "tune",
        "views",
        "wording",
        "analysis",
        "serve",
    },
}
TORCHLESS = [
    "oddlm",
    "oddlm.cli",
    "oddlm.files",
    "oddlm.signals",
    "oddlm.params",
    "oddlm.registry",
    "oddlm.tasks",
    "oddlm.metrics",
    "oddlm.store",
    "oddlm.query",
    "oddlm.compare",
    "oddlm.experiments.grid",
    "oddlm.views",
    "oddlm.trackers",
    "oddlm.space",
    "oddlm.analysis.cells",
    "oddlm.analysis.page",
    "oddlm.analysis.report",
    "oddlm.analysis.released_runs",
    "oddlm.serve.settings",
]


def imported_rooms(path: Path) -> set[str]:
    room_of = path.relative_to(SRC).parts
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ["oddlm", *room_of[:-1]][: len(room_of) - node.level + 1]
            names = [".".join([*base, *(node.module or "").split(".")])] if node.module else []
            names = names or [".".join([*base, alias.name]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.rstrip(".").split(".")
            if parts[0] == "oddlm":
                room = parts[1] if len(parts) > 1 else "__init__"
                rooms.add("__init__" if room.startswith("__") else room)
    return rooms


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda p: str(p.relative_to(SRC)))
def test_arrows(path):
    parts = path.relative_to(SRC).parts
    room = parts[0].removesuffix(".py")
    assert room in ARROWS, f"{room} is a new room: say in ARROWS what it may import"
    wrong = imported_rooms(path) - ARROWS[room] - {room}
    assert not wrong, f"{room} must not import {sorted(wrong)}"


def test_the_arrow_test_sees_imports(tmp_path):
    assert imported_rooms(SRC / "diversity" / "alpha.py") == {"registry"}
    assert imported_rooms(SRC / "__main__.py") == {"cli"}


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
        return self.scale * torch.randn(tokens.shape[1] - start, 30, generator=g).expand(len(tokens), -1, -1)
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
        oddlm.Repulsion({"name": "somebodys_package.pieces.spread", "power": 2.0}, alpha=8, duplicates="skip"),
        oddlm.Repulsion("odd", feature="somebodys_package.pieces.first_position", alpha=8),
    ]
    plain = oddlm.denoise(model, [[3]], n=4, length=6, steps=6, policy=policy, temperature=1.0)
    assert plain.commit_step.tolist() == [[5, 4, 3, 2, 1, 0]] * 4
    for guide in guides:
        diverse = oddlm.denoise(model, [[3]], n=4, length=6, steps=6, policy=policy, temperature=1.0, guide=guide)
        assert diverse.tokens.tolist() != plain.tokens.tolist()
    with pytest.raises(ValueError, match="has no option 'weight'; options: power"):
        oddlm.Repulsion({"name": "somebodys_package.pieces.spread", "weight": 2.0})


def test_models_by_name():
    from oddlm.models import load_model

    assert load_model("toy", vocab_size=50).vocab_size == 50
    with pytest.raises(ValueError, match="unknown model 'toi'; known: mini, toy, or the dotted path"):
        load_model("toi")
    with pytest.raises(ValueError, match=r"model 'oddlm\.nothing\.here' cannot be imported"):
        load_model("oddlm.nothing.here")
    with pytest.raises(ValueError, match=r"model 'builtins\.dict' is a dict without mask_id, vocab_size, end_ids"):
        load_model("builtins.dict")

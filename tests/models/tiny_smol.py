"""A tiny model in the place of smol: its base in a wheel, and its package on the path."""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from oddlm.models.loading.causal import describe_causal
from oddlm.models.loading.checkpoint import load_network
from oddlm.models.loading.difference import difference, save_difference
from oddlm.models.loading.gguf import convert_gguf

from . import published_layout as layout
from .gguf_layout import TINY, write_network

MEMBER, WHEEL = "tiny_base/tiny.gguf", "tiny_base-0.1-py3-none-any.whl"
MASK = "<|im_start|>"
TEMPLATE = "{% for message in messages %}{{ message['content'] | trim }}\n{% endfor %}"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_wheel(folder: Path, files: dict[str, bytes], packed: int = zipfile.ZIP_DEFLATED) -> Path:
    """A wheel that pip downloads, with these files in it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = "tiny_base-0.1.dist-info"
    about = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-base\nVersion: 0.1\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / WHEEL, "w", packed) as archive:
        for name, content in {**files, **about}.items():
            archive.writestr(name, content)
    return folder / WHEEL


class TinySmol:
    """The files of a tiny smol in a folder, changeable by tests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.package = folder, folder / "site" / "oddlm_smol"
        self.gguf, self.causal = folder / "tiny.gguf", folder / "causal"
        self.package.mkdir(parents=True)
        write_network(self.gguf, layout.llama(**TINY, tie_word_embeddings=True))
        convert_gguf(self.gguf, self.causal)
        self.wheel = write_wheel(folder / "wheels", {MEMBER: self.gguf.read_bytes(), "x.py": b""})
        (self.package / "__init__.py").write_text("")
        self.difference = self.package / "difference.safetensors"
        self.train(seed=1)

    def train(self, seed: int) -> torch.nn.Module:
        """Give the package another difference; return the network that has it."""
        network = load_network(
            describe_causal(self.causal), device=torch.device("cpu"), dtype=torch.float32
        )
        base = {name: weight.clone() for name, weight in network.state_dict().items()}
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in network.parameters():
                weight += 0.1 * torch.randn_like(weight)
        save_difference(self.difference, difference(network, base))
        self.describe()
        return network

    def describe(self, **changes: object) -> None:
        """Write smol.json; a value of None leaves a key out."""
        about = {
            "requirement": "tiny-base==0.1",
            "member": MEMBER,
            "base_sha256": sha256(self.gguf),
            "difference_sha256": sha256(self.difference),
            "mask_token": MASK,
            "chat_template": TEMPLATE,
            **changes,
        }
        given = {name: value for name, value in about.items() if value is not None}
        (self.package / "smol.json").write_text(json.dumps(given))


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> TinySmol:
    """A tiny smol whose package is installed, with an empty cache."""
    made = TinySmol(tmp_path / "tiny")
    monkeypatch.delitem(sys.modules, "oddlm_smol", raising=False)
    monkeypatch.syspath_prepend(str(made.package.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made

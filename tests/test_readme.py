"""The README's Python is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from .models import published_layout as layout

README = (Path(__file__).parents[1] / "README.md").read_text()
PUBLISHED = "GSAI-ML/LLaDA-8B-Instruct"  # a tiny random one in its layout stands for it
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def somebodys_loop() -> dict:
    """The names that the drop-in example takes for granted."""
    canvas = torch.full((16, 10), 49)
    return {
        "network": lambda canvas: torch.randn(
            *canvas.shape, 50, generator=torch.Generator().manual_seed(0)
        ),
        "canvas": canvas,
        "prompt_length": 4,
        "masked": canvas[:, 4:] == 49,
        "step": 0,
        "steps": 6,
        "eos_id": 1,
        "pad_id": 2,
    }


@pytest.fixture
def block_module(monkeypatch):
    """A module to run a block in, so that its functions have dotted paths as in a file."""
    module = ModuleType("readme_block")
    module.__dict__.update(somebodys_loop())
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number, block_module, capsys, tmp_path):
    block = BLOCKS[number]
    if PUBLISHED in block:
        block = block.replace(PUBLISHED, str(layout.write_llada(tmp_path)))
    exec(block, vars(block_module))
    said = re.findall(r"print\(.*\)\s+# (torch\.Size.*)", BLOCKS[number])
    assert all(line in capsys.readouterr().out for line in said)
    assert hasattr(block_module, "oddlm")


def test_pieces_of_ones_own_reach_the_command_line(tmp_path):
    pieces = re.findall(r"```python\n(.*?)```", README.partition("## Extend it")[2], re.DOTALL)
    assert all(len([line for line in part.splitlines() if line]) <= 10 for part in pieces)
    (tmp_path / "my_module.py").write_text("".join(pieces))
    options = [
        "--policy",
        "my_module.left_first",
        "--objective",
        "my_module.spread",
        "--alpha",
        "8",
    ]
    command = [
        sys.executable,
        "-P",
        "-m",
        "oddlm",
        "eval",
        "my_module.TASK",
        "--model",
        "toy",
        "--n",
        "2",
        *options,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "mine, toy: 1 problem, 2 samples each" in done.stdout

"""The README's Python is run as it stands."""

import re
from pathlib import Path

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
        "network": lambda canvas: torch.randn(*canvas.shape, 50, generator=torch.Generator().manual_seed(0)),
        "canvas": canvas,
        "prompt_length": 4,
        "masked": canvas[:, 4:] == 49,
        "step": 0,
        "steps": 6,
        "eos_id": 1,
        "pad_id": 2,
    }


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number, capsys, tmp_path):
    names = somebodys_loop()
    block = BLOCKS[number]
    if PUBLISHED in block:
        block = block.replace(PUBLISHED, str(layout.write_llada(tmp_path)))
    exec(block, names)
    said = re.findall(r"print\(.*\)\s+# (torch\.Size.*)", BLOCKS[number])
    assert all(line in capsys.readouterr().out for line in said)
    assert "oddlm" in names

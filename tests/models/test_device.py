"""Devices and dtypes as users spell them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from oddlm import load
from oddlm.cli import app
from oddlm.config import checked
from oddlm.models.loading.device import chosen_device, named_dtype
from oddlm.spec import RunSpec

RECIPE = Path(__file__).parents[2] / "recipes" / "mini" / "config.toml"
WITHOUT = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
NO_GPU = f"device 'cuda' cannot be used: no GPU is visible to torch ({torch.__version__}); use cpu"


@pytest.fixture
def gpus(monkeypatch):
    """Make torch report `count` GPUs."""

    def show(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    return show


@pytest.mark.parametrize(
    ("count", "device", "message"),
    [
        (0, "cuda", NO_GPU),
        (
            0,
            "cuda:7",
            NO_GPU.replace("cuda", "cuda:7"),
        ),
        (1, "cuda:7", "device 'cuda:7' cannot be used: torch sees 1 GPU; use cuda:0 or cpu"),
        (
            2,
            "cuda:2",
            "device 'cuda:2' cannot be used: torch sees 2 GPUs; use cuda:0, cuda:1 or cpu",
        ),
        (
            0,
            "mps",
            f"device 'mps' cannot be used: torch ({torch.__version__}) finds no Apple GPU; use cpu",
        ),
        (
            0,
            "gpu",
            "device 'gpu' cannot be used: use cpu, cuda, one of several GPUs as cuda:1, or mps",
        ),
        (
            0,
            "auto",
            "device 'auto' cannot be used: use cpu, cuda, one of several GPUs as cuda:1, or mps",
        ),
        (0, 3.5, "device 3.5 cannot be used: use cpu, cuda, one of several GPUs as cuda:1, or mps"),
    ],
)
def test_a_device_that_is_not_there_is_refused_in_words(gpus, count, device, message):
    gpus(count)
    for door in (chosen_device, lambda device: load("mini", device=device)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            door(device)


def test_a_device_without_numbers_is_refused():
    with pytest.raises(ValueError, match=r"device 'meta' cannot be used: .*; use cpu, cuda"):
        load("mini", device="meta")


def test_what_is_there_is_taken(gpus):
    assert chosen_device("cpu") == torch.device("cpu")
    gpus(0)
    assert chosen_device(None) == torch.device("cpu")
    gpus(2)
    assert chosen_device(None) == torch.device("cuda")


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "countdown", "--model", "mini", "--limit", "1"],
        ["serve", "--model", "mini", "--port", "0"],
        ["train", str(RECIPE), "--out", "run"],
    ],
)
def test_the_commands_say_it_in_one_line(command, tmp_path):
    line = [sys.executable, "-m", "oddlm", *command, "--device", "cuda"]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env=WITHOUT
    )
    assert (done.returncode, done.stderr) == (2, f"oddlm: {NO_GPU}\n")


@pytest.mark.parametrize(
    ("short", "long"),
    [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32"), ("fp64", "float64")],
)
def test_both_spellings_of_numbers_are_one(short, long):
    for name in (short, long, getattr(torch, long)):
        assert load("mini", dtype=name).model.embedding.dtype is getattr(torch, long)
    specs = [
        checked(RunSpec, {"model": "mini", "loading": {"dtype": name}}) for name in (short, long)
    ]
    assert specs[0] == specs[1]
    assert specs[1].loading.dtype == short


def test_other_numbers_are_refused():
    for name in ("int8", "half", torch.int8, None, ["bf16"]):
        with pytest.raises(ValueError, match="dtype must be one of bf16, fp16, fp32, fp64, not"):
            named_dtype(name)
    with pytest.raises(
        ValueError,
        match=r"loading\.dtype: Input should be 'bf16', 'fp16', 'fp32' or 'fp64', not 'half'",
    ):
        checked(RunSpec, {"model": "mini", "loading": {"dtype": "half"}})


def test_bench_takes_both_spellings():
    line = [
        "bench",
        "overhead",
        "--model",
        "tiny",
        "--n",
        "2",
        "--length",
        "4",
        "--steps",
        "2",
        "--repeats",
        "1",
        "--device",
        "cpu",
    ]
    done = CliRunner().invoke(app, [*line, "--compile", "none", "--dtype", "float32,fp32"])
    assert done.exit_code == 0, done.output
    assert done.output.count("| tiny fp32 |") == 2

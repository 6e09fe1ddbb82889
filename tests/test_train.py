"""Training: a killed run goes on bit for bit, two processes learn together, and no test problem is trained on."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from oddlm.models.mini import MiniTokenizer
from oddlm.tasks import countdown, minicode
from oddlm.train import corrupt, make_pairs, rate, read_config, train

TOKENIZER = MiniTokenizer()
RECIPE = """
steps = 30
learning_rate = 3e-3
warmup = 5
precision = "fp32"
compile = false
log_every = 5
check_every = 1000
checkpoint_s = 1e-9
model = { width = 16, layers = 1, heads = 2, hidden = 32 }
[[data]]
name = "countdown-3"
stream = "oddlm.tasks.countdown.stream"
options = { numbers = 3 }
count = 256
prompt = 12
length = 16
batch = 32
share = 1.0
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on_to_the_same_weights(recipe, tmp_path, monkeypatch):
    config = read_config(recipe)
    whole = load_file(train(config, tmp_path / "whole", device="cpu", workers=1) / "model.safetensors")

    def fatal(config, step):
        if step == 17:
            raise KilledError
        return rate(config, step)

    with monkeypatch.context() as patch:
        patch.setattr("oddlm.train.rate", fatal)
        with pytest.raises(KilledError):
            train(config, tmp_path / "killed", device="cpu", workers=1)
    state = torch.load(tmp_path / "killed" / "checkpoint.pt", weights_only=True)
    assert state["progress"]["step"] == 17
    resumed = load_file(train(config, tmp_path / "killed", device="cpu", workers=1) / "model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    logs = [
        [json.loads(line) for line in (tmp_path / run / "log.jsonl").read_text().splitlines()] for run in ("whole", "killed")
    ]
    assert [(line["step"], line.get("loss")) for line in logs[0]] == [(line["step"], line.get("loss")) for line in logs[1]]
    with pytest.raises(ValueError, match="was made with another learning_rate"):
        train(read_config(recipe, learning_rate=1e-3), tmp_path / "killed", device="cpu", workers=1)


def test_two_processes_learn_together(recipe, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "oddlm", "train"]
    arguments = [str(recipe), "--out", str(tmp_path / "run"), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]


def test_the_prompt_is_kept_and_t_of_the_answer_is_masked():
    generator = torch.Generator().manual_seed(0)
    prompts, answers = torch.ones(4096, 3, dtype=torch.long), torch.full((4096, 20), 2)
    canvas, _, _, mask, t = corrupt(prompts, torch.full((4096,), 3), answers, 0, generator)
    assert (canvas[:, :3] == 1).all()
    assert torch.equal(canvas[:, 3:] == 0, mask)
    assert abs(mask.double().mean() - 0.5) < 0.02
    assert abs((mask.double().mean(dim=1) - t.squeeze(1)).mean()) < 0.01


def test_no_problem_of_the_other_sides_is_trained_on(recipe):
    seen = set()
    for numbers in (3, 4):
        data = read_config(recipe).data[0].model_copy(update={"count": 20_000, "options": {"numbers": numbers}, "length": 24})
        ((_, (prompts, lengths, _)),) = make_pairs([data], workers=1)
        seen |= {_key(prompt, length) for prompt, length in zip(prompts.tolist(), lengths.tolist(), strict=True)}
    assert len(seen) > 15_000
    for split in ("tune", "test"):
        for numbers in (3, 4):
            held = {_sorted(p.prompt) for p in countdown.load(numbers=numbers, split=split, count=2000, seed=1)}
            assert not held & seen
    asked = {p.prompt for p in minicode.load(split="test", count=100, seed=1, unsafe=True)}  # nothing is run here
    assert not asked & {prompt for prompt, _ in islice(minicode.stream(), 5000)}


def _key(prompt, length):
    return _sorted(TOKENIZER.decode(prompt[len(prompt) - length :]))


def _sorted(problem):
    *numbers, target = map(int, problem.strip().split(","))
    return (*sorted(numbers), target)


@pytest.mark.parametrize(
    ("text", "message"), [("steps = [", "cannot read"), ("steps = 0", "steps"), (RECIPE + "wings = 2", "wings")]
)
def test_bad_recipes(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(path)
    with pytest.raises(ValueError, match="cannot read"):
        read_config(Path(tmp_path / "none.toml"))

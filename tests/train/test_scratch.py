"""Training: a killed run goes on bit for bit, two processes learn together, and no test problem is
trained on.
"""

import json
import os
import re
import signal
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file

from oddlm.models.mini import MiniTokenizer
from oddlm.tasks import countdown, minicode
from oddlm.tasks.minicode import grammar
from oddlm.tasks.minicode.writing import write_body, write_prompt
from oddlm.train.loop import corrupt
from oddlm.train.scratch import SHARDS, make_pairs, read_config, train

TOKENIZER = MiniTokenizer()
MINI_RECIPE = Path(__file__).parents[2] / "recipes" / "mini" / "config.toml"
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


def test_a_killed_run_goes_on_to_the_same_weights_and_log(recipe, tmp_path):
    recipe.write_text(RECIPE.replace("steps = 30", "steps = 80"))
    config = read_config(recipe)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    weights = load_file(train(config, whole, device="cpu", workers=1) / "model.safetensors")

    command = [
        sys.executable,
        "-m",
        "oddlm",
        "train",
        str(recipe),
        "--out",
        str(killed),
        "--device",
        "cpu",
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }  # sums depend on how they are shared out
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["step"] < 20:
            pass
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "model").exists()
    done = torch.load(killed / "checkpoint.pt", weights_only=True)["progress"]["step"]
    assert 19 <= done < 80

    resumed = load_file(train(config, killed, device="cpu", workers=1) / "model.safetensors")
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert log_of(killed) == log_of(whole)
    assert [line["step"] for line in log_of(whole) if "loss" in line] == list(range(5, 81, 5))
    with pytest.raises(ValueError, match="learning_rate"):
        train(config.model_copy(update={"learning_rate": 1e-3}), killed, device="cpu", workers=1)


def log_of(run):
    """What was logged, but for the clock."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_two_processes_learn_together(recipe, tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "oddlm",
        "train",
    ]
    arguments = [str(recipe), "--out", str(tmp_path / "run"), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
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


def trained_on(name, count):
    """The prompts of a sample of the shipped model's training pairs, made by its own recipe."""
    (data,) = (data for data in read_config(MINI_RECIPE).data if data.name == name)
    ((_, (prompts, lengths, _)),) = make_pairs(
        [data.model_copy(update={"count": count})], workers=1
    )
    pairs = zip(prompts.tolist(), lengths.tolist(), strict=True)
    return {TOKENIZER.decode(prompt[len(prompt) - length :]) for prompt, length in pairs}


def bucket(text):
    """The published rule: which hundredth of all problems a text falls in."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") % 100


@pytest.mark.parametrize(
    "numbers", [3, *(pytest.param(one, marks=pytest.mark.soak) for one in (4, 5))]
)
def test_no_countdown_problem_of_the_other_sides_is_trained_on(numbers):
    seen = {in_order(prompt) for prompt in trained_on(f"countdown-{numbers}", 10_000)}
    assert len(seen) > 8_000
    assert all(bucket(text) < 90 for text in seen)
    for split, buckets in (("tune", range(90, 95)), ("test", range(95, 100))):
        held_out = {
            in_order(p.prompt)
            for p in countdown.load(numbers=numbers, split=split, count=2000, seed=1)
        }
        assert len(held_out) == 2000
        assert {bucket(text) for text in held_out} == set(buckets)
        assert not held_out & seen


def in_order(problem):
    *numbers, target = map(int, problem.strip().split(","))
    return f"{','.join(map(str, sorted(numbers)))}={target}"


def test_no_composition_of_the_other_sides_is_trained_on():
    prompts = trained_on("minicode", 1280)
    names = {}
    for shard in range(SHARDS):  # the streams once more, for the compositions behind the prompts
        random = Random(f"minicode stream {shard}")
        for _ in range(2 * 1280 // SHARDS):
            composition = grammar.draw(random, "train")
            names[write_prompt(composition, random)] = "+".join(
                sorted(step.operation.name for step in composition)
            )
            write_body(composition, random)
    assert prompts <= names.keys()
    seen = {names[prompt] for prompt in prompts}
    assert len(seen) > 800
    assert all(bucket(text) < 80 for text in seen)
    for options in ({"operations": None}, {"operations": 3}):
        problems = minicode.load(
            **options, split="test", count=60, seed=1, unsafe=True
        )  # nothing is run here
        asked = {
            "+".join(sorted(re.sub(r"\(.*?\)", "", p.id.removeprefix("minicode/")).split("+")))
            for p in problems
        }
        assert {bucket(text) for text in asked} <= set(range(88, 100))
        assert not asked & seen


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = [", "bad.toml is not TOML"),
        ("title = '\xe9'", "bad.toml is not TOML"),
        ("steps = 0", "steps"),
        (RECIPE + "wings = 2", "wings"),
    ],
)
def test_bad_recipes(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        read_config(path)
    with pytest.raises(ValueError, match="cannot read"):
        read_config(Path(tmp_path / "none.toml"))

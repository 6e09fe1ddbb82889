"""Adapting causal checkpoints, end to end on tiny random networks."""

import json
import os
import signal
import subprocess
import sys
from random import Random
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import oddlm
from oddlm.models.loading.causal import adapt_tokenizer, adapted_ids, describe_causal, save_adapted
from oddlm.models.loading.checkpoint import load_network
from oddlm.models.loading.difference import (
    add_difference,
    in_three_levels,
    pack,
    ternary,
    unpack,
)
from oddlm.train.adapt import AdaptConfig, Objective, adapt, read_adapt_config
from oddlm.train.low_rank import LowRank
from oddlm.train.pairs import Bucket, Canvas, read_pairs

from ..models import gguf_layout
from ..models import published_layout as layout
from ..starting import hearing_ctrl_c

MASK = "<|mdm_mask|>"
TEMPLATE = "{% for message in messages %}{{ message['content'] | trim }}\n{% endfor %}"
SETTINGS = {
    "steps": 40,
    "learning_rate": 3e-3,
    "warmup": 5,
    "focal": 0.0,
    "weight_decay": 0.0,
    "precision": "fp32",
    "log_every": 10,
    "check_every": 40,
    "checkpoint_s": 60.0,
    "mask_token": MASK,
    "chat_template": TEMPLATE,
    "prompt": 24,
    "length": 8,
    "bucket": 4,
    "batch": 32,
    "compile": "none",
}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost these networks more than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_causal(folder, network, **changes):
    """A checkpoint as transformers writes it, with a byte-level tokenizer."""
    folder.mkdir()
    network.float().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    layout.write_json(folder / "config.json", {**config, **changes})
    layout.write_llada_tokenizer(folder)
    return folder


def write_pairs(path, count, seed=0):
    """Repeat a letter: what a network can learn in seconds."""
    random = Random(seed)
    lines = []
    for _ in range(count):
        letter = random.choice("abcdefgh")
        lines.append(
            {"prompt": "x" * random.randint(0, 5) + letter, "answer": f"{letter}-{letter}"}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    torch.manual_seed(0)
    sizes = {**layout.SIZES, "vocab_size": layout.VOCABULARY, "max_position_embeddings": 128}
    network = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    return write_causal(tmp_path_factory.mktemp("causal") / "base", network)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    return {
        "data": write_pairs(folder / "train.jsonl", 400),
        "held_out": write_pairs(folder / "held_out.jsonl", 64, seed=1),
    }


def config(base, data, **changes):
    return AdaptConfig(**{**SETTINGS, **data, "base": base, **changes})


def log_of(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_logits_are_those_of_transformers_with_a_full_mask(tmp_path, kind):
    other = getattr(layout, kind)().float().eval()
    folder = write_causal(tmp_path / "base", other)
    described = describe_causal(folder)
    network = load_network(described, device=torch.device("cpu"), dtype=torch.float32)
    tokens = torch.randint(0, 200, (3, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        everything = torch.zeros(3, 1, 11, 11)
        theirs = other(tokens, attention_mask=everything).logits
        ours = network(tokens, 4, torch.full((3,), 4))
    torch.testing.assert_close(ours, theirs[:, 3:-1], atol=1e-5, rtol=1e-5)

    saved, copy = tmp_path / "saved", tmp_path / "tokenizer"
    tokenizer = adapt_tokenizer(folder, copy, mask_token=MASK, chat_template=None)
    save_adapted(network, described, copy, adapted_ids(described, tokenizer)[0], saved)
    lm = oddlm.load(str(saved), device="cpu", dtype="bf16")
    assert lm.info.mask_id == tokenizer.special[MASK]
    weights, before = load_file(saved / "model.safetensors"), other.state_dict()
    assert weights.keys() == before.keys() - (
        {"lm_head.weight"} if described.config.tied else set()
    )
    assert all(torch.equal(value, before[name].bfloat16()) for name, value in weights.items())


def test_what_is_learned_is_loaded_and_sampled(base, data, tmp_path):
    folder = adapt(config(base, data, steps=250), tmp_path / "run", device="cpu", workers=1)
    lm = oddlm.load(str(folder), device="cpu")
    texts = [
        sample.text
        for prompt in ("xxc", "xxxxa", "f")
        for sample in lm.sample(prompt, n=2, length=8, temperature=0, alpha=0, progress=False)
    ]
    assert texts == ["c-c"] * 2 + ["a-a"] * 2 + ["f-f"] * 2
    (held_out,) = [line["held_out"] for line in log_of(tmp_path / "run") if "held_out" in line][-1:]
    card = (folder / "README.md").read_text()
    assert held_out["right"] > 0.9
    assert f"{held_out['bound']:.4f}" in card
    assert base.name in card


@pytest.mark.parametrize("changes", [{"three_levels_from": 0.5}, {"rank": 4}])
def test_a_small_difference_gives_the_same_model(base, data, tmp_path, changes):
    out = tmp_path / "run"
    settings = config(base, data, embedding="answers", **changes)
    whole = load_file(adapt(settings, out, device="cpu", workers=1) / "model.safetensors")
    described = describe_causal(base)
    network = load_network(described, device=torch.device("cpu"), dtype=torch.float32)
    old = network.embed.weight.detach().clone()
    add_difference(network, out / "difference.safetensors")
    save_adapted(network, described, out / "tokenizer", 0, tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    for name, value in whole.items():
        torch.testing.assert_close(again[name], value, atol=2e-4, rtol=1e-2)
    changed = (network.embed.weight != old).any(dim=1).nonzero().flatten().tolist()
    tokenizer = oddlm.load(str(out / "model"), device="cpu").tokenizer
    answers = tokenizer.encode("abcdefgh-")
    assert set(changed) == {tokenizer.special[MASK], tokenizer.special["<|endoftext|>"], *answers}


def test_three_levels():
    generator = torch.Generator().manual_seed(0)
    old, step = (torch.randn(5, 7, generator=generator) for _ in range(2))
    levels, scale = ternary(step)
    assert set(levels.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert torch.equal(unpack(pack(levels), levels.shape), levels)
    stored = in_three_levels(old + step, old)
    torch.testing.assert_close(stored, old + levels * scale)
    torch.testing.assert_close(in_three_levels(stored, old), stored)
    assert (stored - old - step).norm() < 0.6 * step.norm()


def test_attention_opens_over_the_first_steps(base, data, tmp_path):
    described = describe_causal(base)
    network = load_network(described, device=torch.device("cpu"), dtype=torch.float32)
    objective = Objective(network, 0.0)
    tokens = torch.randint(0, 200, (1, 12), generator=torch.Generator().manual_seed(0))
    lengths, causal = torch.tensor([8]), torch.ones(12, 12, dtype=torch.bool).tril()
    later = tokens.clone()
    later[0, -1] += 1
    with torch.no_grad():
        closed, other = (objective.logits(x, lengths, 4, False, causal) for x in (tokens, later))
        opened, moved = (objective.logits(x, lengths, 4, False, None) for x in (tokens, later))
    assert torch.equal(closed, other), "a causal network does not see what comes later"
    assert not torch.allclose(opened, moved)
    whole = adapt(config(base, data), tmp_path / "switched", device="cpu", workers=1)
    slow = adapt(config(base, data, anneal=20), tmp_path / "annealed", device="cpu", workers=1)
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, slow))
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_a_killed_run_resumes_to_the_same_weights(base, data, tmp_path):
    recipe = tmp_path / "recipe.toml"
    settings = SETTINGS | {
        "log_every": 5,
        "checkpoint_s": 1e-9,
        "anneal": 10,
        "three_levels_from": 0.5,
        "parts": 2,
    }
    recipe.write_text("".join(f"{name} = {json.dumps(v)}\n" for name, v in settings.items()))
    changes = {**data, "base": base}
    wanted = read_adapt_config(recipe, **changes)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    weights = load_file(adapt(wanted, whole, device="cpu", workers=1) / "model.safetensors")

    options = ["--base", str(base), "--data", str(data["data"])]
    options += ["--held-out", str(data["held_out"]), "--device", "cpu", "--out", str(killed)]
    command = [sys.executable, "-m", "oddlm", "adapt", str(recipe), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["step"] < 15:
            pass
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "model").exists()
    resumed = load_file(adapt(wanted, killed, device="cpu", workers=1) / "model.safetensors")
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert log_of(killed) == log_of(whole)
    with pytest.raises(ValueError, match="learning_rate"):
        adapt(wanted.model_copy(update={"learning_rate": 1e-3}), killed, device="cpu", workers=1)


def test_two_processes_learn_together(base, data, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("".join(f"{name} = {json.dumps(v)}\n" for name, v in SETTINGS.items()))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    options = ["--base", str(base), "--data", str(data["data"]), "--device", "cpu"]
    options += ["--held-out", str(data["held_out"]), "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [*launch, "2", "-m", "oddlm", "adapt", str(recipe), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    losses = [line["loss"] for line in log_of(tmp_path / "run") if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]
    oddlm.load(str(tmp_path / "run" / "model"), device="cpu")


def test_pairs_lie_in_buckets(base, data, tmp_path):
    copy = tmp_path / "tokenizer"
    tokenizer = adapt_tokenizer(base, copy, mask_token=MASK, chat_template=TEMPLATE)
    path = tmp_path / "pairs.jsonl"
    texts = [("abc", "d"), ("a", "the"), ("abcdefgh", "a"), ("ab", "a" * 9), ("a" * 40, "b")]
    path.write_text("\n".join(json.dumps({"prompt": p, "answer": a}) for p, a in texts) + "\n\n")
    pairs = read_pairs(path, copy, Canvas(16, 6, 4, 7), "cpu", workers=1)
    assert pairs.too_long == 2
    assert [(b.prompts.shape[1], len(b.lengths), b.padded) for b in pairs.buckets] == [
        (4, 2, True),
        (12, 1, True),
    ]
    found = [
        (tokenizer.decode(p[len(p) - n :]), tokenizer.decode([t for t in a if t != 7]))
        for b in pairs.buckets
        for p, n, a in zip(b.prompts.tolist(), b.lengths.tolist(), b.answers.tolist(), strict=True)
    ]
    assert found == [("abc\n", "d"), ("a\n", "the"), ("abcdefgh\n", "a")]


def test_ctrl_c_loses_nothing(base, data, tmp_path):
    out = tmp_path / "run"
    wanted = config(base, data)
    draw, steps = Bucket.draw, iter(range(100))

    def interrupted(self, count, generator):
        if next(steps) == 7:
            signal.raise_signal(signal.SIGINT)
        return draw(self, count, generator)

    with (
        hearing_ctrl_c(),
        patch.object(Bucket, "draw", interrupted),
        pytest.raises(KeyboardInterrupt),
    ):
        adapt(wanted, out, device="cpu", workers=1)
    assert torch.load(out / "checkpoint.pt", weights_only=True)["progress"]["step"] == 8
    whole = adapt(wanted, tmp_path / "whole", device="cpu", workers=1)
    resumed = adapt(wanted, out, device="cpu", workers=1)
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("{", "line 2"),
        ("[1]", "line 2"),
        ('{"prompt": "a"}', "answer"),
        ('{"prompt": 1}', "line 2"),
    ],
)
def test_bad_lines_are_named(base, tmp_path, line, name):
    adapt_tokenizer(base, tmp_path / "tokenizer", mask_token=MASK, chat_template=None)
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + line)
    with pytest.raises(ValueError, match=name):
        read_pairs(path, tmp_path / "tokenizer", Canvas(8, 8, 1, 0), "cpu", workers=1)


def test_a_line_of_the_log_that_was_cut_short_is_dropped(base, data, tmp_path):
    """The checkpoint is written before it is known that the disk is full."""
    out = tmp_path / "run"
    adapt(config(base, data, steps=20), out, device="cpu", workers=1)
    log = out / "log.jsonl"
    whole = log.read_text()
    log.write_text(whole + whole.splitlines()[-1][:9])
    adapt(config(base, data, steps=20), out, device="cpu", workers=1)
    assert log.read_text().startswith(whole.splitlines()[0])
    assert all(isinstance(line["step"], int) for line in log_of(out))


def test_another_gguf_file_in_the_same_folder_is_another_base(data, tmp_path):
    out, paths = tmp_path / "run", [tmp_path / "a.gguf", tmp_path / "B.GGUF"]
    for seed, path in enumerate(paths):
        network = layout.llama(seed, **{**gguf_layout.TINY, "num_hidden_layers": 1})
        gguf_layout.write_network(path, network)
    found = []
    for path in paths:
        settings = config(path, data, steps=1, learning_rate=1e-9, mask_token="<|mask|>")
        found.append(load_file(adapt(settings, out, device="cpu", workers=1) / "model.safetensors"))
        (out / "checkpoint.pt").unlink(missing_ok=True)
    first, second = found
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_low_rank_leaves_biases_free():
    linear = LowRank(torch.nn.Linear(6, 5), 2)
    trained = {name for name, value in linear.named_parameters() if value.requires_grad}
    assert trained == {"linear.bias", "down", "up"}


def test_bad_bases_are_refused(base, data, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="no <mask>"):
        adapt(config(base, data, mask_token="no <mask>"), out, device="cpu", workers=1)
    with pytest.raises(ValueError, match=r"config\.json"):
        adapt(config(tmp_path / "nowhere", data), out, device="cpu", workers=1)
    other = layout.write_llada(tmp_path / "llada")
    with pytest.raises(ValueError, match="llada"):
        adapt(config(other, data), out, device="cpu", workers=1)
    with pytest.raises(ValueError, match="prompt"):
        adapt(config(base, data, prompt=1), out, device="cpu", workers=1)
    with pytest.raises(ValueError, match="rank"):
        config(base, data, rank=4, three_levels_from=0.5)
    with pytest.raises(ValueError, match="weight_decay"):
        config(base, data, embedding="answers", weight_decay=0.1)
    with pytest.raises(ValueError, match="parts"):
        config(base, data, parts=3)


def test_a_recipe_without_data_says_what_to_give(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("steps = 1\nlearning_rate = 1e-3\n")
    with pytest.raises(ValueError, match="--base"):
        read_adapt_config(recipe)
    with pytest.raises(ValueError, match="--held-out"):
        read_adapt_config(recipe, base="b", data="d")


def test_an_unused_row_of_the_embedding_becomes_the_mask(base, tmp_path):
    described = describe_causal(base)
    tokenizer = adapt_tokenizer(base, tmp_path / "t", mask_token=None, chat_template=None)
    assert adapted_ids(described, tokenizer)[0] == tokenizer.special[MASK]
    path = tmp_path / "t" / "tokenizer.json"
    path.write_text(path.read_text().replace(MASK, "<|other|>"))
    (tmp_path / "t" / "config.json").write_text((base / "config.json").read_text())
    unnamed = adapt_tokenizer(tmp_path / "t", tmp_path / "u", mask_token=None, chat_template=None)
    assert adapted_ids(described, unnamed)[0] == unnamed.size

"""Published layouts: logits as in transformers, a complete mapping, no second copy in memory."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from oddlm.models import families, load_model
from oddlm.models.families import published
from oddlm.models.families.dream import DREAM
from oddlm.models.families.llada import LLADA
from oddlm.models.families.qwen3 import QWEN3
from oddlm.models.loading.architecture import Keys
from oddlm.models.loading.checkpoint import find_architecture
from oddlm.models.transformer import Transformer

from . import published_layout as layout

QWEN3_06B = {
    "architectures": ["A2DQwen3LMHeadModel"],
    "model_type": "a2d-qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
    "pad_token_id": 151643,
}


CLOSE = 1e-9


@torch.no_grad()
def bidirectional(network, tokens, *, shift=False):
    """The logits of a transformers network with a mask that makes attention bidirectional."""
    T = tokens.shape[1]
    mask = torch.zeros(len(tokens), 1, T, T, dtype=torch.float64)
    with layout.nothing_narrower():
        places = torch.arange(T)[None].expand(len(tokens), -1)
        logits = network(input_ids=tokens, attention_mask=mask, position_ids=places).logits
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if shift else logits


def canvas(T=13, rows=3, seed=1):
    return torch.randint(
        layout.VOCABULARY, (rows, T), generator=torch.Generator().manual_seed(seed)
    )


CASES = {
    "llada, grouped heads, three shards": (layout.llama, layout.write_llada, {}, {}),
    "llada, all heads, one file": (
        layout.llama,
        layout.write_llada,
        {"num_key_value_heads": 4},
        {"shards": 1},
    ),
    "llada, tied head": (layout.llama, layout.write_llada, {"tie_word_embeddings": True}, {}),
    "llada, groups of blocks": (
        layout.llama,
        layout.write_llada,
        {"num_hidden_layers": 4},
        {"group": 2},
    ),
    "llada, no n_kv_heads": (
        layout.llama,
        layout.write_llada,
        {"num_key_value_heads": 4},
        {"n_kv_heads": None},
    ),
    "dream, two shards": (layout.qwen2, layout.write_dream, {}, {}),
    "dream, tied head": (layout.qwen2, layout.write_dream, {"tie_word_embeddings": True}, {}),
    "qwen3, tied head": (layout.qwen3, layout.write_qwen3, {"tie_word_embeddings": True}, {}),
    "qwen3, own head": (
        layout.qwen3,
        layout.write_qwen3,
        {"tie_word_embeddings": False},
        {"shards": 2},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tmp_path, case):
    make, write, network_options, options = CASES[case]
    network = make(**network_options)
    if network.config.tie_word_embeddings:
        network.tie_weights()
    tensors = network.state_dict()
    if write is layout.write_llada:
        tensors = layout.llada_tensors(network, options.get("group", 1))
    # stored once, as published; the Dream case has a redundant copy
    if "tied" in case and "dream" not in case:
        tensors.pop("model.transformer.ff_out.weight", tensors.pop("lm_head.weight", None))
    model = load_model(
        str(write(tmp_path, network, tensors=tensors, **options)), dtype="fp64", device="cpu"
    )
    tokens = canvas()
    expected = bidirectional(network, tokens, shift=write is layout.write_dream)
    for start in (0, 1, 6):
        ours = model(tokens, start, torch.full((3,), start))
        assert ours.shape == (3, 13 - start, layout.VOCABULARY)
        assert (ours - expected[:, start:]).abs().max() < CLOSE
    assert expected.std() > 0.1, "the logits are not all alike"


def test_scaled_logits_and_bias(tmp_path):
    network = layout.llama(attention_bias=True)
    tensors = {
        name: t
        for name, t in layout.llada_tensors(network).items()
        if not name.endswith("attn_out.bias")
    }
    for (
        layer
    ) in network.model.layers:  # ours has no bias there, nor has LLaDA with include_qkv_bias
        layer.self_attn.o_proj.bias.data.zero_()
    model = load_model(
        str(layout.write_llada(tmp_path, network, tensors=tensors, scale_logits=True)),
        dtype="fp64",
        device="cpu",
    )
    tokens = canvas()
    ours = model(tokens, 0, torch.zeros(3, dtype=torch.long))
    assert (ours - bidirectional(network, tokens) * 64**-0.5).abs().max() < CLOSE


@pytest.mark.parametrize("write", [layout.write_llada, layout.write_dream, layout.write_qwen3])
def test_padding_changes_nothing(tmp_path, write):
    model = load_model(str(write(tmp_path)), dtype="fp64", device="cpu")
    tokens = canvas(T=9, rows=1)
    alone = model(tokens, 4, torch.tensor([4]))
    longer = torch.cat([canvas(T=12, rows=2, seed=3), canvas(T=9, rows=2, seed=3)], dim=1)[:, :14]
    # LLaDA pads with its end token, so padding cannot be recognised by its tokens
    padding = torch.full((3, 5), model.end_ids[0])
    batch = torch.cat([longer, torch.cat([padding, tokens.expand(3, -1)], dim=1)])
    together = model(batch, 9, torch.tensor([9, 9, 4, 4, 4]))
    assert (together[2:] - alone).abs().max() < CLOSE


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("write", [layout.write_llada, layout.write_dream, layout.write_qwen3])
def test_equal_rows_stay_equal_to_the_last_bit(tmp_path, write, dtype):
    model = load_model(str(write(tmp_path)), dtype=dtype, device="cpu")
    tokens = torch.cat(
        [canvas(T=23, rows=1).expand(7, -1), canvas(T=23, rows=1, seed=2).expand(9, -1)]
    )
    logits = model(tokens, 9, torch.tensor([5] * 7 + [9] * 9))
    assert torch.equal(logits[:7], logits[:1].expand(7, -1, -1))
    assert torch.equal(logits[7:], logits[7:8].expand(9, -1, -1))


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def drop(folder, name):
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")


def add(folder, name, shape=(3,), dtype=torch.float32):
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: torch.ones(shape, dtype=dtype)}, folder / "model.safetensors")


Q = "model.transformer.blocks.1.q_proj.weight"
BREAKS = {
    "missing tensor": (lambda f: drop(f, Q), f"do not fit its config.json: missing {Q}$"),
    "unexpected tensor": (
        lambda f: add(f, "model.wings.weight"),
        r"unexpected model\.wings\.weight",
    ),
    "wrong shape": (
        lambda f: add(f, Q, (64, 65)),
        rf"wrong {Q}: \[64, 65\] in model\.safetensors, not \[64, 64\]",
    ),
    "quantised already": (
        lambda f: add(f, Q, (64, 64), torch.int8),
        f"wrong {Q}: I8 .*not a floating-point type",
    ),
    "more layers": (
        lambda f: edit(f, n_layers=3),
        r"missing model\.transformer\.blocks\.2\.attn_norm\.weight.* and 4 more",
    ),
    "fewer layers": (
        lambda f: edit(f, n_layers=1),
        r"unexpected model\.transformer\.blocks\.1\.attn_norm\.weight",
    ),
    "endless layers": (lambda f: edit(f, n_layers=10**12), "n_layers must be at most 1000"),
    "no width": (lambda f: edit(f, d_model=None), "config.json has no d_model"),
    "wrong width": (
        lambda f: edit(f, d_model="wide"),
        "d_model must be an integer >= 1, not 'wide'",
    ),
    "heads": (lambda f: edit(f, n_heads=3), "width of 64 .* 3 heads"),
    "odd key heads": (
        lambda f: edit(f, n_kv_heads=3),
        "4 query heads .* 3 key heads",
    ),
    "another activation": (
        lambda f: edit(f, activation_type="gelu"),
        "activation_type 'gelu' is not supported, only 'silu' is",
    ),
    "sequential blocks": (
        lambda f: edit(f, block_type="sequential"),
        "block_type 'sequential' is not supported",
    ),
    "biases": (lambda f: edit(f, include_bias=True), "include_bias True is not supported"),
    "damaged config": (
        lambda f: (f / "config.json").write_text("{"),
        "config.json is damaged .*download",
    ),
    "config of nothing": (lambda f: (f / "config.json").write_text("[]"), "config.json is damaged"),
    "no config": (lambda f: (f / "config.json").unlink(), r"has no config\.json"),
    "damaged weights": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 99),
        "model.safetensors is damaged",
    ),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        r"incomplete: model\.safetensors missing",
    ),
    "pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        r"model\.safetensors missing; pytorch_model\.bin is in pickle format",
    ),
    "vocabulary": (
        lambda f: edit(f, vocab_size=100, embedding_size=100),
        "100 tokens, but its tokenizer has 268",
    ),
    "mask outside": (
        lambda f: edit(f, mask_token_id=320),
        "mask_token_id holds 320, outside the vocabulary 0..319",
    ),
    "mask of text": (
        lambda f: edit(f, mask_token_id="5"),
        "mask_token_id holds '5', outside the vocabulary",
    ),
    "mask between": (
        lambda f: edit(f, mask_token_id=5.7),
        "mask_token_id holds 5.7, outside the vocabulary",
    ),
    "mask true": (
        lambda f: edit(f, mask_token_id=True),
        "mask_token_id holds True, outside the vocabulary",
    ),
    "end of a table": (
        lambda f: edit(f, eos_token_id={"id": 1}),
        "end tokens holds {'id': 1}, outside the vocabulary",
    ),
    "endless width": (
        lambda f: edit(f, d_model=10**30),
        "describes a matrix of .* too large",
    ),
    "endless vocabulary": (
        lambda f: edit(f, embedding_size=10**18),
        "describes a matrix of .* too large",
    ),
    "damaged template": (
        lambda f: (f / "chat_template.jinja").write_bytes(b"\xff"),
        "chat_template.jinja is damaged",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return layout.write_llada(tmp_path_factory.mktemp("llada"), shards=1)


@pytest.mark.parametrize("case", BREAKS)
def test_what_does_not_fit_is_named(tmp_path, whole, case):
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage, message = BREAKS[case]
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        load_model(str(tmp_path), device="cpu")
    assert "\n" not in str(caught.value)


def test_a_missing_shard_and_a_damaged_index(tmp_path):
    layout.write_llada(tmp_path, shards=3)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    kept = shard.read_bytes()
    shard.unlink()
    with pytest.raises(ValueError, match=r"incomplete: model-00002-of-00003\.safetensors missing$"):
        load_model(str(tmp_path))
    shard.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(ValueError, match=r"model-00002-of-00003\.safetensors is damaged"):
        load_model(str(tmp_path))
    index = tmp_path / "model.safetensors.index.json"
    for broken in (
        {},
        {"weight_map": {}},
        {"weight_map": {"a": "../secret.safetensors"}},
        {"weight_map": {"a": "weights.bin"}},
    ):
        index.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=r"index\.json is damaged"):
            load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("architecture", "config", "billions"),
    [
        (LLADA, published.LLADA_8B, 8.02),
        (DREAM, published.DREAM_7B, 7.62),
        (QWEN3, QWEN3_06B, 0.60),
    ],
)
def test_the_published_sizes_are_read_and_have_the_published_number_of_weights(
    architecture, config, billions
):
    assert config["model_type"] in architecture.model_types
    with torch.device("meta"):
        network = Transformer(architecture.config(Keys("published", config)))
    assert sum(p.numel() for p in network.parameters()) / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.parametrize(
    ("kind", "classes", "message"),
    [
        (
            "llama",
            ["LlamaForCausalLM"],
            r"describes LlamaForCausalLM, an autoregressive model.*oddlm\.wrap",
        ),
        ("qwen2", ["Qwen2ForCausalLM"], "describes Qwen2ForCausalLM, an autoregressive model"),
        ("qwen3", ["Qwen3ForCausalLM"], "describes Qwen3ForCausalLM, an autoregressive model"),
        ("gpt2", ["GPT2LMHeadModel"], "describes GPT2LMHeadModel, an autoregressive model"),
        (
            "llada_moe",
            ["LLaDAMoEModelLM"],
            r"LLaDAMoEModelLM \(model_type 'llada_moe'\); known: .*LLaDA \(llada\)",
        ),
        (None, None, "unknown architecture None"),
        ("other", 5, "unknown architecture 'other'"),
        ("Dream", ["DreamModel"], "rope_parameters must be a table, not \\[1\\]"),
    ],
)
def test_other_architectures_are_refused_before_weights_are_looked_at(
    tmp_path, kind, classes, message
):
    layout.write_json(
        tmp_path / "config.json",
        {"model_type": kind, "architectures": classes, "rope_parameters": [1]},
    )
    with pytest.raises(ValueError, match=message):
        load_model(str(tmp_path))


def test_a_spare_copy_of_a_tied_head_must_be_the_embedding(tmp_path):
    network = layout.qwen3(tie_word_embeddings=True)
    network.tie_weights()
    layout.write_qwen3(tmp_path, network)
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    load_model(str(tmp_path), device="cpu")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError,
        match=r"lm_head\.weight differs from model\.embed_tokens",
    ):
        load_model(str(tmp_path), device="cpu")


def test_dtypes(tmp_path):
    folder = str(layout.write_dream(tmp_path))
    assert load_model(folder, device="cpu").network.norm.weight.dtype is torch.float32
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp64", torch.float64)):
        assert {
            p.dtype for p in load_model(folder, device="cpu", dtype=name).network.parameters()
        } == {dtype}
    assert not any(p.requires_grad for p in load_model(folder, device="cpu").network.parameters())
    with pytest.raises(ValueError, match="dtype must be one of bf16, fp16, fp32, fp64, not 'int8'"):
        load_model(folder, dtype="int8")
    with pytest.raises(ValueError, match="device 'gpu' cannot be used"):
        load_model(folder, device="gpu")
    with pytest.raises(ValueError, match="has no option 'devise'; options: revision"):
        load_model(folder, devise="cpu")
    with pytest.raises(ValueError, match="is a folder, which has no revision 'main'"):
        load_model(folder, revision="main")


LOAD = r"""
import re, sys, torch
from oddlm.models.loading.checkpoint import describe, load_network
from pathlib import Path

def memory(what):
    return 1024 * int(re.search(rf"{what}:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])

tiny, large = (describe(Path(folder)) for folder in sys.argv[1:])
options = {"device": torch.device("cpu"), "dtype": torch.float32}
load_network(tiny, **options)  # imports libraries
before = memory("VmRSS")
network = load_network(large, **options)
size = sum(p.nbytes for p in network.parameters())
print((memory("VmHWM") - before) / size, size)
"""


def test_weights_exist_once_in_memory(tmp_path, whole):
    sizes = {
        "hidden_size": 512,
        "num_hidden_layers": 10,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    config = LlamaConfig(
        **sizes, intermediate_size=2048, vocab_size=layout.VOCABULARY, tie_word_embeddings=False
    )
    with torch.device("meta"):
        shapes = LlamaForCausalLM(config).state_dict()
    network = SimpleNamespace(
        config=config, state_dict=lambda: {n: torch.ones(t.shape) for n, t in shapes.items()}
    )
    folder = layout.write_llada(tmp_path, network, shards=1)
    command = [sys.executable, "-c", LOAD, str(whole), str(folder)]
    share, size = map(
        float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    )
    assert size > 150e6
    assert 0.95 < share < 1.1, "relative to the size of the weights, all in one file"


def test_a_family_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from oddlm.models.families.qwen3 import QWEN3\n"
        "MINE = replace(QWEN3, name='Mine', model_types=('mine',))\n"
    )
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    families.architectures.cache_clear()
    try:
        assert find_architecture("mine").name == "Mine"
        assert {"LLaDA", "Mine"} < {architecture.name for architecture in families.architectures()}
    finally:
        families.architectures.cache_clear()
        sys.modules.pop("oddlm.models.families.mine", None)
    assert find_architecture("none of them") is None

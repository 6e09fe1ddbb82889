"""Block-causal families: logits as in transformers, and what does not fit is named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import oddlm
from oddlm.models import load_model
from oddlm.models.families import published
from oddlm.models.families.fast_dllm import FAST_DLLM
from oddlm.models.families.llada2 import LLADA2
from oddlm.models.families.nemotron import NEMOTRON
from oddlm.models.families.sdar import SDAR, SDAR_MOE
from oddlm.models.loading.architecture import Keys
from oddlm.models.loading.checkpoint import describe
from oddlm.models.loading.tokenizer import read_tokenizer, special_ids
from oddlm.models.transformer import Transformer

from . import block_layout, published_layout
from .block_layout import BLOCK, KINDS, YARN

CLOSE = 1e-5
NEMOTRON_TYPE = "nemotron_labs_diffusion"
CASES = {
    "sdar": ("sdar", {}, {}),
    "sdar, tied head, one file": ("sdar", {"tie_word_embeddings": True}, {"shards": 1}),
    "sdar_moe, split experts": ("sdar_moe", {}, {"shards": 3}),
    "sdar_moe, every other layer": (
        "sdar_moe",
        {"mlp_only_layers": [], "decoder_sparse_step": 2},
        {},
    ),
    "sdar_moe, plain weights": ("sdar_moe", {"norm_topk_prob": False}, {}),
    "sdar_moe, joined experts": ("sdar_moe", {}, {"experts": "joined"}),
    "llada2, split experts": ("llada2_moe", {}, {"shards": 3}),
    "llada2, stacked experts": ("llada2_moe", {}, {"experts": "stacked"}),
    "llada2, two shared experts": ("llada2_moe", {"n_shared_experts": 2}, {}),
    "llada2, no dense layers": ("llada2_moe", {"first_k_dense_replace": 0}, {}),
    "llada2, one group": ("llada2_moe", {"n_group": 1, "topk_group": 1}, {}),
    "fast_dllm": ("Fast_dLLM_Qwen", {}, {}),
    "fast_dllm, tied head": ("Fast_dLLM_Qwen", {"tie_word_embeddings": True}, {}),
    "nemotron": ("nemotron_labs_diffusion", {}, {}),
}


def canvas(rows, T, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(published_layout.VOCABULARY, (rows, T), generator=generator)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tmp_path, case):
    """One padded batch holds prompts of every length modulo the block."""
    kind, network_options, options = CASES[case]
    network = block_layout.make(kind, **network_options)
    folder = block_layout.write(tmp_path, kind, network, **options)
    model = load_model(str(folder), device="cpu")
    start, length = 2 * BLOCK, BLOCK + 3
    tokens, lengths = canvas(start + 1, start + length), torch.arange(start + 1)
    ours = model(tokens, start, lengths)
    for row, own in enumerate(lengths.tolist()):
        opened = range(own, own + length) if kind == "nemotron_labs_diffusion" else None
        theirs = block_layout.expected(
            network, tokens[row, start - own :], shift=kind == "Fast_dLLM_Qwen", opened=opened
        )
        assert (ours[row] - theirs[own:]).abs().max() < CLOSE, f"a prompt of {own}"
        assert theirs.std() > 0.5, "the logits are not all alike"


@pytest.mark.parametrize("kind", KINDS[:4])
def test_blocks_may_have_any_length(tmp_path, kind):
    network = block_layout.make(kind)
    changes = {"bd_size" if kind == "Fast_dLLM_Qwen" else "block_size": 6}
    model = load_model(str(block_layout.write(tmp_path, kind, network, **changes)), device="cpu")
    (tokens,) = canvas(1, 17)
    theirs = block_layout.expected(network, tokens, block=6, shift=kind == "Fast_dLLM_Qwen")
    assert (model(tokens[None], 3, torch.tensor([3])) - theirs[3:]).abs().max() < CLOSE


def test_a_config_that_does_not_say_its_block_length_is_told(tmp_path):
    """SDAR's checkpoints with longer blocks have the config of those with blocks of 4."""
    network = block_layout.make("sdar")
    folder = block_layout.write(tmp_path, "sdar", network)
    config = json.loads((folder / "config.json").read_text())
    del config["block_size"]
    (folder / "config.json").write_text(json.dumps(config))
    (tokens,) = canvas(1, 17)
    theirs = block_layout.expected(network, tokens, block=6)
    told = oddlm.load(str(folder), device="cpu", block_size=6)
    assert told.info.block_length == 6
    assert (told.model(tokens[None], 3, torch.tensor([3])) - theirs[3:]).abs().max() < CLOSE
    assert oddlm.load(str(folder), device="cpu").info.block_length == 4


@pytest.mark.parametrize(
    ("size", "message"),
    [(0, "at least 1|>= 1"), (True, "block_size"), ("6", "block_size"), (1 << 20, "at most 4096")],
)
def test_a_block_length_that_nothing_can_have_is_refused(tmp_path, size, message):
    folder = block_layout.write(tmp_path, "sdar", block_layout.make("sdar"))
    with pytest.raises(ValueError, match=message):
        load_model(str(folder), device="cpu", block_size=size)


def test_a_network_without_blocks_gets_none(tmp_path):
    folder = published_layout.write_llada(tmp_path)
    with pytest.raises(ValueError, match="not block-causal"):
        load_model(str(folder), device="cpu", block_size=8)


@pytest.mark.parametrize("kind", ["sdar_moe", "llada2_moe"])
def test_experts_are_the_same_however_they_are_stored(tmp_path, kind):
    network = block_layout.make(kind)
    split, *others = (
        load_model(
            str(block_layout.write(tmp_path / how, kind, network, experts=how)), device="cpu"
        ).network.state_dict()
        for how in ("split", "stacked", "joined")
    )
    for other in others:
        assert split.keys() == other.keys()
        assert all(torch.equal(split[name], other[name]) for name in split)


@pytest.mark.parametrize(("dtype", "close"), [("fp32", CLOSE), ("bf16", 0.1)])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_rows_stay_equal(tmp_path, kind, dtype, close):
    """Apart from rounding: a matrix product may treat the last rows of a matrix differently."""
    model = load_model(str(block_layout.write(tmp_path, kind)), dtype=dtype, device="cpu")
    tokens = torch.cat([canvas(1, 23).expand(7, -1), canvas(1, 23, seed=2).expand(9, -1)])
    logits = model(tokens, 9, torch.tensor([5] * 7 + [9] * 9)).float()
    assert (logits[:7] - logits[:1]).abs().max() < close
    assert (logits[7:] - logits[7:8]).abs().max() < close
    assert (logits[:1] - logits[7:8]).abs().mean() > 10 * close


def test_the_bias_of_a_router_stays_in_float32(tmp_path):
    network = block_layout.make("llada2_moe")
    folder = block_layout.write(tmp_path, "llada2_moe", network)
    model = load_model(str(folder), dtype="bf16", device="cpu")
    dtypes = {name: p.dtype for name, p in model.network.named_parameters()}
    wide = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert wide == {"blocks.1.experts.router.bias", "blocks.2.experts.router.bias"}
    ours = model.network.get_parameter("blocks.2.experts.router.bias")
    assert torch.equal(ours, network.model.layers[2].mlp.gate.e_score_correction_bias)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_come_out(tmp_path, kind):
    lm = oddlm.load(str(block_layout.write(tmp_path, kind)), device="cpu")
    (group,) = lm.generate("the end", 3, length=8, steps=8, block_length=BLOCK, progress=False)
    assert len({sample.tokens for sample in group}) > 1
    assert not any(lm.model.mask_id in sample.tokens for sample in group)


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change(folder, drop=(), **added):
    tensors = load_file(folder / "model.safetensors")
    for name in drop:
        del tensors[name]
    added = {name.replace("__", "."): torch.ones(shape) for name, shape in added.items()}
    save_file({**tensors, **added}, folder / "model.safetensors")


LAYER = "model.layers.2.mlp"
GATE = f"{LAYER}.experts.5.gate_proj.weight"
BREAKS = {
    "missing expert": (
        lambda f: change(f, [f"{LAYER}.experts.5.{p}_proj.weight" for p in ("gate", "up", "down")]),
        rf"missing {LAYER}\.experts\.5\.gate_proj\.weight, .*\.experts\.5\.down_proj\.weight$",
    ),
    "truncated expert": (
        lambda f: change(f, **{GATE: (19, 32)}),
        rf"wrong {GATE}: \[19, 32\] in model\.safetensors, not \[20, 32\]$",
    ),
    "more experts": (
        lambda f: edit(f, num_experts=12),
        r"missing model\.layers\.1\.mlp\.experts\.8\.gate_proj\.weight",
    ),
    "fewer experts": (
        lambda f: edit(f, num_experts=4, n_group=2),
        r"wrong model\.layers\.1\.mlp\.gate\.weight: \[8, 32\] .*not \[4, 32\]",
    ),
    "one expert too many": (
        lambda f: change(f, **{f"{LAYER}.experts.8.up_proj.weight": (20, 32)}),
        rf"unexpected {LAYER}\.experts\.8\.up_proj\.weight$",
    ),
    "split and stacked": (
        lambda f: change(f, **{f"{LAYER}.experts.down_proj": (8, 32, 20)}),
        rf"unexpected {LAYER}\.experts\.down_proj$",
    ),
    "no bias": (
        lambda f: change(f, [f"{LAYER}.gate.expert_bias"]),
        rf"missing {LAYER}\.gate\.expert_bias$",
    ),
    "no bias wanted": (
        lambda f: edit(f, moe_router_enable_expert_bias=False),
        r"unexpected model\.layers\.1\.mlp\.gate\.expert_bias",
    ),
    "no shared expert wanted": (
        lambda f: edit(f, num_shared_experts=0),
        r"unexpected model\.layers\.1\.mlp\.shared_experts",
    ),
    "split queries": (
        lambda f: edit(f, using_split_qkv_in_self_attention=True),
        "using_split_qkv_in_self_attention True is not supported",
    ),
    "LLaDA2.2": (lambda f: edit(f, delete_token_id=7), "delete_token_id 7 is not supported"),
    "other scores": (
        lambda f: edit(f, score_function="softmax"),
        "score_function 'softmax' is not supported, only 'sigmoid' is",
    ),
    "other rotary": (lambda f: edit(f, rotary_dim=16), "rotary_dim 16 is not supported, only 8 is"),
    "no rotary": (lambda f: edit(f, partial_rotary_factor=0.01), "cannot turn 0 of 16"),
    "odd rotary": (lambda f: edit(f, partial_rotary_factor=0.2), "cannot turn 3 of 16"),
    "too much rotary": (lambda f: edit(f, partial_rotary_factor=2), "cannot turn 32 of 16"),
    "negative layers": (
        lambda f: edit(f, first_k_dense_replace=-1),
        "first_k_dense_replace must be an integer >= 0, not -1",
    ),
    "uneven groups": (lambda f: edit(f, n_group=3), "2 of 3 groups .* 8 experts"),
    "too many groups": (lambda f: edit(f, topk_group=5), "5 of 4 groups .* 8 experts"),
    "small groups": (lambda f: edit(f, n_group=8), "groups of 1 expert"),
    "too few experts": (
        lambda f: edit(f, num_experts_per_tok=5),
        "5 experts per token cannot be chosen from 4",
    ),
    "endless experts": (lambda f: edit(f, num_experts=10**9), "num_experts must be at most 4096"),
    "endless width": (
        lambda f: edit(f, moe_intermediate_size=10**12),
        "describes experts of .* too large",
    ),
    "no scaling": (
        lambda f: edit(f, routed_scaling_factor=None),
        "routed_scaling_factor must be a positive number, not None",
    ),
    "no block": (lambda f: edit(f, block_size=0), "block_size must be an integer >= 1, not 0"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return block_layout.write(tmp_path_factory.mktemp("llada2"), "llada2_moe", shards=1)


@pytest.mark.parametrize("case", BREAKS)
def test_what_does_not_fit_is_named(tmp_path, whole, case):
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage, message = BREAKS[case]
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        load_model(str(tmp_path), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("sdar", {"block_size": "4"}, "block_size must be an integer >= 1, not '4'"),
        ("sdar", {"block_size": 10**9}, "block_size must be at most 4096"),
        ("sdar", {"attention_bias": True}, "attention_bias True is not supported"),
        ("sdar", {"rope_scaling": {"factor": 2}}, r"rope_scaling \{'factor': 2\} is not supported"),
        ("sdar_moe", {"mlp_only_layers": 1}, "mlp_only_layers must be a list, not 1"),
        (
            "sdar_moe",
            {"mlp_only_layers": ["a"]},
            "mlp_only_layers must be an integer >= 0, not 'a'",
        ),
        ("sdar_moe", {"num_experts": None}, "has no num_experts"),
        ("sdar_moe", {"num_experts_per_tok": 9}, "9 experts per token cannot be chosen from 8"),
        ("sdar_moe", {"norm_topk_prob": 1}, "norm_topk_prob must be true or false, not 1"),
        ("Fast_dLLM_Qwen", {"bd_size": -1}, "bd_size must be an integer >= 1, not -1"),
        ("Fast_dLLM_Qwen", {"layer_types": ["sliding"]}, r"layer_types .* not \['sliding'\]"),
        ("Fast_dLLM_Qwen", {"layer_types": 5}, "layer_types .* not 5"),
        (NEMOTRON_TYPE, {"dlm_paradigm": "autoregressive"}, "dlm_paradigm 'autoregressive'"),
        (NEMOTRON_TYPE, {"rope_parameters": {}}, "rope_theta must be a positive number"),
        (NEMOTRON_TYPE, {"rope_parameters": {"rope_theta": 1e4}}, "rope_type None"),
        (
            NEMOTRON_TYPE,
            {"rope_parameters": {"rope_theta": 1e4, "type": "yarn", **YARN, "mscale": 0.5}},
            "mscale",
        ),
        (NEMOTRON_TYPE, {"tie_word_embeddings": True}, "tie_word_embeddings True"),
        (NEMOTRON_TYPE, {"sliding_window": 64}, "sliding_window 64"),
    ],
)
def test_configs_that_are_refused(tmp_path, kind, changes, message):
    found = block_layout.config(block_layout.make(kind), kind, **changes)
    published_layout.write_json(tmp_path / "config.json", found)
    with pytest.raises(ValueError, match=message):
        describe(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "config", "billions", "tensors", "block"),
    [
        (SDAR, published.SDAR_8B, 8.190735360, 399, 4),
        (SDAR_MOE, published.SDAR_30B, 30.532122624, 18867, 4),
        (LLADA2, published.LLADA2_MINI, 16.255643392, 14813, 32),
        (FAST_DLLM, published.FAST_DLLM_7B, 7.615616512, 339, 32),
        (NEMOTRON, published.NEMOTRON_8B, 8.489553920, 309, 32),
    ],
)
def test_the_published_sizes_have_the_published_number_of_weights_and_tensors(
    architecture, config, billions, tensors, block
):
    assert config["model_type"] in architecture.model_types
    keys = Keys("published", config)
    ours = architecture.config(keys)
    with torch.device("meta"):
        network = Transformer(ours)
    assert sum(p.numel() for p in network.parameters()) == round(billions * 1e9)
    experts = 1 if ours.experts is None else ours.experts.count
    names = [source for name in network.state_dict() for source in architecture.sources(keys, name)]
    assert sum(experts if "{}" in name else 1 for name in names) == tensors
    assert ours.block_length == block


def test_a_mask_token_that_nothing_names(tmp_path):
    published_layout.write_qwen_tokenizer(tmp_path, "Qwen2Tokenizer", mask=None)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    mask = len(published_layout.vocabulary()) + 3

    def found(text, published):
        settings["added_tokens_decoder"][str(mask)]["content"] = text
        published_layout.write_json(tmp_path / "tokenizer_config.json", settings)
        keys = Keys("config.json", {})
        return special_ids(keys, read_tokenizer(tmp_path), 320, published=published)[0]

    for text in ("<MASK>", "|<MASK>|", "<|mask|>"):
        assert found(text, 319) == mask, "a name goes first"
    assert found("<a new MASK>", mask) == mask
    assert found("<|role|>", 319) == 319, "a row without a token"
    with pytest.raises(ValueError, match="no mask_token_id"):
        found("<|role|>", mask)
    with pytest.raises(ValueError, match="no mask_token_id"):
        found("<|role|>", None)
    with pytest.raises(ValueError, match="mask_token_id holds 320, outside the vocabulary"):
        found("<|role|>", 320)

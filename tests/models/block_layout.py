"""Tiny random block-causal checkpoints in the published layouts, from networks of transformers."""

from pathlib import Path

import torch
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from . import published_layout as layout

BLOCK = 4
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": layout.VOCABULARY,
    "tie_word_embeddings": False,
}
SPARSE = {"num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True}
GROUPS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1}
KINDS = ("sdar", "sdar_moe", "llada2_moe", "Fast_dLLM_Qwen", "nemotron_labs_diffusion")
YARN = {"factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 2.0, "beta_slow": 0.2}
YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
LLADA2_NAMES = {
    "model.embed_tokens": "model.word_embeddings",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "self_attn.o_proj": "attention.dense",
    "gate.e_score_correction_bias": "gate.expert_bias",
}


def rope(theta=1e6, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def make(kind, seed=0, **changes):
    """Return a network of transformers with the layers of this model_type, in random float32."""
    eps = {"rms_norm_eps": 1e-6}
    if kind == "sdar":
        config = Qwen3Config(**SIZES | eps | rope() | {"head_dim": 16} | changes)
        return shaken(Qwen3ForCausalLM(config), seed)
    if kind == "sdar_moe":
        sparse = {**SPARSE, "num_experts": 8, "head_dim": 16, "mlp_only_layers": [1]}
        config = Qwen3MoeConfig(**SIZES | eps | rope() | sparse | changes)
        return shaken(Qwen3MoeForCausalLM(config), seed)
    if kind == "llada2_moe":
        sparse = {**SPARSE, **GROUPS, "n_routed_experts": 8, "n_shared_experts": 1, "head_dim": 16}
        sparse |= {"use_qk_norm": True, "num_mtp_layers": 0}
        turned = rope(6e5, partial_rotary_factor=0.5)
        return shaken(
            Glm4MoeForCausalLM(Glm4MoeConfig(**SIZES | eps | turned | sparse | changes)), seed
        )
    if kind == "nemotron_labs_diffusion":
        stretched = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **YARN}}
        config = Ministral3Config(**SIZES | eps | stretched | {"head_dim": 16} | changes)
        return shaken(Ministral3ForCausalLM(config), seed)
    return shaken(Qwen2ForCausalLM(Qwen2Config(**SIZES | eps | rope() | changes)), seed)


def shaken(network, seed):
    """Set all weights to random numbers: norms around 1, everything else around 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.state_dict().items():
        norm = "norm" in name
        tensor.copy_(norm + 0.2 * torch.randn(tensor.shape, generator=generator))
    if network.config.tie_word_embeddings:
        network.tie_weights()
    return network.float().eval()


def config(network, kind, **changes):
    """Return the config.json of a checkpoint as it is published."""
    c = network.config
    rotary = c.rope_parameters
    found = {name: getattr(c, name) for name in SIZES} | {
        "model_type": kind,
        "architectures": [f"{kind}ForCausalLM"],
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": rotary["rope_theta"],
        "rope_scaling": None,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "use_sliding_window": False,
        "pad_token_id": len(layout.vocabulary()),
    }
    if kind != "Fast_dLLM_Qwen":
        found |= {"head_dim": c.head_dim, "block_size": BLOCK}
    else:
        found |= {"bd_size": BLOCK, "layer_types": ["full_attention"] * c.num_hidden_layers}
    if kind == "nemotron_labs_diffusion":
        found |= {"rope_parameters": rotary, "dlm_paradigm": "bidirectional", "mlp_bias": False}
        del found["rope_theta"]
    if kind in ("sdar_moe", "llada2_moe"):
        found |= {name: getattr(c, name) for name in SPARSE}
    if kind == "sdar_moe":
        names = ("num_experts", "mlp_only_layers", "decoder_sparse_step")
        found |= {name: getattr(c, name) for name in names}
    if kind == "llada2_moe":
        found |= {name: getattr(c, name) for name in GROUPS}
        found |= {"num_experts": c.n_routed_experts, "num_shared_experts": c.n_shared_experts}
        found |= {"partial_rotary_factor": 0.5, "use_qkv_bias": False, "use_bias": False}
        found |= {"score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    return found | changes


def tensors(network, kind, experts="split"):
    """Return the tensors under their published names.

    experts: "split" (a tensor for each), "stacked" (gate, up and down) or "joined" (gate and up in
    one, as transformers has them).
    """
    found = {}
    for name, tensor in network.state_dict().items():
        if "experts." in name and "shared" not in name and experts != "joined":
            found |= _unjoined(name, tensor, split=experts == "split")
        else:
            found[name] = tensor
    if kind == "llada2_moe":
        found = _llada2(found)
    if kind == "nemotron_labs_diffusion":
        found = {
            name.replace("model.", "encoder.").replace("lm_head", "diffusion_head"): tensor
            for name, tensor in found.items()
        }
    if network.config.tie_word_embeddings:
        del found["lm_head.weight"]
    return found


def _unjoined(name, tensor, split):
    before, part = name.rsplit(".", 1)
    parts = {part: tensor}
    if part == "gate_up_proj":
        parts = dict(zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1), strict=True))
    if not split:
        return {f"{before}.{part}": stack for part, stack in parts.items()}
    return {
        f"{before}.{e}.{part}.weight": matrix
        for part, stack in parts.items()
        for e, matrix in enumerate(stack)
    }


def _llada2(found):
    renamed = {}
    for name, tensor in found.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            three = [found[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, tensor = (
                name.replace("self_attn.q_proj", "attention.query_key_value"),
                torch.cat(three),
            )
        for theirs, ours in LLADA2_NAMES.items():
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    return renamed


def write(folder: Path, kind, network=None, shards=2, experts="split", stored=None, **changes):
    """Write a checkpoint folder; `stored` replaces its tensors."""
    network = network or make(kind)
    folder.mkdir(parents=True, exist_ok=True)
    layout.write_json(folder / "config.json", config(network, kind, **changes))
    layout.write_weights(folder, stored or tensors(network, kind, experts), shards)
    layout.write_qwen_tokenizer(folder, "Qwen2Tokenizer")
    return folder


@torch.no_grad()
def expected(network, tokens, block=BLOCK, shift=False, opened=None):
    """The logits of one row without padding, attention being block-causal; [T, V].

    opened: attention is causal, except that the positions of this range see each other.
    """
    T = len(tokens)
    index = torch.arange(T)
    blocks = index // block if opened is None else index
    seen = blocks[None, :] <= blocks[:, None]
    if opened is not None:
        inside = (index >= opened.start) & (index < opened.stop)
        seen |= inside[None, :] & inside[:, None]
    mask = torch.where(seen, 0.0, -torch.inf)[None, None]
    logits = network(
        input_ids=tokens[None], attention_mask=mask, position_ids=torch.arange(T)[None]
    ).logits[0]
    return torch.cat([logits[:1], logits[:-1]]) if shift else logits

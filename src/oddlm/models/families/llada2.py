"""LLaDA2.0 and LLaDA2.1 (mini and flash): Bie et al. 2025, arXiv:2512.15745.

The layout is that of Ling 2.0: experts with a shared one after the first layers, RoPE on a part of
each head. Attention is block-causal. LLaDA2.2 has the same model_type and is not supported: its
delete and split tokens change the length of a block.
"""

from ..loading.architecture import (
    MOST_BLOCK_LENGTH,
    MOST_EXPERTS,
    MOST_LAYERS,
    Architecture,
    Keys,
    checked_shape,
)
from ..moe import ExpertConfig
from ..transformer import TransformerConfig
from .published import LLADA2_BLOCK_LENGTH, LLADA2_MASK_ID
from .sdar import EXPERTS, STACKED


def config(keys: Keys) -> TransformerConfig:
    keys.only(
        hidden_act="silu",
        use_bias=False,
        use_qkv_bias=False,
        use_rmsnorm=True,
        use_qk_norm=True,
        using_split_qkv_in_self_attention=False,
        use_sliding_window=False,
        norm_head=False,
        norm_softmax=False,
        rope_scaling=None,
        score_function="sigmoid",
        router_dtype="fp32",
        delete_token_id=None,
        split_token_id=None,
    )
    heads, layers = (
        keys.whole("num_attention_heads"),
        keys.whole("num_hidden_layers", most=MOST_LAYERS),
    )
    head = keys.whole("head_dim")
    rotary = int(keys.positive("partial_rotary_factor") * head)
    keys.only(rotary_dim=rotary)
    ours = TransformerConfig(
        vocab_size=keys.whole("vocab_size"),
        width=keys.whole("hidden_size"),
        layers=layers,
        heads=heads,
        hidden=keys.whole("intermediate_size"),
        rope_theta=keys.positive("rope_theta"),
        norm_eps=keys.positive("rms_norm_eps"),
        kv_heads=keys.whole("num_key_value_heads", heads),
        head_size=head,
        qk_norm=True,
        tied=keys.flag("tie_word_embeddings", False),
        block_length=keys.whole("block_size", LLADA2_BLOCK_LENGTH, MOST_BLOCK_LENGTH),
        rotary_size=rotary,
        experts=experts(keys),
        dense_layers=tuple(range(keys.whole("first_k_dense_replace", 0, MOST_LAYERS, least=0))),
    )
    return checked_shape(keys, ours)


def experts(keys: Keys) -> ExpertConfig:
    hidden = keys.whole("moe_intermediate_size")
    return ExpertConfig(
        count=keys.whole("num_experts", most=MOST_EXPERTS),
        active=keys.whole("num_experts_per_tok"),
        hidden=hidden,
        shared=hidden * keys.whole("num_shared_experts", 0, least=0),
        scores="sigmoid",
        biased=keys.flag("moe_router_enable_expert_bias", True),
        groups=keys.whole("n_group"),
        active_groups=keys.whole("topk_group"),
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.positive("routed_scaling_factor"),
    )


def prefix(keys: Keys, i: int) -> str:
    return f"model.layers.{i}."


LLADA2 = Architecture(
    name="LLaDA2",
    model_types=("llada2_moe", "llada2_moe_veomni"),
    config=config,
    context="max_position_embeddings",
    outer={
        "embed.weight": ("model.word_embeddings.weight",),
        "norm.weight": ("model.norm.weight",),
        "head.weight": ("lm_head.weight",),
    },
    block={
        "attention_norm.weight": ("input_layernorm.weight",),
        "qkv.weight": ("attention.query_key_value.weight",),
        "q_norm.weight": ("attention.query_layernorm.weight",),
        "k_norm.weight": ("attention.key_layernorm.weight",),
        "attention_out.weight": ("attention.dense.weight",),
        "mlp_norm.weight": ("post_attention_layernorm.weight",),
        "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "down.weight": ("mlp.down_proj.weight",),
        **EXPERTS,
        "experts.router.bias": ("mlp.gate.expert_bias",),
        "experts.shared.gate_up.weight": (
            "mlp.shared_experts.gate_proj.weight",
            "mlp.shared_experts.up_proj.weight",
        ),
        "experts.shared.down.weight": ("mlp.shared_experts.down_proj.weight",),
    },
    alternatives=STACKED,
    prefix=prefix,
    mask_id=LLADA2_MASK_ID,
)

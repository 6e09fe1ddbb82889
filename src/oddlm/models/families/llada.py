"""LLaDA (8B Base and Instruct, 1.5, iLLaDA): Nie et al. 2025, arXiv:2502.09992.

Config keys and tensor names are those of its model code.
"""

from ..loading.architecture import MOST_LAYERS, Architecture, Keys, checked_shape
from ..transformer import TransformerConfig


def config(keys: Keys) -> TransformerConfig:
    keys.only(
        rope=True,
        alibi=False,
        layer_norm_type="rms",
        activation_type="silu",
        block_type="llama",
        include_bias=False,
        bias_for_layer_norm=False,
        attention_layer_norm=False,
        multi_query_attention=False,
        input_emb_norm=False,
        clip_qkv=None,
    )
    width, heads = keys.whole("d_model"), keys.whole("n_heads")
    ours = TransformerConfig(
        vocab_size=keys.whole("embedding_size", keys.whole("vocab_size")),
        width=width,
        layers=keys.whole("n_layers", most=MOST_LAYERS),
        heads=heads,
        hidden=keys.whole("mlp_hidden_size", keys.whole("mlp_ratio", 4) * width),
        rope_theta=keys.positive("rope_theta", 10_000.0),
        norm_eps=keys.positive("rms_norm_eps", 1e-5),
        kv_heads=keys.whole("n_kv_heads", heads),
        qkv_bias=keys.flag("include_qkv_bias", False),
        tied=keys.flag("weight_tying", True),
        wide_rotary=keys.flag("rope_full_precision", True),
        logit_scale=width**-0.5 if keys.flag("scale_logits", False) else 1.0,
    )
    return checked_shape(keys, ours)


def prefix(keys: Keys, i: int) -> str:
    size = keys.whole("block_group_size", 1)
    return (
        f"model.transformer.blocks.{i}."
        if size == 1
        else f"model.transformer.block_groups.{i // size}.{i % size}."
    )


LLADA = Architecture(
    name="LLaDA",
    model_types=("llada",),
    config=config,
    context="max_sequence_length",
    outer={
        "embed.weight": ("model.transformer.wte.weight",),
        "norm.weight": ("model.transformer.ln_f.weight",),
        "head.weight": ("model.transformer.ff_out.weight",),
    },
    block={
        "attention_norm.weight": ("attn_norm.weight",),
        "qkv.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
        "qkv.bias": ("q_proj.bias", "k_proj.bias", "v_proj.bias"),
        "attention_out.weight": ("attn_out.weight",),
        "mlp_norm.weight": ("ff_norm.weight",),
        "gate_up.weight": ("ff_proj.weight", "up_proj.weight"),
        "down.weight": ("ff_out.weight",),
    },
    prefix=prefix,
)

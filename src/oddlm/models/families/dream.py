"""Dream (v0 Base and Instruct, Dream-Coder, DiffuCoder): Ye et al. 2025, arXiv:2508.15487.

It has Qwen2's layout with bidirectional attention. Dream was initialised from an autoregressive
network and predicts position j from the hidden state of position j - 1. Its published sampler takes
confidence from the distribution that tokens are drawn from, after temperature and filters.
"""

from ..loading.architecture import MOST_LAYERS, Architecture, Keys, checked_shape
from ..transformer import TransformerConfig

OUTER = {
    "embed.weight": ("model.embed_tokens.weight",),
    "norm.weight": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
}
BLOCK = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "qkv.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "qkv.bias": tuple(f"self_attn.{part}_proj.bias" for part in "qkv"),
    "attention_out.weight": ("self_attn.o_proj.weight",),
    "mlp_norm.weight": ("post_attention_layernorm.weight",),
    "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down.weight": ("mlp.down_proj.weight",),
}


def qwen_config(
    keys: Keys, *, qkv_bias: bool, qk_norm: bool, tied: bool, shift: bool
) -> TransformerConfig:
    """Read the config keys shared by the Qwen family.

    tied: the default of tie_word_embeddings.
    """
    keys.only(hidden_act="silu", use_sliding_window=False, rope_scaling=None)
    rotary = keys.table("rope_parameters")  # used by newer versions of transformers
    rotary.only(rope_type="default")
    heads = keys.whole("num_attention_heads")
    ours = TransformerConfig(
        vocab_size=keys.whole("vocab_size"),
        width=keys.whole("hidden_size"),
        layers=keys.whole("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        hidden=keys.whole("intermediate_size"),
        rope_theta=rotary.positive("rope_theta", keys.positive("rope_theta", 10_000.0)),
        norm_eps=keys.positive("rms_norm_eps", 1e-6),
        kv_heads=keys.whole("num_key_value_heads", heads),
        head_size=keys.whole("head_dim") if keys.get("head_dim") else None,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied=keys.flag("tie_word_embeddings", tied),
        shift=shift,
    )
    return checked_shape(keys, ours)


def config(keys: Keys) -> TransformerConfig:
    return qwen_config(keys, qkv_bias=True, qk_norm=False, tied=False, shift=True)


def prefix(keys: Keys, i: int) -> str:
    return f"model.layers.{i}."


DREAM = Architecture(
    name="Dream",
    model_types=("Dream", "dream"),
    config=config,
    context="max_position_embeddings",
    outer=OUTER,
    block=BLOCK,
    prefix=prefix,
    confidence="sampled",
)

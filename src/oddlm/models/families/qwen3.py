"""Qwen3 as a masked diffusion model (dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1).

It has Qwen3's layout with bidirectional attention.
"""

from ..loading.architecture import Architecture, Keys
from ..transformer import TransformerConfig
from .dream import BLOCK, OUTER, prefix, qwen_config


def config(keys: Keys) -> TransformerConfig:
    keys.only(attention_bias=False)
    keys.whole("head_dim")  # required: Qwen3's head size need not be width / heads
    return qwen_config(keys, qkv_bias=False, qk_norm=True, tied=False, shift=False)


QWEN3 = Architecture(
    name="Qwen3 diffusion",
    model_types=("a2d-qwen3",),
    config=config,
    context="max_position_embeddings",
    outer=OUTER,
    block={
        **BLOCK,
        "q_norm.weight": ("self_attn.q_norm.weight",),
        "k_norm.weight": ("self_attn.k_norm.weight",),
    },
    prefix=prefix,
)

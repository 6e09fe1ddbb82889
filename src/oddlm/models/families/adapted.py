"""Causal checkpoints that `oddlm adapt` turned into masked diffusion models.

They keep the layout of Llama, Qwen2 or Qwen3 and, like Dream, predict position j from the hidden
state of position j - 1; attention is bidirectional.
"""

from ..loading.architecture import Architecture, Keys
from ..transformer import TransformerConfig
from .dream import BLOCK, OUTER, prefix, qwen_config
from .qwen3 import QWEN3

ADAPTED = "adapted-"  # before the model_type of the causal checkpoint
UNBIASED = {name: sources for name, sources in BLOCK.items() if name != "qkv.bias"}


def llama_config(keys: Keys) -> TransformerConfig:
    keys.only(attention_bias=False, mlp_bias=False)
    return qwen_config(keys, qkv_bias=False, qk_norm=False, tied=False, shift=True)


def qwen2_config(keys: Keys) -> TransformerConfig:
    return qwen_config(keys, qkv_bias=True, qk_norm=False, tied=False, shift=True)


def qwen3_config(keys: Keys) -> TransformerConfig:
    keys.only(attention_bias=False)
    keys.whole("head_dim")
    return qwen_config(keys, qkv_bias=False, qk_norm=True, tied=False, shift=True)


LLAMA = Architecture(
    name="Adapted Llama",
    model_types=(ADAPTED + "llama",),
    config=llama_config,
    context="max_position_embeddings",
    outer=OUTER,
    block=UNBIASED,
    prefix=prefix,
)
QWEN2 = Architecture(
    name="Adapted Qwen2",
    model_types=(ADAPTED + "qwen2",),
    config=qwen2_config,
    context="max_position_embeddings",
    outer=OUTER,
    block=BLOCK,
    prefix=prefix,
)
ADAPTED_QWEN3 = Architecture(
    name="Adapted Qwen3",
    model_types=(ADAPTED + "qwen3",),
    config=qwen3_config,
    context="max_position_embeddings",
    outer=OUTER,
    block=QWEN3.block,
    prefix=prefix,
)

"""Causal checkpoints that `oddlm adapt` turned into masked diffusion models.

They keep the layout of Llama, Qwen2 or Qwen3 and, like Dream, predict position j from the hidden
state of position j - 1; attention is bidirectional.
"""

from collections.abc import Callable, Mapping

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


def _adapted(
    layout: str, config: Callable[[Keys], TransformerConfig], block: Mapping[str, tuple[str, ...]]
) -> Architecture:
    return Architecture(
        name=f"Adapted {layout}",
        model_types=(ADAPTED + layout.lower(),),
        config=config,
        context="max_position_embeddings",
        outer=OUTER,
        block=block,
        prefix=prefix,
    )


LLAMA = _adapted("Llama", llama_config, UNBIASED)
QWEN2 = _adapted("Qwen2", qwen2_config, BLOCK)
ADAPTED_QWEN3 = _adapted("Qwen3", qwen3_config, QWEN3.block)

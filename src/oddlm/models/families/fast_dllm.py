"""Fast-dLLM v2 (1.5B and 7B): Wu et al. 2025, arXiv:2509.26328.

It has Qwen2.5's layout. Attention is block-causal, and position j is predicted from the hidden
state of position j - 1, so that the first position of a block follows from the block before it.
"""

from dataclasses import replace

from ..loading.architecture import MOST_BLOCK_LENGTH, Architecture, Keys
from ..transformer import TransformerConfig
from .dream import BLOCK, OUTER, prefix, qwen_config
from .published import FAST_DLLM_BLOCK_LENGTH, FAST_DLLM_MASK_ID


def config(keys: Keys) -> TransformerConfig:
    kinds = keys.get("layer_types", [])
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise ValueError(f"{keys.where}: layer_types must all be 'full_attention', not {kinds!r}")
    ours = qwen_config(keys, qkv_bias=True, qk_norm=False, tied=False, shift=True)
    return replace(
        ours, block_length=keys.whole("bd_size", FAST_DLLM_BLOCK_LENGTH, MOST_BLOCK_LENGTH)
    )


FAST_DLLM = Architecture(
    name="Fast-dLLM v2",
    model_types=("Fast_dLLM_Qwen",),
    config=config,
    context="max_position_embeddings",
    outer=OUTER,
    block=BLOCK,
    prefix=prefix,
    mask_id=FAST_DLLM_MASK_ID,
)

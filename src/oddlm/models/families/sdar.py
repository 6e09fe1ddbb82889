"""SDAR (1.7B to 30B-A3B): Cheng et al. 2025, arXiv:2510.06303; and TraDo: Wang et al. 2025,
arXiv:2509.06949, which was trained from it.

They have the layout of Qwen3 or Qwen3-MoE. Attention is block-causal.
"""

from dataclasses import replace

from ..loading.architecture import (
    MOST_BLOCK_LENGTH,
    MOST_EXPERTS,
    Architecture,
    Keys,
    checked_shape,
)
from ..moe import ExpertConfig
from ..transformer import TransformerConfig
from . import qwen3
from .dream import OUTER, prefix
from .published import SDAR_BLOCK_LENGTH, SDAR_MASK_ID

EXPERTS = {
    "experts.router.weight": ("mlp.gate.weight",),
    "experts.gate_up.weight": (
        "mlp.experts.{}.gate_proj.weight",
        "mlp.experts.{}.up_proj.weight",
    ),
    "experts.down.weight": ("mlp.experts.{}.down_proj.weight",),
}
# All experts in one tensor, as recent versions of transformers write them or as dFactory does.
STACKED = {
    "experts.gate_up.weight": (
        ("mlp.experts.gate_up_proj",),
        ("mlp.experts.gate_proj", "mlp.experts.up_proj"),
    ),
    "experts.down.weight": (("mlp.experts.down_proj",),),
}


def config(keys: Keys) -> TransformerConfig:
    block_length = keys.whole("block_size", SDAR_BLOCK_LENGTH, MOST_BLOCK_LENGTH)
    return replace(qwen3.config(keys), block_length=block_length)


def moe_config(keys: Keys) -> TransformerConfig:
    dense = config(keys)
    step, plain = keys.whole("decoder_sparse_step", 1), keys.numbers("mlp_only_layers")
    experts = ExpertConfig(
        count=keys.whole("num_experts", most=MOST_EXPERTS),
        active=keys.whole("num_experts_per_tok"),
        hidden=keys.whole("moe_intermediate_size"),
        normalised=keys.flag("norm_topk_prob", True),
    )
    layers = tuple(i for i in range(dense.layers) if i in plain or (i + 1) % step)
    return checked_shape(keys, replace(dense, experts=experts, dense_layers=layers))


SDAR = Architecture(
    name="SDAR",
    model_types=("sdar",),
    config=config,
    context="max_position_embeddings",
    outer=OUTER,
    block=qwen3.QWEN3.block,
    prefix=prefix,
    mask_id=SDAR_MASK_ID,
)
SDAR_MOE = replace(
    SDAR,
    name="SDAR-MoE",
    model_types=("sdar_moe",),
    config=moe_config,
    block={**SDAR.block, **EXPERTS},
    alternatives=STACKED,
)

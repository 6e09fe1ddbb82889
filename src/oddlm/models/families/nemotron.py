"""Nemotron-Labs-Diffusion (3B, 8B, 14B; not the vision models): Fu et al. 2026, technical report.

It has the layout of Ministral 3: Llama's, with stretched RoPE. The open block is read in both
directions, everything before it causally, as in the training mask of its published code. Position j
is predicted from its own hidden state. (The published sampler takes the first token of each block
from the causal mode instead, in which position j - 1 predicts it.)
"""

from dataclasses import replace

from ..loading.architecture import MOST_BLOCK_LENGTH, Architecture, Keys
from ..transformer import TransformerConfig, Yarn
from .adapted import UNBIASED
from .dream import qwen_config
from .published import NEMOTRON_BLOCK_LENGTH, NEMOTRON_MASK_ID

PARADIGMS = ("bidirectional", "block_diff")
ROPE = "rope_parameters"
ORIGINAL = "original_max_position_embeddings"


def config(keys: Keys) -> TransformerConfig:
    keys.only(attention_bias=False, mlp_bias=False, sliding_window=None, tie_word_embeddings=False)
    paradigm = keys.get("dlm_paradigm", PARADIGMS[0])
    if paradigm not in PARADIGMS:
        raise ValueError(
            f"{keys.where}: dlm_paradigm {paradigm!r} is not supported, only those of diffusion: "
            f"{', '.join(PARADIGMS)}"
        )
    keys.whole("head_dim")
    plain = {**keys.values, ROPE: {"rope_theta": keys.table(ROPE).positive("rope_theta")}}
    ours = qwen_config(
        Keys(keys.where, plain), qkv_bias=False, qk_norm=False, tied=False, shift=False
    )
    return replace(
        ours,
        block_length=keys.whole("block_size", NEMOTRON_BLOCK_LENGTH, MOST_BLOCK_LENGTH),
        causal_context=True,
        yarn=yarn(keys.table(ROPE)),
    )


def yarn(rope: Keys) -> Yarn:
    """Read the stretched RoPE, whose scale of attention is 1.

    Beyond the original length the published code also scales queries (llama_4_scaling_beta); we end
    there.
    """
    rope.only(attention_factor=None, truncate=True, partial_rotary_factor=1.0)
    kind = rope.get("rope_type", rope.get("type"))
    if kind != "yarn":
        raise ValueError(f"{rope.where}: rope_type {kind!r} is not supported, only 'yarn' is")
    if rope.positive("mscale") != rope.positive("mscale_all_dim"):
        raise ValueError(f"{rope.where}: mscale and mscale_all_dim must be equal")
    return Yarn(
        factor=rope.positive("factor"),
        original=rope.whole(ORIGINAL),
        fast=rope.positive("beta_fast", 32.0),
        slow=rope.positive("beta_slow", 1.0),
    )


def prefix(keys: Keys, i: int) -> str:
    return f"encoder.layers.{i}."


NEMOTRON = Architecture(
    name="Nemotron-Labs-Diffusion",
    model_types=("nemotron_labs_diffusion",),
    config=config,
    context=f"{ROPE}.{ORIGINAL}",
    outer={
        "embed.weight": ("encoder.embed_tokens.weight",),
        "norm.weight": ("encoder.norm.weight",),
        "head.weight": ("diffusion_head.weight",),
    },
    block=UNBIASED,
    prefix=prefix,
    mask_id=NEMOTRON_MASK_ID,
)

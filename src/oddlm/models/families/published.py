"""Assumptions about the published checkpoints, from documentation and reports only.

Tensor names and config keys come from public model code and are in the other files of this folder.
The values here could not be checked against the files themselves. A checkpoint always takes
precedence: these values are defaults for what it does not specify, and the shapes of benchmarks.
"""

from typing import Any

# Texts of the mask token, tried in this order if neither config.json nor the tokenizer's settings
# name one.
MASK_TEXTS = ("<|mdm_mask|>", "<|mask|>", "<mask>", "[MASK]", "<|MASK|>", "<MASK>", "|<MASK>|")

# Tokens that end an answer or a turn, in addition to the eos and pad ids: LLaDA's EOT (126348),
# Dream's and Qwen's, and what ends a turn in LLaDA2's template.
END_TEXTS = ("<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<|role_end|>")

# What the config.json of a block-causal checkpoint may lack: engines have these values in their
# code. SDAR also has checkpoints with longer blocks; those need block_size in their config.json.
SDAR_BLOCK_LENGTH, SDAR_MASK_ID = 4, 151669
LLADA2_BLOCK_LENGTH, LLADA2_MASK_ID = 32, 156895
FAST_DLLM_BLOCK_LENGTH, FAST_DLLM_MASK_ID = 32, 151665
NEMOTRON_BLOCK_LENGTH, NEMOTRON_MASK_ID = 32, 100

# Tokenizers stored as vocab.json and merges.txt that split text like Qwen2.
QWEN2_TOKENIZERS = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")

# How the authors of the Dream family sample, according to their scripts and READMEs: the evaluation
# of Dream-Instruct, that of Dream-Base on maths, and the examples of the others; always one step
# per token. These settings are not applied automatically, but the whole family takes confidence
# from the sampled distribution (`families.dream`). At these settings it is 1 almost everywhere, so
# text is written from left to right. (Their first step writes no token and their last step two;
# ours writes one in each step.)
SAMPLING: dict[str, dict[str, Any]] = {
    "Dream-org/Dream-v0-Instruct-7B": {"policy": "entropy", "temperature": 0.1, "top_p": 0.9},
    "Dream-org/Dream-v0-Base-7B": {"policy": "entropy", "temperature": 0.0, "top_p": 0.95},
    "Dream-org/Dream-Coder-v0-Instruct-7B": {
        "policy": "entropy",
        "temperature": 0.1,
        "top_p": 0.95,
    },
    "apple/DiffuCoder-7B-Base": {"policy": "entropy", "temperature": 0.2, "top_p": 0.95},
    "apple/DiffuCoder-7B-cpGRPO": {"policy": "entropy", "temperature": 0.4, "top_p": 0.95},
}

# config.json of the published sizes. iLLaDA-8B has LLaDA's layout and mask id 5; Dream-Coder and
# DiffuCoder have Dream's size.
LLADA_8B: dict[str, Any] = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "mlp_hidden_size": 12288,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "rope": True,
    "rope_theta": 500000.0,
    "rope_full_precision": True,
    "rms_norm_eps": 1e-5,
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "block_type": "llama",
    "block_group_size": 1,
    "include_bias": False,
    "include_qkv_bias": False,
    "weight_tying": False,
    "scale_logits": False,
    "mask_token_id": 126336,
    "eos_token_id": 126081,
    "pad_token_id": 126081,
}
DREAM_7B: dict[str, Any] = {
    "architectures": ["DreamModel"],
    "model_type": "Dream",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "mask_token_id": 151666,
    "eos_token_id": 151643,
    "pad_token_id": 151643,
}

# SDAR-30B-A3B is assumed to have the sizes of Qwen3-30B-A3B, Fast-dLLM v2 those of Qwen2.5.
SDAR_8B: dict[str, Any] = {
    "architectures": ["SDARForCausalLM"],
    "model_type": "sdar",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "eos_token_id": 151643,
}
SDAR_30B: dict[str, Any] = {
    **SDAR_8B,
    "architectures": ["SDARMoeForCausalLM"],
    "model_type": "sdar_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
LLADA2_MINI: dict[str, Any] = {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "moe_router_enable_expert_bias": True,
    "score_function": "sigmoid",
    "vocab_size": 157184,
    "max_position_embeddings": 32768,
    "rope_theta": 600000.0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "pad_token_id": 156892,
}
FAST_DLLM_7B: dict[str, Any] = {
    **DREAM_7B,
    "architectures": ["Fast_dLLM_QwenForCausalLM"],
    "model_type": "Fast_dLLM_Qwen",
    "max_position_embeddings": 32768,
    "bd_size": 32,
    "mask_token_id": None,
    "eos_token_id": 151645,
}
NEMOTRON_8B: dict[str, Any] = {
    "architectures": ["NemotronLabsDiffusionModel"],
    "model_type": "nemotron_labs_diffusion",
    "dlm_paradigm": "bidirectional",
    "hidden_size": 4096,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 131072,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "block_size": 32,
    "mask_token_id": 100,
    "eos_token_id": 11,
}

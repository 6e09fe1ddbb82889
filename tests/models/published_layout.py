"""Tiny random checkpoints in the published layouts, made from networks of transformers."""

import json
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

LLADA_TEMPLATE = (
    "{% for message in messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML_TEMPLATE = (
    "{%- for message in messages %}\n"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\n' }}\n{%- endif %}"
)
LLADA_SPECIAL = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|mdm_mask|>",
]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
# a few merges, so that pre-tokenisation matters
PAIRS = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ċ", "Ċ"), ("i", "n"), ("Ġ", "the")]
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
}
VOCABULARY = 320
LLADA_NAMES = {
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}
LLADA_OUTER = {
    "model.embed_tokens.weight": "model.transformer.wte.weight",
    "model.norm.weight": "model.transformer.ln_f.weight",
    "lm_head.weight": "model.transformer.ff_out.weight",
}


def vocabulary() -> dict[str, int]:
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in PAIRS)]
    return {piece: i for i, piece in enumerate(pieces)}


def shaken(network, seed=0):
    """Set all weights, norms included, to random float64 values."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = (
            (1 + 0.3 * noise)
            if parameter.dim() == 1 and parameter.data.eq(1).all()
            else 0.25 * noise
        )
    network = network.double().eval()
    head = (
        getattr(network.config, "head_dim", None)
        or network.config.hidden_size // network.config.num_attention_heads
    )
    theta = network.config.rope_parameters["rope_theta"]
    # transformers computes it in float32
    exponent = -torch.arange(0, head, 2, dtype=torch.float64) / head
    network.model.rotary_emb.inv_freq = theta**exponent
    return network


@contextmanager
def nothing_narrower():
    """Make transformers compute norms and rotary angles in float64 instead of float32."""
    to = torch.Tensor.to

    def wide(self, *args, **kwargs):
        args = [torch.float64 if a is torch.float32 else a for a in args]
        return to(
            self,
            *args,
            **{k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()},
        )

    with (
        patch.object(torch.Tensor, "to", wide),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def llama(seed=0, **changes):
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    config = LlamaConfig(
        **{
            **SIZES,
            "vocab_size": VOCABULARY,
            "rms_norm_eps": 1e-5,
            "rope_parameters": rope,
            **changes,
        }
    )
    return shaken(LlamaForCausalLM(config), seed)


def qwen2(seed=0, **changes):
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    config = Qwen2Config(
        **{
            **SIZES,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": False,
            "rope_parameters": rope,
            **changes,
        }
    )
    return shaken(Qwen2ForCausalLM(config), seed)


def qwen3(seed=0, **changes):
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    config = Qwen3Config(
        **{**SIZES, "head_dim": 32, "vocab_size": VOCABULARY, "rope_parameters": rope, **changes}
    )
    return shaken(Qwen3ForCausalLM(config), seed)


def llada_tensors(network, group=1):
    found = {}
    for name, tensor in network.state_dict().items():
        if name in LLADA_OUTER:
            found[LLADA_OUTER[name]] = tensor
            continue
        _, _, number, rest = name.split(".", 3)
        part, kind = rest.rsplit(".", 1)
        i = int(number)
        block = f"blocks.{i}" if group == 1 else f"block_groups.{i // group}.{i % group}"
        found[f"model.transformer.{block}.{LLADA_NAMES[part]}.{kind}"] = tensor
    return found


def llada_config(network, **changes):
    c = network.config
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "d_model": c.hidden_size,
        "n_layers": c.num_hidden_layers,
        "n_heads": c.num_attention_heads,
        "n_kv_heads": c.num_key_value_heads,
        "mlp_hidden_size": c.intermediate_size,
        "vocab_size": c.vocab_size,
        "embedding_size": c.vocab_size,
        "max_sequence_length": 256,
        "rope": True,
        "rope_theta": 500000.0,
        "rope_full_precision": True,
        "rms_norm_eps": 1e-5,
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "block_type": "llama",
        "include_bias": False,
        "include_qkv_bias": bool(c.attention_bias),
        "weight_tying": c.tie_word_embeddings,
        "scale_logits": False,
        "mask_token_id": len(vocabulary()) + 5,
        "eos_token_id": len(vocabulary()) + 1,
        "pad_token_id": len(vocabulary()) + 1,
        **changes,
    }


def qwen_config(network, kind, **changes):
    c = network.config
    names = [*SIZES, "vocab_size", "tie_word_embeddings", "rms_norm_eps"]
    rest = (
        {"head_dim": c.head_dim, "attention_bias": False}
        if kind == "a2d-qwen3"
        else {"mask_token_id": len(vocabulary()) + 3}
    )
    return {
        "architectures": ["DreamModel" if kind == "Dream" else "A2DQwen3LMHeadModel"],
        "model_type": kind,
        **{name: getattr(c, name) for name in names},
        "max_position_embeddings": 256,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "pad_token_id": len(vocabulary()),
        **rest,
        **changes,
    }


def write_weights(folder: Path, tensors, shards=1):
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, where = list(tensors), {}
    # neighbours land in different shards, as the pieces of one of our parameters may
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = names[shard::shards]
        save_file({name: tensors[name] for name in own}, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(own, file)
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": where,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_json(path: Path, content):
    path.write_text(json.dumps(content, indent=1))


def write_llada_tokenizer(folder: Path, template=LLADA_TEMPLATE):
    backend = Tokenizer(models.BPE(vocab=vocabulary(), merges=PAIRS))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in LLADA_SPECIAL]
    )
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
    }
    settings |= {"pad_token": "<|endoftext|>", "chat_template": template}
    write_json(
        folder / "tokenizer_config.json", {k: v for k, v in settings.items() if v is not None}
    )


def write_qwen_tokenizer(folder: Path, kind="DreamTokenizer", mask="<|mask|>"):
    write_json(folder / "vocab.json", vocabulary())
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in PAIRS))
    added = {
        str(len(vocabulary()) + i): {
            "content": text,
            "special": True,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for i, text in enumerate(QWEN_SPECIAL)
    }
    settings = {
        "tokenizer_class": kind,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": mask,
    }
    write_json(folder / "tokenizer_config.json", {**settings, "added_tokens_decoder": added})
    (folder / "chat_template.jinja").write_text(CHATML_TEMPLATE)


def write_llada(folder: Path, network=None, shards=3, group=1, tensors=None, **changes):
    network = network or llama()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", llada_config(network, block_group_size=group, **changes))
    write_weights(folder, tensors or llada_tensors(network, group), shards)
    write_llada_tokenizer(folder)
    return folder


def write_dream(folder: Path, network=None, shards=2, tensors=None, **changes):
    network = network or qwen2()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", qwen_config(network, "Dream", **changes))
    write_weights(folder, tensors or network.state_dict(), shards)
    write_qwen_tokenizer(folder)
    return folder


def write_qwen3(folder: Path, network=None, shards=1, tensors=None, **changes):
    network = network or qwen3()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", qwen_config(network, "a2d-qwen3", **changes))
    write_weights(folder, tensors or network.state_dict(), shards)
    write_qwen_tokenizer(folder, "Qwen2Tokenizer")
    return folder

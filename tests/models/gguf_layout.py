"""Small GGUF files, written with the gguf package from networks of transformers."""

import gguf
from gguf import GGMLQuantizationType as Kind
from tokenizers import pre_tokenizers

from . import published_layout as layout

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
}
NETWORKS = {"llama": layout.llama, "qwen2": layout.qwen2, "qwen3": layout.qwen3}
SPLIT = {"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2"}
SPECIAL, USER_DEFINED = layout.QWEN_SPECIAL, "<think>"
PAIRS = [*layout.PAIRS, ("1", "2"), ("12", "3")]  # digits, which are split in different ways
UNMERGED = "Ġzq"  # no merge makes this token: it is only found where whole words are looked up


def vocabulary(size=layout.VOCABULARY):
    """Tokens and their types: bytes, words, control tokens, a user-defined one, unused ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(a + b for a, b in PAIRS), UNMERGED]
    kinds = [1] * len(tokens) + [3] * len(SPECIAL) + [4]
    tokens += [*SPECIAL, USER_DEFINED]
    rest = size - len(tokens)
    return tokens + [f"[PAD{i}]" for i in range(rest)], kinds + [5] * rest


def file_name(name, kind):
    """The name of a tensor of transformers in a GGUF file, from the gguf package's own table."""
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == kind)
    return gguf.get_tensor_name_map(arch, 8).get_name(name, try_suffixes=(".weight", ".bias"))


def interleaved(weight, heads):
    """The order of the rows of queries and keys in Llama's files."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, -1)


def tensors_of(network):
    """The tensors of a network of transformers, as a GGUF file has them."""
    c, found = network.config, {}
    for name, tensor in network.state_dict().items():
        values = tensor.float().numpy()
        if c.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            query = name.endswith("q_proj.weight")
            values = interleaved(values, c.num_attention_heads if query else c.num_key_value_heads)
        if not (c.tie_word_embeddings and name == "lm_head.weight"):
            found[file_name(name, c.model_type)] = values
    return found


def metadata_of(network, split=None):
    c = network.config
    kind = c.model_type
    tokens, kinds = vocabulary(c.vocab_size)
    return {
        f"{kind}.block_count": c.num_hidden_layers,
        f"{kind}.context_length": 256,
        f"{kind}.embedding_length": c.hidden_size,
        f"{kind}.feed_forward_length": c.intermediate_size,
        f"{kind}.attention.head_count": c.num_attention_heads,
        f"{kind}.attention.head_count_kv": c.num_key_value_heads,
        f"{kind}.attention.key_length": network.model.layers[0].self_attn.head_dim,
        f"{kind}.attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        f"{kind}.rope.freq_base": c.rope_parameters["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": split or SPLIT[kind],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in PAIRS],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.chat_template": layout.CHATML_TEMPLATE,
    }


ADDERS = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}


def write(path, kind, metadata, tensors, quantised=Kind.F32):
    """Write a file with the gguf package; a metadata value of None is left out."""
    writer = gguf.GGUFWriter(path, kind)
    writer.data_alignment = metadata.get("general.alignment", 32)
    for key, value in metadata.items():
        if value is not None:
            getattr(writer, f"add_{ADDERS[type(value)]}")(key, value)
    for name, values in tensors.items():
        form = quantised if values.ndim == 2 else Kind.F32
        writer.add_tensor(name, gguf.quants.quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_network(path, network, quantised=Kind.F32, tensors=None, split=None, **changes):
    kind = network.config.model_type
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    metadata = metadata_of(network, split) | changed
    return write(path, kind, metadata, tensors or tensors_of(network), quantised)

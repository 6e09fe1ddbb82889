"""GGUF files converted to checkpoints in the published layout: config.json, safetensors, tokenizer.

The weights are unpacked and rounded to bfloat16. Whatever this file does not know about a network
is refused, so that a converted checkpoint computes what the file describes.
"""

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...files import write_whole
from ..transformer import TransformerConfig
from .architecture import MOST_LAYERS, checked_shape
from .checkpoint import CONFIG, WHOLE
from .gguf_file import GgufFile, GgufTensor, damaged, read_gguf
from .gguf_tokenizer import FOLDER, convert_tokenizer, token_ids
from .tokenizer import FILE, SETTINGS

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
KEYS = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "tensor_data_layout",
    "vocab_size",
}
# Keys that change the network unless they have this value.
NEUTRAL = {
    "attention.causal": True,
    "attention.sliding_window": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.factor": 1.0,
    "rope.scaling.type": "none",
}
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
Layout = dict[str, tuple[str, tuple[int, ...]]]  # published name and shape by the name in the file


def convert_gguf(path: Path, folder: Path) -> None:
    """Write the model in a GGUF file as a checkpoint into a new folder.

    The folder appears when it is complete. Raise ValueError if it exists with files in it, or if
    the file is damaged or not supported.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"{folder} already exists: name a new folder")
    file = read_gguf(path)
    kind, shape = describe_gguf(file)
    layout = _layout(kind, shape)
    _check_tensors(file, layout)
    marked = token_ids(file, shape.vocab_size)
    tokenizer, settings = convert_tokenizer(file, shape.vocab_size)
    context = file.keys.whole(f"{kind}.context_length")
    texts = {
        CONFIG: json.dumps(_config(kind, shape, context, marked), indent=2),
        FILE: tokenizer,
        SETTINGS: json.dumps({**settings, "model_max_length": context}, indent=2),
    }
    with _whole_folder(folder) as part:
        for name, text in texts.items():
            write_whole(part / name, text.encode())
        _write_weights(part / WHOLE, file, layout, shape if kind == "llama" else None)


def describe_gguf(file: GgufFile) -> tuple[str, TransformerConfig]:
    """Return the architecture of a file and its sizes; raise ValueError if it is not supported."""
    keys = file.keys
    kind = keys.get("general.architecture")
    if kind not in CLASSES:
        raise ValueError(
            f"{keys.where}: architecture {kind!r:.60} is not supported, only {', '.join(CLASSES)}"
        )
    own = {key.removeprefix(f"{kind}.") for key in file.metadata if key.startswith(f"{kind}.")}
    if unknown := sorted(own - KEYS - NEUTRAL.keys()):
        raise ValueError(
            f"{keys.where}: {kind}.{unknown[0]:.60} may change the network and is not supported"
        )
    keys.only(**{f"{kind}.{key}": value for key, value in NEUTRAL.items()})
    if EMBEDDING not in file.tensors:
        raise damaged(file.path, f"it has no tensor {EMBEDDING}")
    vocab_size = file.tensors[EMBEDDING].shape[0]
    heads = keys.whole(f"{kind}.attention.head_count")
    width = keys.whole(f"{kind}.embedding_length")
    head = keys.whole(f"{kind}.attention.key_length", max(1, width // heads))
    keys.only(
        **{
            f"{kind}.attention.value_length": head,
            f"{kind}.rope.dimension_count": head,
            f"{kind}.vocab_size": vocab_size,
        }
    )
    shape = TransformerConfig(
        vocab_size=vocab_size,
        width=width,
        layers=keys.whole(f"{kind}.block_count", most=MOST_LAYERS),
        heads=heads,
        hidden=keys.whole(f"{kind}.feed_forward_length"),
        rope_theta=keys.positive(f"{kind}.rope.freq_base", 10_000.0),
        norm_eps=keys.positive(f"{kind}.attention.layer_norm_rms_epsilon"),
        kv_heads=keys.whole(f"{kind}.attention.head_count_kv", heads),
        tied=HEAD not in file.tensors,
        head_size=head,
    )
    return kind, checked_shape(keys, shape)


def _config(
    kind: str, shape: TransformerConfig, context: int, marked: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head,
        "intermediate_size": shape.hidden,
        "hidden_act": "silu",
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
        **{f"{name}_id": number for name, number in marked.items()},
    }


def _layout(kind: str, shape: TransformerConfig) -> Layout:
    width, hidden = shape.width, shape.hidden
    queries, keys = shape.heads * shape.head, shape.key_heads * shape.head
    sizes = {"q": queries, "k": keys, "v": keys}
    block: Layout = {
        "attn_norm.weight": ("input_layernorm.weight", (width,)),
        "attn_output.weight": ("self_attn.o_proj.weight", (width, queries)),
        "ffn_norm.weight": ("post_attention_layernorm.weight", (width,)),
        "ffn_gate.weight": ("mlp.gate_proj.weight", (hidden, width)),
        "ffn_up.weight": ("mlp.up_proj.weight", (hidden, width)),
        "ffn_down.weight": ("mlp.down_proj.weight", (width, hidden)),
    }
    for part, rows in sizes.items():
        block[f"attn_{part}.weight"] = (f"self_attn.{part}_proj.weight", (rows, width))
        if kind == "qwen2":
            block[f"attn_{part}.bias"] = (f"self_attn.{part}_proj.bias", (rows,))
        if kind == "qwen3" and part != "v":
            block[f"attn_{part}_norm.weight"] = (f"self_attn.{part}_norm.weight", (shape.head,))
    outer: Layout = {
        EMBEDDING: ("model.embed_tokens.weight", (shape.vocab_size, width)),
        "output_norm.weight": ("model.norm.weight", (width,)),
    }
    if not shape.tied:
        outer[HEAD] = ("lm_head.weight", (shape.vocab_size, width))
    blocks = {
        f"blk.{i}.{name}": (f"model.layers.{i}.{published}", size)
        for i in range(shape.layers)
        for name, (published, size) in block.items()
    }
    return outer | blocks


def _check_tensors(file: GgufFile, layout: Layout) -> None:
    if unexpected := sorted(file.tensors.keys() - layout.keys()):
        raise ValueError(
            f"{file.path}: tensor {unexpected[0]!r:.60} is not part of a network that is "
            f"supported: {FOLDER}"
        )
    for name, (_, shape) in layout.items():
        found = file.tensors[name].shape if name in file.tensors else "missing"
        if found != shape:
            raise damaged(file.path, f"tensor {name} should be {shape}, but is {found}")


def _write_weights(
    path: Path, file: GgufFile, layout: Layout, rotated: TransformerConfig | None
) -> None:
    from rich.console import Console
    from rich.progress import Progress
    from safetensors.torch import save_file

    weights: dict[str, Tensor] = {}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for name, (published, _) in bar.track(layout.items(), description="unpacking weights"):
            tensor = _unpacked(file, file.tensors[name])
            if rotated is not None and name.endswith(("attn_q.weight", "attn_k.weight")):
                tensor = _halves(tensor, rotated.head)
            weights[published] = tensor
    save_file(weights, path, metadata={"format": "pt"})


def _unpacked(file: GgufFile, tensor: GgufTensor) -> Tensor:
    flat = torch.cat([torch.from_numpy(p).bfloat16() for p in file.pieces(tensor)])
    if not flat.isfinite().all():
        raise damaged(file.path, f"tensor {tensor.name} holds weights that are not finite")
    return flat.view(tensor.shape)


def _halves(weight: Tensor, head: int) -> Tensor:
    """Put the rows of each head back into two halves.

    RoPE turns row i of a head together with row i + head / 2. Llama's files have the two next to
    each other.
    """
    pairs = weight.view(-1, head // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` at the end, or removed on an error."""
    from safetensors import SafetensorError

    part = folder.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(folder)
    except OSError as error:
        raise ValueError(f"cannot write {folder}: {error.strerror}") from error
    except SafetensorError as error:
        raise ValueError(f"cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)

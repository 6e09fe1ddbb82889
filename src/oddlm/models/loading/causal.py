"""Causal checkpoints, read as what `oddlm adapt` makes of them, and adapted ones, written."""

import json
from pathlib import Path

import torch

from ..families.adapted import ADAPTED
from ..families.published import MASK_TEXTS
from ..transformer import Transformer
from .architecture import Keys
from .checkpoint import CONFIG, WHOLE, Description, find_architecture, read_json, row_counts
from .tokenizer import (
    FILE,
    SETTINGS,
    TextTokenizer,
    read_settings,
    read_template,
    read_tokenizer,
    special_ids,
)

LAYOUTS = ("llama", "qwen2", "qwen3")


def describe_causal(folder: Path) -> Description:
    """Read the config of a causal checkpoint as that of the diffusion model it becomes."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} has no {CONFIG}: give a checkpoint folder or a GGUF file")
    keys = Keys(str(path), read_json(path))
    kind = keys.get("model_type")
    architecture = find_architecture(f"{ADAPTED}{kind}") if kind in LAYOUTS else None
    if architecture is None:
        raise ValueError(
            f"{path}: model_type {kind!r} cannot be adapted; known: {', '.join(LAYOUTS)}"
        )
    return Description(folder, keys, architecture, architecture.config(keys))


def adapt_tokenizer(
    base: Path, folder: Path, *, mask_token: str | None, chat_template: str | None
) -> TextTokenizer:
    """Copy a tokenizer with a mask token and a chat template; None keeps what the base has."""
    if not (base / FILE).is_file():
        raise ValueError(f"{base} has no {FILE}: save its tokenizer with transformers first")
    settings = read_settings(base)
    template = chat_template or read_template(base, settings)
    changes = {"mask_token": mask_token, "chat_template": template}
    settings |= {name: value for name, value in changes.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes((base / FILE).read_bytes())
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")
    tokenizer = read_tokenizer(folder)
    if mask_token is not None and mask_token not in tokenizer.special:
        some = ", ".join(sorted(tokenizer.special, key=tokenizer.special.__getitem__)[:20])
        raise ValueError(
            f"mask_token {mask_token!r} is not a special token of {base}; it has {some or 'none'}"
        )
    return tokenizer


def adapted_ids(described: Description, tokenizer: TextTokenizer) -> tuple[int, int]:
    """Return the id of the mask token and that of the token that fills up answers."""
    rows, mask_id = described.config.vocab_size, None
    known = (tokenizer.tokens["mask_token"], *MASK_TEXTS)
    if all(tokenizer.id_of(text) is None for text in known):
        if tokenizer.size >= rows:
            raise ValueError(
                f"the tokenizer of {described.folder} has no mask token and its embedding no "
                "unused row: name a special token that texts do not need as mask_token"
            )
        mask_id = tokenizer.size  # the first row of the embedding that no token uses
    mask_id, ends = special_ids(described.keys, tokenizer, rows, mask_id)
    if not ends:
        raise ValueError(f"the tokenizer of {described.folder} has no end token (eos_token)")
    return mask_id, ends[0]


def save_adapted(
    network: Transformer, described: Description, tokenizer: Path, mask_id: int, folder: Path
) -> None:
    """Write an adapted network in the tensor layout of its base, with the tokenizer in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FILE, SETTINGS):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    kind = described.architecture.model_types[0]
    config = {**described.keys.values, "model_type": kind, "mask_token_id": mask_id}
    config |= {"architectures": ["OddlmAdapted"], "dtype": "bfloat16"}
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n")
    save_weights(network, described, folder)


def save_weights(network: Transformer, described: Description, folder: Path) -> None:
    """Write the weights in bfloat16, in the tensor layout of a checkpoint."""
    from safetensors.torch import save_file

    tensors = {}
    for name, parameter in network.state_dict().items():
        sources = described.architecture.sources(described.keys, name)
        parts = parameter.split(list(row_counts(network, name, len(sources))))
        for source, part in zip(sources, parts, strict=True):
            tensors[source] = part.to("cpu", torch.bfloat16).clone()
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})

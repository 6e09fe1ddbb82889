"""Checkpoints in a published layout: config.json and safetensors, in one file or in shards.

Nothing in them is ever executed. The architecture and the completeness of a checkpoint are checked
from its headers. The weights are then loaded one tensor at a time: the network is created on the
meta device, and a file is memory-mapped only while one tensor is copied out of it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..families import architectures
from ..transformer import Transformer, TransformerConfig
from .architecture import Architecture, Keys
from .placement import home, place
from .quant import assign, prepare

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F64", "F32", "F16", "BF16"}
IGNORED = "rotary_emb.inv_freq"  # a constant that old versions of the model code stored


@dataclass(frozen=True)
class Description:
    """The contents of config.json."""

    folder: Path
    keys: Keys
    architecture: Architecture
    config: TransformerConfig

    @property
    def context(self) -> int:
        return self.keys.whole(self.architecture.context)


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the checkpoint, and the rows of our parameter it fills."""

    source: str
    file: Path
    start: int
    stop: int


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy or download it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (not a JSON object): copy or download it again")
    return content


def describe(folder: Path) -> Description:
    """Read config.json; raise ValueError if it describes a network that cannot be loaded."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {CONFIG}: a checkpoint consists of config.json, safetensors and "
            "tokenizer files"
        )
    keys = Keys(str(path), read_json(path))
    architecture = _architecture(keys)
    return Description(folder, keys, architecture, architecture.config(keys))


def find_architecture(model_type: Any) -> Architecture | None:
    """Return the architecture with this model_type, or None."""
    return next((known for known in architectures() if model_type in known.model_types), None)


def _architecture(keys: Keys) -> Architecture:
    kind, classes = keys.get("model_type"), keys.get("architectures")
    names = [str(name) for name in classes] if isinstance(classes, list) else []
    if (architecture := find_architecture(kind)) is not None:
        return architecture
    shown = ", ".join(names) or repr(kind)
    if any(
        name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in names
    ):
        raise ValueError(
            f"{keys.where} describes {shown}, an autoregressive model, which cannot fill masks. "
            "`oddlm adapt` trains it to; if it was trained to already, load it with transformers "
            "and pass it to oddlm.wrap(model, tokenizer, mask_id=...)"
        )
    known = ", ".join(f"{a.name} ({a.model_types[0]})" for a in architectures())
    raise ValueError(
        f"{keys.where}: unknown architecture {shown} (model_type {kind!r}); known: {known}. Load "
        "any other masked diffusion model with transformers and pass it to "
        "oddlm.wrap(model, tokenizer, mask_id=...)"
    )


def weight_files(folder: Path) -> list[str]:
    """Return the names of the weight files, whether or not they exist."""
    if (folder / WHOLE).is_file() or not (folder / INDEX).is_file():
        return [WHOLE]
    found = read_json(folder / INDEX).get("weight_map")
    names = sorted(set(map(str, found.values()))) if isinstance(found, dict) else []
    if not names or any(
        Path(name).name != name or not name.endswith(".safetensors") for name in names
    ):
        raise ValueError(
            f"{folder / INDEX} is damaged (it does not list safetensors files): copy or download "
            "it again"
        )
    return names


def whole_weights(folder: Path) -> dict[str, Path]:
    """Return the weight files by name; raise ValueError if one is missing."""
    names = weight_files(folder)
    if missing := [name for name in names if not (folder / name).is_file()]:
        pickled = ", ".join(sorted(path.name for path in folder.glob("*.bin")))
        also = (
            f"; {pickled} is in pickle format, which can run code and is not read: convert it to "
            "safetensors"
            if pickled
            else ""
        )
        raise ValueError(
            f"the checkpoint in {folder} is incomplete: {', '.join(missing)} missing{also}"
        )
    return {name: folder / name for name in names}


def find_tensors(folder: Path) -> dict[str, Path]:
    """Return the file of every tensor, as listed in the headers of the files."""
    return {tensor: path for path in whole_weights(folder).values() for tensor in _header(path)}


def _header(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


def _opened(path: Path, device: str = "cpu") -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device=device)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy or download it again") from error


def plan(described: Description, network: Transformer) -> dict[str, list[Piece]]:
    """Return the tensors that make up each parameter.

    Raise ValueError, before any tensor is read, if one is missing, unexpected or does not fit.
    """
    files = find_tensors(described.folder)
    pieces: dict[str, list[Piece]] = {}
    wrong: list[str] = []
    missing: list[str] = []
    for name, parameter in network.state_dict().items():
        sources = described.architecture.sources(described.keys, name)
        sizes = row_counts(network, name, len(sources))
        pieces[name] = []
        for source, size in zip(sources, sizes, strict=True):
            if source not in files:
                missing.append(source)
                continue
            start = sum(piece.stop - piece.start for piece in pieces[name])
            pieces[name].append(Piece(source, files[source], start, start + size))
            wrong += _misfit(files[source], source, (size, *parameter.shape[1:]))
    unexpected = sorted(
        files.keys() - {p.source for own in pieces.values() for p in own} - _spare(described, files)
    )
    for what, names in (("missing", missing), ("wrong", wrong), ("unexpected", unexpected)):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            shown = ", ".join(names[:5])
            raise ValueError(
                f"the weights in {described.folder} do not fit its {CONFIG}: {what} {shown}{more}"
            )
    return pieces


def row_counts(network: Transformer, name: str, parts: int) -> Sequence[int]:
    """Return the number of rows of each tensor stacked in a parameter."""
    rows = network.get_parameter(name).shape[0]
    if ".qkv." in name:
        block = network.get_submodule(name.split(".qkv.")[0])
        return list(block.sizes)  # type: ignore[arg-type]
    return [rows // parts] * parts


def _misfit(path: Path, source: str, shape: tuple[int, ...]) -> Iterator[str]:
    with _opened(path) as file:
        found = file.get_slice(source)
        if tuple(found.get_shape()) != shape:
            yield f"{source}: {list(found.get_shape())} in {path.name}, not {list(shape)}"
        elif found.get_dtype() not in FLOATS:
            yield (
                f"{source}: {found.get_dtype()} in {path.name}, which is not a floating-point type "
                "of an unquantised checkpoint"
            )


def _spare(described: Description, files: Mapping[str, Path]) -> set[str]:
    """Return the tensors that need not be read: constants, and a redundant copy of a tied head.

    Raise ValueError if that copy differs from the embedding.
    """
    spare = {name for name in files if name.endswith(IGNORED)}
    (embedding,), (head,) = (
        described.architecture.outer["embed.weight"],
        described.architecture.outer["head.weight"],
    )
    if described.config.tied and head in files and embedding in files:
        if not torch.equal(_read(files[head], head), _read(files[embedding], embedding)):
            raise ValueError(
                f"{described.keys.where} ties the head to the embedding, but {head} differs from "
                f"{embedding}"
            )
        spare.add(head)
    return spare


def _read(path: Path, source: str) -> Tensor:
    """Memory-map one tensor from its file; the memory is released with the tensor."""
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(source)
        return tensor


def load_network(
    described: Description,
    *,
    device: torch.device,
    dtype: torch.dtype,
    quantize: str | None = None,
    device_map: str | None = None,
) -> Transformer:
    """Load the network onto one device, or spread it over several (`device_map`)."""
    from rich.console import Console
    from rich.progress import Progress

    with torch.device("meta"):
        network = Transformer(described.config).to(dtype)
    shapes = {name: parameter.shape for name, parameter in network.state_dict().items()}
    pieces = plan(described, network)
    network = prepare(network, quantize)
    spread = (
        None
        if device_map is None
        else place(described.config, device_map, quantize=quantize, dtype=dtype)
    )
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for name, own in bar.track(pieces.items(), description="loading weights"):
            tensor = torch.empty(
                shapes[name], dtype=dtype, device=device if spread is None else home(spread, name)
            )
            for piece in own:
                tensor[piece.start : piece.stop].copy_(_read(piece.file, piece.source))
            owner, _, attribute = name.rpartition(".")
            assign(network.get_submodule(owner), attribute, tensor)
    return network.eval()

"""Checkpoints in a published layout: config.json and safetensors, in one file or in shards.

Nothing in them is ever executed. The architecture and the completeness of a checkpoint are checked
from its headers. The weights are then loaded one parameter at a time: the network is created on the
meta device, and a file is memory-mapped only while one parameter is copied out of it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..families import architectures
from ..moe import stored_dtype
from ..transformer import Transformer, TransformerConfig
from .architecture import MOST_BLOCK_LENGTH, Architecture, Keys
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
        *tables, key = self.architecture.context.split(".")
        keys = self.keys
        for name in tables:
            keys = keys.table(name)
        return keys.whole(key)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the checkpoint, as the header of its file describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


Part = tuple[int | slice, ...]  # an index into a parameter


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the checkpoint, and the part of our parameter it fills."""

    source: str
    file: Path
    part: Part


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


def read_keys(folder: Path) -> Keys:
    """Read config.json."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {CONFIG}: a checkpoint consists of config.json, safetensors and "
            "tokenizer files"
        )
    return Keys(str(path), read_json(path))


def describe(folder: Path) -> Description:
    """Read config.json; raise ValueError if it describes a network that cannot be loaded."""
    keys = read_keys(folder)
    architecture = _architecture(keys)
    return Description(folder, keys, architecture, architecture.config(keys))


def in_blocks(described: Description, block_size: int) -> Description:
    """Describe a block-causal network that was trained with another block length."""
    if described.config.block_length is None:
        raise ValueError(
            f"{described.keys.where}: {described.architecture.name} is not block-causal, so it "
            f"cannot have block_size {block_size}"
        )
    length = Keys("block-causal networks", {"block_size": block_size}).whole(
        "block_size", most=MOST_BLOCK_LENGTH
    )
    return replace(described, config=replace(described.config, block_length=length))


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


def find_tensors(folder: Path) -> dict[str, Stored]:
    """Return every tensor, as listed in the headers of the files."""
    return {
        name: tensor
        for path in whole_weights(folder).values()
        for name, tensor in _header(path).items()
    }


def _header(path: Path) -> dict[str, Stored]:
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {
            name: Stored(path, tuple(found.get_shape()), str(found.get_dtype()))
            for name, found in slices.items()
        }


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
        pieces[name] = []
        for source, part in _parts(described, network, name, files):
            if source not in files:
                missing.append(source)
                continue
            pieces[name].append(Piece(source, files[source].file, part))
            wrong += _misfit(source, files[source], tuple(parameter[part].shape))
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


def _parts(
    described: Description, network: Transformer, name: str, files: Mapping[str, Stored]
) -> Iterator[tuple[str, Part]]:
    """Yield the tensors that make up a parameter, each with the part that it fills."""
    ways = described.architecture.layouts(described.keys, name)
    # a way of which at least something is there, so that what is missing can be named
    sources = next(
        (way for way in ways if any(source.format(0) in files for source in way)), ways[0]
    )
    parameter = network.get_parameter(name)
    sizes = row_counts(network, name, len(sources))
    for source, size, stop in zip(sources, sizes, accumulate(sizes), strict=True):
        rows = slice(stop - size, stop)
        if parameter.dim() < 3:
            yield source, (rows,)
        elif "{}" not in source:
            yield source, (slice(None), rows)
        else:
            yield from ((source.format(e), (e, rows)) for e in range(len(parameter)))


def row_counts(network: Transformer, name: str, parts: int) -> Sequence[int]:
    """Return the number of rows of each tensor stacked in a parameter."""
    shape = network.get_parameter(name).shape
    rows = shape[1] if len(shape) == 3 else shape[0]  # those of one expert
    if ".qkv." in name and parts == 3:
        block = network.get_submodule(name.split(".qkv.")[0])
        return list(block.sizes)  # type: ignore[arg-type]
    return [rows // parts] * parts


def _misfit(source: str, found: Stored, shape: tuple[int, ...]) -> Iterator[str]:
    if found.shape != shape:
        yield f"{source}: {list(found.shape)} in {found.file.name}, not {list(shape)}"
    elif found.dtype not in FLOATS:
        yield (
            f"{source}: {found.dtype} in {found.file.name}, which is not a floating-point type "
            "of an unquantised checkpoint"
        )


def _spare(described: Description, files: Mapping[str, Stored]) -> set[str]:
    """Return the tensors that need not be read: constants, and a redundant copy of a tied head.

    Raise ValueError if that copy differs from the embedding.
    """
    spare = {name for name in files if name.endswith(IGNORED)}
    (embedding,), (head,) = (
        described.architecture.outer["embed.weight"],
        described.architecture.outer["head.weight"],
    )
    if described.config.tied and head in files and embedding in files:
        if not torch.equal(_read(files[head].file, head), _read(files[embedding].file, embedding)):
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


def _fill(tensor: Tensor, pieces: Sequence[Piece]) -> None:
    """Copy the pieces into a parameter; each file is opened once."""
    file_of = attrgetter("file")
    for path, own in groupby(sorted(pieces, key=file_of), key=file_of):
        with _opened(path) as file:
            for piece in own:
                tensor[piece.part].copy_(file.get_tensor(piece.source))


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
                shapes[name],
                dtype=stored_dtype(name, dtype),
                device=device if spread is None else home(spread, name),
            )
            _fill(tensor, own)
            owner, _, attribute = name.rpartition(".")
            assign(network.get_submodule(owner), attribute, tensor)
    return network.eval()

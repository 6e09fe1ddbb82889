"""Published checkpoints, from the hub or a folder, as models with their tokenizers."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from ...core.quota import check_drafts
from .. import ALIASES
from ..adapters import diffusion_gemma as gemma
from ..cache import Cache
from ..native import Native
from .checkpoint import (
    INDEX,
    Description,
    describe,
    in_blocks,
    load_network,
    read_keys,
    whole_weights,
)
from .device import chosen_device, chosen_dtype, dtype_name
from .hub import GENERATION, SMALL, Repo
from .tokenizer import TextTokenizer, read_tokenizer, special_ids
from .weights import COMMIT, Weights, files_digest, of_files, of_text


@dataclass(frozen=True)
class Source:
    """The source of a checkpoint: a folder, an alias of one, or a name on the hub.

    revision: a branch, tag or commit on the hub.
    """

    name: str
    revision: str | None = None
    local_files_only: bool = False
    cache_dir: Path | str | None = None

    @cached_property
    def place(self) -> Repo | Path:
        """The repository on the hub, or the folder."""
        if self.name not in ALIASES and not Path(self.name).is_dir():
            return Repo(
                self.name,
                revision=self.revision,
                local_files_only=self.local_files_only,
                cache_dir=self.cache_dir,
            )
        if self.revision is not None:
            raise ValueError(
                f"{self.name} is a folder, which has no revision {self.revision!r}: revisions are "
                "for models on the hub"
            )
        return ALIASES[self.name]() if self.name in ALIASES else Path(self.name)


@dataclass(frozen=True)
class Outline:
    """A checkpoint without its weights."""

    name: str
    described: Description | gemma.Described
    tokenizer: TextTokenizer
    mask_id: int | None
    end_ids: tuple[int, ...]

    @property
    def context(self) -> int:
        return self.described.context

    def check_length(self, length: int) -> None:
        """Raise ValueError for answers of a length that the model cannot write."""
        if isinstance(self.described, gemma.Described):
            check_drafts(self.name, self.described.canvas, length, self.described.canvas)


def outline(source: Source, mask_id: int | None = None, block_size: int | None = None) -> Outline:
    place = source.place
    folder = place.small_files() if isinstance(place, Repo) else place
    name = f"{source.name}@{folder.name}" if isinstance(place, Repo) else source.name
    keys = read_keys(folder)
    if gemma.is_diffusion_gemma(keys):
        found, tokenizer = gemma.describe(folder, keys), read_tokenizer(folder)
        return Outline(name, found, tokenizer, None, gemma.end_ids(found, tokenizer))
    described, tokenizer = describe(folder), read_tokenizer(folder)
    if block_size is not None:
        described = in_blocks(described, block_size)
    return Outline(
        name,
        described,
        tokenizer,
        *special_ids(
            described.keys,
            tokenizer,
            described.config.vocab_size,
            mask_id,
            described.architecture.mask_id,
        ),
    )


def checkpoint_files(folder: Path) -> dict[str, Path]:
    """Return all files the model in a folder depends on; raise ValueError if one is missing."""
    names = [name for name in SMALL if name != INDEX]
    if gemma.is_diffusion_gemma(read_keys(folder)):
        names.append(GENERATION)
    small = {name: folder / name for name in names if (folder / name).is_file()}
    return {**small, **whole_weights(folder)}


def source_digest(source: Source) -> str:
    """Return a digest of the weights of a checkpoint; for a model on the hub, its commit.

    Only config and tokenizer are downloaded, and nothing at all if `revision` is a commit.
    """
    place = source.place
    if isinstance(place, Repo):
        return COMMIT + place.commit()
    return files_digest(checkpoint_files(place))


def _fetched(source: Source, folder: Path) -> Weights:
    """Download the weights if they are on the hub, and identify them."""
    if isinstance(source.place, Repo):
        source.place.weights(folder)
        return of_text(COMMIT + folder.name)
    return of_files(checkpoint_files(folder))


def load_pretrained(
    name: str,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    cache_dir: Path | str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    quantize: str | None = None,
    device_map: str | None = None,
    mask_id: int | None = None,
    block_size: int | None = None,
    cache: Cache | None = None,
    refresh: int | None = None,
    compiled: str | None = None,
) -> Native | gemma.DiffusionGemma:
    """Load a checkpoint from a folder, or by its name: `smol`, or one on the hub.

    revision, local_files_only, cache_dir: as in huggingface_hub.
    device: default: a GPU if available. "auto" spreads the layers over all GPUs.
    dtype: bf16 (default on a GPU), fp16, fp32 (default on a CPU) or fp64.
    quantize: nf4 or int8.
    device_map: "auto" spreads the layers over all GPUs.
    mask_id: overrides a mask token that the checkpoint does not name or names wrongly.
    block_size: overrides the block length that a block-causal checkpoint was trained with.
    cache, refresh, compiled: see `Native`.
    """
    if device == "auto" and device_map is None:
        device, device_map = None, "auto"
    if device is not None and device_map is not None:
        raise ValueError(
            f"device={str(device)!r} puts the network on one device, device_map={device_map!r} "
            "spreads it over several: use only one of them"
        )
    place = chosen_device(device)
    number = chosen_dtype(dtype, place)
    source = Source(name, revision, local_files_only, cache_dir)
    known = outline(source, mask_id, block_size)
    described = known.described
    label = ", ".join([known.name, dtype_name(number), *([quantize] if quantize else [])])
    if isinstance(described, gemma.Described):
        ours = {"quantize": quantize, "device_map": device_map, "mask_id": mask_id}
        ours |= {"block_size": block_size}
        ours |= {"cache": cache, "refresh": refresh, "compiled": compiled}
        gemma.check_options(known.name, ours)
        gemma.network_class()  # before a download
        weights = _fetched(source, described.folder)
        return gemma.DiffusionGemma(
            gemma.load_network(described, device=place, dtype=number),
            known.tokenizer,
            name=label,
            end_ids=known.end_ids,
            sampling=described.sampling,
            weights=weights,
        )
    weights = _fetched(source, described.folder)
    network = load_network(
        described, device=place, dtype=number, quantize=quantize, device_map=device_map
    )
    assert known.mask_id is not None
    return Native(
        network,
        name=label,
        mask_id=known.mask_id,
        end_ids=known.end_ids,
        context=known.context,
        tokenizer=known.tokenizer,
        weights=weights,
        confidence=described.architecture.confidence,
        cache=cache,
        refresh=refresh,
        compiled=compiled,
    )

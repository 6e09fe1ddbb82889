"""A published checkpoint, from the hub or a folder, as a model with its tokenizer."""

from dataclasses import dataclass
from pathlib import Path

import torch

from ..cache import Cache
from ..native import Native
from .checkpoint import INDEX, Description, describe, load_network, whole_weights
from .device import chosen_device, chosen_dtype, dtype_name
from .hub import SMALL, Repo
from .tokenizer import TextTokenizer, read_tokenizer, special_ids
from .weights import COMMIT, files_digest, of_files, of_text


@dataclass(frozen=True)
class Source:
    """Where a checkpoint comes from: a folder, or a name on the hub with a branch, tag or commit."""

    name: str
    revision: str | None = None
    local_files_only: bool = False
    cache_dir: Path | str | None = None

    @property
    def repo(self) -> Repo | None:
        if not Path(self.name).is_dir():
            return Repo(
                self.name,
                revision=self.revision,
                local_files_only=self.local_files_only,
                cache_dir=self.cache_dir,
            )
        if self.revision is not None:
            raise ValueError(f"{self.name} is a folder: a revision is for models of the hub")
        return None


@dataclass(frozen=True)
class Outline:
    """All that is known of a checkpoint without its weights."""

    name: str
    described: Description
    tokenizer: TextTokenizer
    mask_id: int
    end_ids: tuple[int, ...]

    @property
    def context(self) -> int:
        return self.described.context


def outline(source: Source, mask_id: int | None = None) -> Outline:
    repo = source.repo
    folder = Path(source.name) if repo is None else repo.small_files()
    name = source.name if repo is None else f"{source.name}@{folder.name}"
    described, tokenizer = describe(folder), read_tokenizer(folder)
    return Outline(
        name,
        described,
        tokenizer,
        *special_ids(described.keys, tokenizer, described.config.vocab_size, mask_id),
    )


def checkpoint_files(folder: Path) -> dict[str, Path]:
    """Everything that the model in a folder depends on; ValueError where it is not complete."""
    small = {name: folder / name for name in SMALL if name != INDEX and (folder / name).is_file()}
    return {**small, **whole_weights(folder)}


def source_digest(source: Source) -> str:
    """What tells the weights of a checkpoint from others. Of one on the hub it is the commit;
    nothing of it is downloaded but config and tokenizer, and nothing at all where `revision` is a
    commit.
    """
    repo = source.repo
    if repo is None:
        return files_digest(checkpoint_files(Path(source.name)))
    return COMMIT + repo.commit()


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
    cache: Cache | None = None,
    refresh: int | None = None,
    compiled: str | None = None,
) -> Native:
    """The checkpoint in a folder, or of a name on the hub (`GSAI-ML/LLaDA-8B-Instruct`).

    device: default a GPU where there is one. dtype: bf16 (default on a GPU), fp16, fp32 (default on
    a CPU) or fp64.
    revision, local_files_only, cache_dir: as in the hub's own library. mask_id: where the
    checkpoint is silent or wrong.
    quantize: nf4 or int8. device_map or device "auto" spreads the layers over all GPUs. cache,
    refresh, compiled: see `Native`.
    """
    if device == "auto" and device_map is None:
        device, device_map = None, "auto"
    if device is not None and device_map is not None:
        raise ValueError(
            "device puts a network on one device, device_map spreads it over several: give one of them"
        )
    place = chosen_device(device)
    number = chosen_dtype(dtype, place)
    source = Source(name, revision, local_files_only, cache_dir)
    known = outline(source, mask_id)
    if (repo := source.repo) is not None:
        repo.weights(known.described.folder)
    folder = known.described.folder
    weights = of_files(checkpoint_files(folder)) if repo is None else of_text(COMMIT + folder.name)
    network = load_network(
        known.described, device=place, dtype=number, quantize=quantize, device_map=device_map
    )
    return Native(
        network,
        name=", ".join([known.name, dtype_name(number), *([quantize] if quantize else [])]),
        mask_id=known.mask_id,
        end_ids=known.end_ids,
        context=known.context,
        tokenizer=known.tokenizer,
        weights=weights,
        confidence=known.described.architecture.confidence,
        cache=cache,
        refresh=refresh,
        compiled=compiled,
    )

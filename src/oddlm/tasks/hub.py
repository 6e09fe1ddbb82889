"""Datasets of the Hugging Face hub, through its own cache.

No process-wide setting is changed, because a server loads tasks in threads.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .jsonl import read_jsonl

PROBE_S = 10.0  # how long to wait for the hub's first answer
SHARD = re.compile(r"-\d{5}-of-(\d{5})\.parquet$")
INSTEAD = "give a local copy: --data FILE (for `oddlm sweep`: --data TASK=FILE)"


def hub_rows(repo: str, *, config: str | None, split: str) -> list[tuple[int, dict[str, Any]]]:
    """Return (number from 1, row) for every row of a split.

    The split must be in parquet or JSONL files in one of the hub's usual layouts. The hub is asked
    once, without retries; if it does not answer, the files in its library's cache are used.
    """
    try:
        from huggingface_hub import HfApi, constants
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(
            f"{repo} from the hub needs the extra 'hub': pip install 'oddlm[hub]'; or {INSTEAD}"
        ) from error
    wanted = _patterns(config, split)
    what = f"split {split!r}" + (f" of config {config!r}" if config else "")
    listed: list[str] | None = None
    unreachable: Exception | None = None
    try:  # the download itself would wait forever for its first answer
        listed = [
            file.rfilename for file in HfApi().dataset_info(repo, timeout=PROBE_S).siblings or ()
        ]
    except Exception as error:  # its own exceptions, OSError, or those of its HTTP stack
        unreachable = error
    if listed is not None and not _matching(listed, wanted):
        raise ValueError(f"{repo} has no {what} in parquet or JSONL files; {INSTEAD}")
    try:
        folder = _download(repo, wanted, local_files_only=unreachable is not None)
    except Exception as error:
        cause = unreachable or error
        why = f"{type(cause).__name__}: {cause}".split("\n")[0]
        raise ValueError(
            f"cannot fetch {repo} from {constants.ENDPOINT} ({why}); {INSTEAD}"
        ) from cause
    files = _matching(
        (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.exists()), wanted
    )
    shard = SHARD.search(files[0]) if files else None
    if not files or (shard and len(files) != int(shard[1])):
        raise ValueError(
            f"{repo} is incomplete in {folder}: it holds {len(files)} files of {what}; {INSTEAD}"
        )
    rows: list[dict[str, Any]] = []
    for name in files:
        if name.endswith(".parquet"):
            rows += ParquetFile(folder / name).read().to_pylist()
        else:
            rows += [row for _, row in read_jsonl(folder / name, ())]
    return list(enumerate(rows, start=1))


def _patterns(config: str | None, split: str) -> list[str]:
    """Return the paths where a split may be; a config is a folder."""
    folders = ["", "data/"] if config is None else [f"{config}/"]
    files = [
        f"{split}.parquet",
        f"{split}-?????-of-?????.parquet",
        f"{split}.jsonl",
        f"{split}.jsonl.gz",
    ]
    return [folder + file for folder in folders for file in files]


def _matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def _download(repo: str, wanted: list[str], *, local_files_only: bool) -> Path:
    """Return the folder in the cache with the wanted files."""
    from huggingface_hub import snapshot_download, utils

    tqdm: Any = utils.tqdm  # type: ignore[attr-defined]

    class Quiet(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **{**settings, "disable": True})

    found = snapshot_download(
        repo,
        repo_type="dataset",
        allow_patterns=wanted,
        tqdm_class=Quiet,
        local_files_only=local_files_only,
    )
    return Path(found)

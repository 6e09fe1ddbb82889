"""Checkpoints from the Hugging Face hub, stored in the cache of its client library."""

import errno
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .checkpoint import CONFIG, INDEX, WHOLE, weight_files
from .tokenizer import ADDED, FILE, MERGES, SETTINGS, SPECIAL, TEMPLATE, VOCABULARY

SMALL = [CONFIG, INDEX, FILE, VOCABULARY, MERGES, SETTINGS, SPECIAL, ADDED, TEMPLATE]
COMMIT = re.compile(r"[0-9a-f]{40}")
GENERATION = "generation_config.json"  # read if the sampler's rules depend on it
T = TypeVar("T")


class Repo:
    """A model on the hub, or its files in the cache.

    revision: a branch, a tag or a commit.
    """

    def __init__(
        self,
        name: str,
        *,
        revision: str | None = None,
        local_files_only: bool = False,
        cache_dir: Path | str | None = None,
    ) -> None:
        try:
            from huggingface_hub import constants
        except ImportError as error:
            raise ValueError(
                f"loading {name} from the hub needs the extra 'hub': pip install 'oddlm[hub]', or "
                "pass a local folder"
            ) from error
        self.name, self.local_files_only = name, local_files_only
        self.revision = revision or constants.DEFAULT_REVISION
        self.cache = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()

    def small_files(self) -> Path:
        """Download config and tokenizer, enough to check the model, and return their folder."""
        folder = Path(self._call(lambda: self._download([*SMALL, GENERATION], self.revision)))
        self._check_complete(folder, [name for name in _needed(folder) if name in SMALL])
        return folder

    def commit(self) -> str:
        """Return the commit that the revision currently points to."""
        return self.revision if COMMIT.fullmatch(self.revision) else self.small_files().name

    def weights(self, folder: Path) -> None:
        """Download the weights of the same commit into the folder returned by `small_files`."""
        files = weight_files(folder)
        if any(not (folder / name).exists() for name in files):
            self._check_space(files, folder.name)
            self._call(lambda: self._download(files, folder.name))
        self._check_complete(folder, files)

    def _download(self, files: Sequence[str], revision: str, **options: Any) -> Any:
        from huggingface_hub import snapshot_download, utils

        tqdm: Any = utils.tqdm  # type: ignore[attr-defined]

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *args: Any, **settings: Any) -> None:
                quiet = "dry_run" in options or not sys.stderr.isatty()
                super().__init__(*args, **({**settings, "disable": True} if quiet else settings))

        options |= {
            "cache_dir": self.cache,
            "local_files_only": self.local_files_only,
            "tqdm_class": Bar,
        }
        return snapshot_download(
            self.name, revision=revision, allow_patterns=list(files), **options
        )

    def _check_space(self, files: Sequence[str], commit: str) -> None:
        from huggingface_hub.errors import DryRunError

        if self.local_files_only:
            return
        try:
            found = self._call(lambda: self._download(files, commit, dry_run=True))
        except DryRunError:  # the hub is unreachable, so nothing will be downloaded
            return
        needed = sum(file.file_size or 0 for file in found if file.will_download)
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise ValueError(
                f"{self.name} needs {needed / 1e9:.2f} GB of disk space, but only "
                f"{free / 1e9:.2f} GB are free. {self._make_room}"
            )

    def _check_complete(self, folder: Path, files: Sequence[str]) -> None:
        """Raise ValueError if a file is missing, either on the hub or only in the cache."""
        missing = [name for name in files if not (folder / name).exists()]
        if not missing:
            return
        if not self.local_files_only:
            from huggingface_hub import HfApi

            listed = self._call(lambda: HfApi().list_repo_files(self.name, revision=folder.name))
            if absent := [name for name in missing if name not in listed]:
                raise ValueError(
                    f"{self.name} has no {', '.join(absent)} on the hub (weights are read from "
                    "safetensors only)"
                )
        raise self._incomplete(folder, missing)

    def _incomplete(
        self, folder: Path | None, missing: Sequence[str], reason: str = ""
    ) -> ValueError:
        where = folder or self._folder / "snapshots" / "COMMIT"
        return ValueError(
            f"{self.name} is not complete in the cache{reason}. Missing: {', '.join(missing)}. "
            f"With a network connection, run `hf download {self.name}`; without one, copy the "
            f"files to {where}, or pass the folder of a complete copy as the model"
        )

    def _cached(self) -> Path | None:
        """Return the folder of this revision in the cache, if there is one."""
        ref = self._folder / "refs" / self.revision
        folder = self._folder / "snapshots" / (ref.read_text() if ref.is_file() else self.revision)
        return folder if folder.is_dir() else None

    @property
    def _folder(self) -> Path:
        return self.cache / f"models--{self.name.replace('/', '--')}"

    @property
    def _make_room(self) -> str:
        return (
            f"Make room in {self.cache}, or set HF_HUB_CACHE to a folder on a larger disk; "
            "complete files are kept"
        )

    def _call(self, call: Callable[[], T]) -> T:
        """Call the hub; turn its errors into ValueErrors that say what to do."""
        from huggingface_hub import constants, errors

        name = self.name
        broken: Any = (OSError, *errors.HfHubHTTPError.__bases__)  # also the HTTP library's errors
        try:
            return call()
        except errors.DryRunError:
            raise
        except errors.GatedRepoError as error:
            page = f"{constants.ENDPOINT}/{name}"
            raise ValueError(
                f"{name} is gated: accept its terms at {page}, then run `hf auth login` or set "
                "HF_TOKEN"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise ValueError(
                f"the hub has no model {name}; if it is private, run `hf auth login` or set "
                "HF_TOKEN"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise ValueError(f"{name} has no revision {self.revision!r} on the hub") from error
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
            folder = self._cached()
            missing = [
                file for file in _needed(folder) if folder is None or not (folder / file).exists()
            ]
            reason = (
                ""
                if self.local_files_only
                else f", and the hub cannot be reached ({_cause(error)})"
            )
            raise self._incomplete(folder, missing, reason) from error
        except errors.HFValidationError as error:
            raise ValueError(f"{name!r} is not a model on the hub: {error}") from error
        except broken as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise ValueError(f"the disk is full. {self._make_room}") from error
            raise ValueError(
                f"the download of {name} failed ({_cause(error)}); complete files are kept: run "
                "the same command to resume"
            ) from error


def _needed(folder: Path | None) -> list[str]:
    """Return the files of a checkpoint, as far as they are known."""
    if folder is None or not (folder / CONFIG).exists():
        return [CONFIG, FILE, SETTINGS, f"{WHOLE} (or {INDEX} and its shards)"]
    merges = (folder / VOCABULARY).exists() and (folder / MERGES).exists()
    return [CONFIG, *([] if merges else [FILE]), *weight_files(folder)]


def _cause(error: BaseException) -> str:
    """Return the root cause of an error in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".split("\n")[0]

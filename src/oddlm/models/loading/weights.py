"""Digests that identify the weights of a model.

A digest covers every file that affects which tokens the model writes. Its prefix names its kind:

- "sha256:" the contents of files
- "commit:" a commit of a repository on the hub
- "code:" a model that is defined by code in this package
- "source:" the source file of a model given by a dotted path; files which that code reads are not
  covered
- "name:" the dotted path itself, if there is no source file
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

SHA256, COMMIT, CODE, SOURCE, NAME = "sha256:", "commit:", "code:", "source:", "name:"
QUICK = 1 << 28  # models up to this many bytes are hashed on loading, in a quarter of a second
LARGE = 1 << 26  # digests of files from this many bytes on are cached
RACY_S = 2.0  # a file younger than this may change again without a new mtime
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Weights:
    """The weights of a loaded model.

    identity: identifies the weights in a history; available immediately.
    find: computes the digest.
    """

    identity: str
    find: Callable[[], str]

    @cached_property
    def digest(self) -> str:
        return self.find()


def of_files(files: Mapping[str, Path]) -> Weights:
    """Return the `Weights` of a model about to be loaded from these files.

    Large models are identified by size and timestamps; their digest is computed when needed.
    """
    before = _stamp(files)
    quick = sum(path.stat().st_size for path in files.values()) <= QUICK
    return Weights(
        files_digest(files) if quick else before, partial(_unchanged, dict(files), before)
    )


def of_text(digest: str) -> Weights:
    """Return `Weights` with a digest that is already known."""
    return Weights(digest, partial(str, digest))


def _unchanged(files: Mapping[str, Path], before: str) -> str:
    found = files_digest(files)
    if _stamp(files) != before:
        where = ", ".join(sorted({str(path.parent) for path in files.values()}))
        raise ValueError(
            f"the files in {where} have changed since the model was loaded: load it again"
        )
    return found


def files_digest(files: Mapping[str, Path]) -> str:
    """Return a digest of the names and contents of the files; their location does not matter."""
    try:
        with ThreadPoolExecutor(4) as pool:
            found = dict(zip(files, pool.map(_sha256, files.values()), strict=True))
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error
    lines = "".join(f"{name} {found[name]}\n" for name in sorted(found))
    return SHA256 + hashlib.sha256(lines.encode()).hexdigest()


def source_digest(path: Path) -> str:
    """Return a digest of the source file of a user-defined model."""
    return SOURCE + files_digest({path.name: path}).removeprefix(SHA256)


def _stamp(files: Mapping[str, Path]) -> str:
    """Return a string that changes whenever a file does, and may change without."""
    try:
        states = "".join(f"{name} {_state(path)}\n" for name, path in sorted(files.items()))
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error
    return "files:" + hashlib.sha256(states.encode()).hexdigest()


def _state(path: Path) -> str:
    stat = path.stat()
    times = f"{stat.st_mtime_ns}\0{stat.st_ctime_ns}"
    return f"{path.resolve()}\0{stat.st_size}\0{times}\0{stat.st_ino}\0{stat.st_dev}"


def _sha256(path: Path) -> str:
    """Return the hash of a file's content.

    It is the name of the file's blob in the hub's cache, or a cached digest, or computed.
    """
    real = path.resolve()
    if path.is_symlink() and real.parent.name == "blobs" and _DIGEST.fullmatch(real.name):
        return real.name
    if path.stat().st_size < LARGE:
        return _read(path)
    state = _state(path)
    entry = _cache_path(state)
    try:
        if entry is not None and _DIGEST.fullmatch(found := entry.read_text()):
            return found
    except OSError:
        pass  # missing or unreadable
    found = _read(path)
    if entry is not None and _state(path) == state and time.time() - path.stat().st_mtime > RACY_S:
        _store(entry, found)
    return found


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path | None:
    """Return the folder of everything that oddlm caches; None without a home folder."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oddlm"
    except RuntimeError:  # the user has no home folder
        return None


def _cache_path(state: str) -> Path | None:
    """Return where the digest of a file in this state is cached; None without a home folder."""
    cache = cache_folder()
    name = hashlib.sha256(state.encode()).hexdigest()
    return None if cache is None else cache / "digests" / name


def _store(path: Path, digest: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(digest)
        new.replace(path)
    except OSError:
        pass  # it will be computed again next time

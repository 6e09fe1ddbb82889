"""What tells the weights of a model from others: a digest of every file that decides which tokens
it writes.

A digest says of what it is: "sha256:..." of files, "commit:..." of a repository on the hub,
"code:..." of a model that is code. Of somebody's own model, a dotted path, it is "source:..." of
the file that holds its code, which says nothing of what that code reads, or "name:..." where there
is no such file.
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
QUICK = 1 << 28  # bytes of a model that are hashed at once, in a quarter of a second
LARGE = 1 << 26  # bytes of a file whose digest is kept
RACY_S = 2.0  # a file this young may change again without a new time
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Weights:
    """Of a loaded model. `identity`: by which a history knows them again, known at once; `find`
    gives the digest.
    """

    identity: str
    find: Callable[[], str]

    @cached_property
    def digest(self) -> str:
        return self.find()


def of_files(files: Mapping[str, Path]) -> Weights:
    """Of a model that is about to be loaded from these files: large ones go by their dates until
    the digest is asked for.
    """
    before = _stamp(files)
    quick = sum(path.stat().st_size for path in files.values()) <= QUICK
    return Weights(
        files_digest(files) if quick else before, partial(_unchanged, dict(files), before)
    )


def of_text(digest: str) -> Weights:
    """Where the digest is known without reading anything."""
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
    """Of names and contents; where the files lie does not count."""
    try:
        with ThreadPoolExecutor(4) as pool:
            found = dict(zip(files, pool.map(_sha256, files.values()), strict=True))
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error
    lines = "".join(f"{name} {found[name]}\n" for name in sorted(found))
    return SHA256 + hashlib.sha256(lines.encode()).hexdigest()


def source_digest(path: Path) -> str:
    """Of the file that holds the code of somebody's own model."""
    return SOURCE + files_digest({path.name: path}).removeprefix(SHA256)


def _stamp(files: Mapping[str, Path]) -> str:
    """Changes where a file does, and elsewhere."""
    try:
        told = "".join(f"{name} {_state(path)}\n" for name, path in sorted(files.items()))
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from error
    return "files:" + hashlib.sha256(told.encode()).hexdigest()


def _state(path: Path) -> str:
    now = path.stat()
    return f"{path.resolve()}\0{now.st_size}\0{now.st_mtime_ns}\0{now.st_ctime_ns}\0{now.st_ino}\0{now.st_dev}"


def _sha256(path: Path) -> str:
    """Of a file's content: the name of its blob in the hub's cache, or what was found the last
    time, or read whole.
    """
    real = path.resolve()
    if path.is_symlink() and real.parent.name == "blobs" and _DIGEST.fullmatch(real.name):
        return real.name
    if path.stat().st_size < LARGE:
        return _read(path)
    state = _state(path)
    kept = _kept(state)
    try:
        if kept is not None and _DIGEST.fullmatch(found := kept.read_text()):
            return found
    except OSError:
        pass  # not there yet, or not to be read
    found = _read(path)
    if kept is not None and _state(path) == state and time.time() - path.stat().st_mtime > RACY_S:
        _keep(kept, found)
    return found


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept(state: str) -> Path | None:
    """Where the digest of a file in this state is kept; None where nothing can be."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's process
        return None
    return cache / "oddlm" / "digests" / hashlib.sha256(state.encode()).hexdigest()


def _keep(path: Path, digest: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(digest)
        new.replace(path)
    except OSError:
        pass  # it will be computed again

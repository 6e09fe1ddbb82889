"""GGUF files (versions 2 and 3, little-endian): their metadata and the table of their tensors.

A file is untrusted. Counts, lengths and offsets are compared with its size before they are used.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .architecture import Keys
from .gguf_blocks import FORMATS, OTHERS, Format

MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_HEADER = 1 << 26  # bytes; 200,000 tokens with 400,000 merges take about 12 million
MOST_ENTRIES = 1 << 16  # of the metadata, and tensors
MOST_DIMENSIONS = 4
LEAST_ENTRY, LEAST_TENSOR, LEAST_STRING = 13, 24, 8  # bytes that each takes in a header
PIECE = 1 << 20  # weights unpacked at a time
# By the number of the type in a file.
SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY, FLOAT32 = 8, 9, 6


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """The place of a tensor in a file; `shape` has the rows first, as in torch."""

    name: str
    format: Format
    shape: tuple[int, ...]
    start: int
    size: int  # bytes


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file. Arrays of the metadata are lists."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @cached_property
    def keys(self) -> Keys:
        """Checked access to the single values of the metadata."""
        return Keys(
            str(self.path),
            {
                key: f"an array of {len(value)}" if isinstance(value, list) else value
                for key, value in self.metadata.items()
            },
        )

    def pieces(self, tensor: GgufTensor) -> Iterator[NDArray[np.float32]]:
        """Yield the weights of a tensor in order, about a million at a time."""
        step = PIECE // tensor.format.weights * tensor.format.block.itemsize
        try:
            with self.path.open("rb") as file:
                file.seek(tensor.start)
                for done in range(0, tensor.size, step):
                    wanted = min(step, tensor.size - done)
                    if len(content := file.read(wanted)) != wanted:
                        raise damaged(self.path, f"it ends inside the tensor {tensor.name}")
                    yield tensor.format.floats(content)
        except OSError as error:
            raise ValueError(f"cannot read {self.path}: {error.strerror}") from error


def damaged(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} is damaged ({what}): copy or download it again")


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file; raise ValueError if it is damaged or not supported."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = _Header(path, file.read(MOST_HEADER), size)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    tensors, entries = header.begin()
    metadata = header.metadata(entries)
    if metadata.get("split.count", 1) not in (0, 1):
        raise ValueError(
            f"{path} is one of several files (split.count {metadata['split.count']!r:.60}): join "
            "them with `llama-gguf-split --merge`"
        )
    return GgufFile(path, metadata, header.tensors(tensors, _alignment(path, metadata)))


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    found = metadata.get("general.alignment", 32)
    if type(found) is not int or found < 1 or found & (found - 1):
        raise damaged(path, f"general.alignment is {found!r:.60}, not a power of two")
    return found


class _Header:
    """A reader that moves through the first bytes of a file."""

    def __init__(self, path: Path, content: bytes, size: int) -> None:
        self.path, self.content, self.size = path, content, size
        self.place = 0

    def begin(self) -> tuple[int, int]:
        """Check magic and version; return the numbers of tensors and of metadata entries."""
        if self.content[:4] != MAGIC:
            raise ValueError(
                f"{self.path} is not a GGUF file (it begins with {self.content[:4]!r})"
            )
        self.place = 4
        version = self.number("<I", "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            raise ValueError(
                f"{self.path}: GGUF version {version} is not read, only versions 2 and 3, "
                f"little-endian{': this file is big-endian' if swapped else ''}"
            )
        tensors = self.count("tensors", LEAST_TENSOR, MOST_ENTRIES)
        return tensors, self.count("metadata entries", LEAST_ENTRY, MOST_ENTRIES)

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.string("a metadata key")
            if key in found:
                raise damaged(self.path, f"{key!r:.60} occurs twice in the metadata")
            found[key] = self.value(self.number("<I", key), key)
        return found

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.string(key)
        if kind == ARRAY:
            return self.array(key)
        found = self.number(self.scalar(kind, key), key)
        # the shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06
        return float(str(np.float32(found))) if kind == FLOAT32 else found

    def array(self, key: str) -> list[Any]:
        kind = self.number("<I", key)
        if kind == STRING:
            return [self.string(key) for _ in range(self.count(key, LEAST_STRING))]
        if kind == ARRAY:
            raise ValueError(
                f"{self.path}: {key!r:.60} is an array of arrays, which is not supported"
            )
        layout = np.dtype(self.scalar(kind, key))
        content = self.take(self.count(key, layout.itemsize) * layout.itemsize, key)
        values: list[Any] = np.frombuffer(content, layout).tolist()
        return values

    def tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        table = [self.entry() for _ in range(count)]
        begin = -(-self.place // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        end = 0
        for name, form, shape, offset in sorted(table, key=lambda entry: entry[-1]):
            size = prod(shape) // form.weights * form.block.itemsize
            if name in found:
                raise damaged(self.path, f"the tensor {name!r:.60} occurs twice")
            if offset % alignment or offset < end or begin + offset + size > self.size:
                raise damaged(
                    self.path,
                    f"the tensor {name!r:.60} with {size} bytes at {offset} overlaps another one, "
                    f"is not aligned or lies outside the {self.size} bytes of the file",
                )
            end = offset + size
            found[name] = GgufTensor(name, form, shape, begin + offset, size)
        return found

    def entry(self) -> tuple[str, Format, tuple[int, ...], int]:
        """Read a line of the table of tensors: name, format, shape and offset."""
        name = self.string("a tensor name")
        dimensions = self.number("<I", name)
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise damaged(self.path, f"the tensor {name!r:.60} has {dimensions} dimensions")
        sizes = [self.number("<Q", name) for _ in range(dimensions)]
        kind, offset = self.number("<I", name), self.number("<Q", name)
        form = FORMATS.get(kind)
        if form is None:
            raise ValueError(
                f"{self.path}: the tensor {name!r:.60} has type {OTHERS.get(kind, kind)}, which is "
                f"not read; read are {', '.join(known.name for known in FORMATS.values())}"
            )
        if 0 in sizes or sizes[0] % form.weights:
            raise damaged(
                self.path, f"the tensor {name!r:.60} of type {form.name} has the shape {sizes}"
            )
        return name, form, tuple(reversed(sizes)), offset

    def scalar(self, kind: int, key: str) -> str:
        if kind not in SCALARS:
            raise damaged(self.path, f"{key!r:.60} has the unknown type {kind}")
        return SCALARS[kind]

    def count(self, what: str, least: int, most: int = MOST_HEADER) -> int:
        """Read how many of something follow, each of which takes at least `least` bytes."""
        found: int = self.number("<Q", what)
        if found > min(most, (len(self.content) - self.place) // least):
            raise damaged(self.path, f"it has no room for {found} of {what!r:.60}")
        return found

    def string(self, what: str) -> str:
        content = self.take(self.number("<Q", what), what)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"{what!r:.60} is not UTF-8") from error

    def number(self, layout: str, what: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]

    def take(self, size: int, what: str) -> bytes:
        end = self.place + size
        if end > len(self.content):
            where = "it ends" if end > self.size else f"its header has over {MOST_HEADER} bytes,"
            raise damaged(self.path, f"{where} inside {what!r:.60}")
        content = self.content[self.place : end]
        self.place = end
        return content

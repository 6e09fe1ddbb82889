"""Reading GGUF files: blocks and headers as the gguf package reads them, damaged files refused."""

import struct

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st

from oddlm.models.loading import gguf_file
from oddlm.models.loading.gguf import convert_gguf
from oddlm.models.loading.gguf_blocks import FORMATS, OTHERS
from oddlm.models.loading.gguf_file import read_gguf
from oddlm.models.loading.tokenizer import read_tokenizer

from . import published_layout as layout
from .gguf_layout import TINY, write_network


@pytest.fixture(scope="module")
def tiny():
    return layout.llama(**TINY)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny):
    """The bytes of a small file, and where its table of tensors ends."""
    path = write_network(tmp_path_factory.mktemp("whole") / "a.gguf", tiny)
    found = read_gguf(path)
    return path.read_bytes(), min(tensor.start for tensor in found.tensors.values())


def blocks(form, seed=0):
    """Random bytes, which include infinite scales and NaN, and awkward ones."""
    size = form.block.itemsize
    random = np.random.default_rng(seed).integers(0, 256, (400, size), dtype=np.uint8)
    same = [np.full((1, size), byte, np.uint8) for byte in (0, 1, 0x7B, 0x7C, 0x80, 0xFF)]
    return np.concatenate([random, *same])


@pytest.mark.parametrize(("number", "form"), FORMATS.items(), ids=lambda value: str(value)[:40])
def test_blocks_are_unpacked_as_by_the_gguf_package(number, form):
    assert Kind(number).name == form.name
    assert gguf.GGML_QUANT_SIZES[Kind(number)] == (form.weights, form.block.itemsize)
    content = blocks(form)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(content, Kind(number)).reshape(-1)
    ours = form.floats(content.tobytes())
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1])
def test_unpacked_values_are_near_those_that_were_packed(kind):
    values = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    values[0] = 0
    found = FORMATS[int(kind)].floats(gguf.quants.quantize(values, kind).tobytes())
    assert np.abs(found - values.reshape(-1)).max() < 0.4
    assert not found[:64].any()


def test_names_of_types_that_are_not_read():
    assert {Kind(number).name for number in OTHERS} == set(OTHERS.values())


def test_metadata_and_tensors_as_the_gguf_package_reads_them(tmp_path, tiny):
    path = write_network(tmp_path / "a.gguf", tiny, general__alignment=64, own__flag=True)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    keys = {key for key in theirs.fields if not key.startswith("GGUF.")}
    assert ours.metadata.keys() == keys
    for key in keys:
        assert ours.metadata[key] == pytest.approx(theirs.fields[key].contents()), key
    assert ours.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5
    assert {
        name: (tensor.format.name, list(reversed(tensor.shape)), tensor.start, tensor.size)
        for name, tensor in ours.tensors.items()
    } == {
        tensor.name: (
            tensor.tensor_type.name,
            tensor.shape.tolist(),
            tensor.data_offset,
            tensor.n_bytes,
        )
        for tensor in theirs.tensors
    }


def test_files_cut_off_anywhere_are_refused(tmp_path, whole):
    content, header = whole
    path = tmp_path / "a.gguf"
    last = max(tensor.start + tensor.size for tensor in read_whole(path, content).tensors.values())
    for size in [*range(0, header, 13), *range(header, last, 997), last - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"a\.gguf"):
            read_gguf(path)


def read_whole(path, content):
    path.write_bytes(content)
    return read_gguf(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path, whole):
    content, header = whole
    found = read_whole(tmp_path / "a.gguf", content)
    (tmp_path / "a.gguf").write_bytes(content[: header + 1])
    with pytest.raises(ValueError, match=r"token_embd\.weight"):
        list(found.pieces(found.tensors["token_embd.weight"]))


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 1 << 30), st.sampled_from([0, 1, 7, 127, 128, 255])),
        min_size=1,
        max_size=4,
    )
)
def test_damaged_headers_are_converted_or_refused(tmp_path_factory, whole, changes):
    content, header = bytearray(whole[0]), whole[1]
    for place, byte in changes:
        content[place % header] = byte
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "a.gguf").write_bytes(content)
    refused = None
    try:
        convert_gguf(folder / "a.gguf", folder / "out")
    except ValueError as error:
        refused = str(error)
    assert (refused is None) == (folder / "out").exists()
    if refused is None:
        read_tokenizer(folder / "out")
    else:
        assert "a.gguf" in refused


HUGE = (1 << 64) - 1


def text(content, size=None):
    return struct.pack("<Q", len(content) if size is None else size) + content


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def tensor(name=b"a", sizes=(32,), kind=0, offset=0, dimensions=None):
    count = len(sizes) if dimensions is None else dimensions
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, offset)


def raw(entries=(), tensors=(), version=3, counts=None):
    counts = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join([*entries, *tensors])
    return head + b"\0" * (-len(head) % 32 + 256)


NESTED = struct.pack("<IQ", 9, 1) * 1000
DAMAGED = {
    "empty": (b"", "GGUF"),
    "magic": (b"GGML" + raw()[4:], "GGML"),
    "version 1": (raw(version=1), "version 1"),
    "big-endian": (raw(version=3 << 24), "big-endian"),
    "tensor count": (raw(counts=(HUGE, 0)), str(HUGE)),
    "entry count": (raw(counts=(0, 1 << 40)), str(1 << 40)),
    "key length": (raw([text(b"k", HUGE)]), "key"),
    "key not UTF-8": (raw([entry(b"\xff", 0, b"\1")]), "UTF-8"),
    "key twice": (raw([entry(b"key", 0, b"\1")] * 2), "'key'"),
    "text length": (raw([entry(b"key", 8, text(b"", 1 << 62))]), "'key'"),
    "type": (raw([entry(b"key", 99, b"\1")]), "type 99"),
    "array length": (raw([entry(b"key", 9, struct.pack("<IQ", 4, 1 << 61))]), str(1 << 61)),
    "array of texts": (raw([entry(b"key", 9, struct.pack("<IQ", 8, HUGE))]), str(HUGE)),
    "array type": (raw([entry(b"key", 9, struct.pack("<IQ", 99, 1))]), "type 99"),
    "arrays in arrays": (raw([entry(b"key", 9, NESTED)]), "'key'"),
    "alignment 0": (raw([entry(b"general.alignment", 4, struct.pack("<I", 0))]), "alignment is 0"),
    "alignment a text": (raw([entry(b"general.alignment", 8, text(b"x"))]), "alignment is 'x'"),
    "no dimensions": (raw(tensors=[tensor(sizes=())]), "0 dimensions"),
    "dimensions": (raw(tensors=[tensor(dimensions=1 << 31)]), str(1 << 31)),
    "size 0": (raw(tensors=[tensor(sizes=(0, 4))]), "[0, 4]"),
    "sizes": (raw(tensors=[tensor(sizes=(HUGE, HUGE, HUGE, HUGE))]), "'a'"),
    "half a block": (raw(tensors=[tensor(sizes=(48,), kind=8)]), "Q8_0"),
    "type Q3_K": (raw(tensors=[tensor(b"blk.0", kind=11)]), "'blk.0' has type Q3_K"),
    "type 77": (raw(tensors=[tensor(kind=77)]), "type 77"),
    "offset": (raw(tensors=[tensor(offset=1 << 63)]), str(1 << 63)),
    "offset at the end": (raw(tensors=[tensor(offset=160)]), "at 160"),
    "not aligned": (raw(tensors=[tensor(offset=4)]), "at 4"),
    "tensor twice": (raw(tensors=[tensor(), tensor(offset=128)]), "twice"),
    "overlap": (raw(tensors=[tensor(), tensor(b"b", offset=96)]), "'b'"),
}


@pytest.mark.parametrize(("content", "named"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_refused(tmp_path, content, named):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.gguf") as refused:
        read_gguf(tmp_path / "a.gguf")
    assert named in str(refused.value)


def test_types_that_are_read_are_listed(tmp_path):
    (tmp_path / "a.gguf").write_bytes(raw(tensors=[tensor(kind=11)]))
    with pytest.raises(ValueError, match=r"F32.*BF16.*Q4_K.*Q6_K"):
        read_gguf(tmp_path / "a.gguf")


def test_a_header_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "MOST_HEADER", 64)
    (tmp_path / "a.gguf").write_bytes(raw([entry(b"key", 8, text(b"x" * 64))]))
    with pytest.raises(ValueError, match="64 bytes"):
        read_gguf(tmp_path / "a.gguf")


def test_undamaged_files_made_by_hand(tmp_path):
    """The files above are refused for what is wrong with them, and for nothing else."""
    entries = [entry(b"key", 9, struct.pack("<IQ3h", 3, 3, 1, -2, 3)), entry(b"no", 7, b"\0")]
    for version in (2, 3):
        tensors = [tensor(offset=128), tensor(b"b", sizes=(4, 2))]
        (tmp_path / "a.gguf").write_bytes(raw(entries, tensors, version))
        found = read_gguf(tmp_path / "a.gguf")
        assert found.metadata == {"key": [1, -2, 3], "no": False}
        assert {name: t.shape for name, t in found.tensors.items()} == {"b": (2, 4), "a": (32,)}

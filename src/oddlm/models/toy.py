"""A small, random, deterministic network without training, for tests and demonstrations."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.model import ModelInfo
from .loading.weights import CODE, of_text
from .transformer import nudged

VERSION = 1  # increment it with every change of the logits


class ToyTokenizer:
    """The words `t0`, `t1`, ... are the tokens; other words map to a token by their length."""

    def __init__(self, vocab_size: int) -> None:
        self._words = vocab_size - 4  # after the special ids, before MASK

    def encode(self, text: str) -> list[int]:
        return [self._token(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(f"t{t}" for t in tokens)

    def _token(self, word: str) -> int:
        number = word.removeprefix("t")
        index = int(number) - 3 if number.isdecimal() and len(number) < 9 else len(word)
        return 3 + index % self._words


class Toy:
    """A network in which every position mixes its neighbours through random matrices.

    It follows the whole model protocol: positions are counted from the first real token and
    padding is ignored, so a prompt has the same logits alone and in a batch with longer ones.

    process: what stands at positions not written yet: MASK tokens or random ones.
    """

    EOS, PAD = 1, 2

    def __init__(
        self,
        vocab_size: int = 200,
        width: int = 32,
        reach: int = 8,
        sharpness: float = 4.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        process: Literal["absorbing", "uniform"] = "absorbing",
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.name = f"toy {(vocab_size, width, reach, sharpness, seed)}"
        self.weights = of_text(f"{CODE}toy {VERSION} {(vocab_size, width, reach, sharpness, seed)}")
        self.vocab_size = vocab_size
        self.mask_id = vocab_size - 1
        self.end_ids = (self.EOS, self.PAD)
        self.tokenizer = ToyTokenizer(vocab_size)
        self.context = 1024
        self.process = process
        self.embedding = draw(vocab_size, width)  # [V, H]
        self.embedding[self.mask_id] *= 0.25  # a mask carries little information
        self._weight = draw(2 * reach + 1, width) / (2 * reach + 1) ** 0.5  # by relative distance
        self._head = draw(width, vocab_size) * sharpness / width**0.5
        self._position = draw(64, width)
        self._reach = reach

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            vocab_size=self.vocab_size,
            mask_id=self.mask_id,
            end_ids=tuple(self.end_ids),
            name=self.name,
            digest=self.weights.identity,
            context=self.context,
            dtype=self.embedding.dtype,
            embedding=self.embedding,
            process=self.process,
            nudges=True,
        )

    def __call__(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, nudge: Tensor | None = None
    ) -> Tensor:
        T = tokens.shape[1]
        position_ids = torch.arange(T) - (start - prompt_lengths)[:, None]  # [B, T], < 0: padding
        embedded = self.embedding[tokens]
        if nudge is not None:
            embedded = nudged(embedded, nudge)
        embedded = embedded * (position_ids >= 0)[..., None]
        padded = torch.nn.functional.pad(embedded, (0, 0, self._reach, self._reach))
        context = sum(
            weight * padded[:, offset : offset + T] for offset, weight in enumerate(self._weight)
        )
        position = self._position[position_ids[:, start:] % len(self._position)]
        hidden = torch.as_tensor(context)[:, start:] + position
        logits: Tensor = hidden.tanh() @ self._head
        return logits

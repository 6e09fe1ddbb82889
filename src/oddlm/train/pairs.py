"""Prompt/answer pairs from a JSONL file, as tensors for training.

Pairs whose prompts have about the same length share a bucket, so that a batch has little padding,
or none with buckets of one length.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..models.loading.tokenizer import TextTokenizer, read_tokenizer
from ..text import number_of
from .workers import spread

CHUNK = 4096  # lines that a worker encodes at a time
FIELDS = ("prompt", "answer")


@dataclass(frozen=True)
class Canvas:
    """How pairs are laid out: prompts padded on the left, answers filled up with end tokens."""

    prompt: int  # tokens of the longest prompt
    length: int  # tokens of the answer region
    bucket: int  # prompts are padded to a multiple of this
    end_id: int


@dataclass(frozen=True)
class Bucket:
    """Pairs whose prompts are padded to the same length."""

    prompts: Tensor  # [N, P]
    lengths: Tensor  # [N]
    answers: Tensor  # [N, L]
    padded: bool

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.randint(
            len(self.lengths), (count,), generator=generator, device=self.lengths.device
        )
        return self.at(rows)

    def at(self, rows: Tensor | slice) -> tuple[Tensor, Tensor, Tensor]:
        return self.prompts[rows].long(), self.lengths[rows].long(), self.answers[rows].long()


@dataclass(frozen=True)
class Pairs:
    """All pairs of a file that fit the canvas, in buckets."""

    buckets: tuple[Bucket, ...]
    too_long: int  # pairs that were left out

    def __len__(self) -> int:
        return sum(len(bucket.lengths) for bucket in self.buckets)

    def choose(self, seed: int) -> Bucket:
        """Choose a bucket with the probability of its share of the pairs."""
        sizes = np.array([len(bucket.lengths) for bucket in self.buckets], dtype=float)
        return self.buckets[np.random.default_rng(seed).choice(len(sizes), p=sizes / sizes.sum())]

    def answer_ids(self) -> Tensor:
        """Return the ids of all tokens that occur in answers."""
        found = [torch.unique(bucket.answers) for bucket in self.buckets]
        ids: Tensor = torch.unique(torch.cat(found)).long()
        return ids


@dataclass(frozen=True)
class _Part:
    """Some encoded pairs: their prompts one after another, and where each ends."""

    prompts: np.ndarray
    lengths: np.ndarray
    answers: np.ndarray  # [N, L]
    too_long: int


def read_pairs(
    path: Path, folder: Path, canvas: Canvas, device: str, workers: int | None = None
) -> Pairs:
    """Read a file of {"prompt": ..., "answer": ...} lines, with the tokenizer in a folder.

    Raise ValueError, naming the line, if one is something else, and if no pair fits the canvas.
    """
    jobs = list(_chunks(path))
    work = partial(_encode_lines, path, folder, canvas)
    parts = spread(work, jobs, workers)
    too_long = sum(part.too_long for part in parts)
    lengths = np.concatenate([part.lengths for part in parts])
    if not len(lengths):
        raise ValueError(
            f"{path}: none of {number_of(too_long, 'pair')} fits {canvas.prompt} prompt tokens and "
            f"{canvas.length} answer tokens with an end token: raise prompt or length"
        )
    prompts = np.concatenate([part.prompts for part in parts])
    answers = np.concatenate([part.answers for part in parts])
    ends = lengths.cumsum()
    widths = -(-lengths.clip(min=1) // canvas.bucket) * canvas.bucket
    buckets = []
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        places = ends[rows, None] - width + np.arange(width)  # where each prompt lies, [N, P]
        inside = np.arange(width) >= width - lengths[rows, None]
        padded = np.where(inside, prompts[places.clip(min=0)], canvas.end_id)
        columns = (padded.astype(np.int32), lengths[rows], answers[rows])
        tensors = [torch.from_numpy(column).to(device) for column in columns]
        buckets.append(Bucket(tensors[0], tensors[1], tensors[2], padded=not inside.all()))
    return Pairs(tuple(buckets), too_long)


def encode_prompt(tokenizer: TextTokenizer, prompt: str) -> list[int]:
    """Encode a prompt with the chat template, if there is one, as `LM.generate` does."""
    if tokenizer.template is None:
        return tokenizer.encode(prompt)
    return tokenizer.chat([{"role": "user", "content": prompt}])


def _chunks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (number of the first line, lines)."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    for start in range(0, len(lines), CHUNK):
        yield start + 1, lines[start : start + CHUNK]


_tokenizer = cache(read_tokenizer)


def _encode_lines(
    path: Path, folder: Path, canvas: Canvas, chunk: tuple[int, list[bytes]]
) -> _Part:
    tokenizer = _tokenizer(folder)
    first, lines = chunk
    prompts: list[int] = []
    lengths, answers, too_long = [], [], 0
    for number, line in enumerate(lines, start=first):
        if not line.strip():
            continue
        text, answer = _texts(f"{path}, line {number}", line)
        p, a = encode_prompt(tokenizer, text), tokenizer.encode(answer, whole=False)
        if len(p) > canvas.prompt or len(a) >= canvas.length:
            too_long += 1
            continue
        prompts += p
        lengths.append(len(p))
        answers.append(a + [canvas.end_id] * (canvas.length - len(a)))
    return _Part(
        np.array(prompts, dtype=np.int32),
        np.array(lengths, dtype=np.int64),
        np.array(answers, dtype=np.int32).reshape(-1, canvas.length),
        too_long,
    )


def _texts(where: str, line: bytes) -> tuple[str, str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    found = record if isinstance(record, dict) else {}
    prompt, answer = (found.get(name) for name in FIELDS)
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise ValueError(f"{where}: expected an object with the texts {' and '.join(FIELDS)}")
    return prompt, answer

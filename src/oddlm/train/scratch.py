"""Train a masked diffusion language model on endless streams of (prompt, answer) pairs.

Run it with `oddlm train recipes/mini/config.toml`, or as several processes with torchrun.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from ..config import checked, no_flag, read_toml
from ..files import make_folder
from ..models.mini import HERE, MiniTokenizer, load_checkpoint, save_checkpoint
from ..models.transformer import Transformer, TransformerConfig
from ..registry import Registry
from .blocks import answer_logits
from .loop import (
    PairsConfig,
    Run,
    Strict,
    adamw,
    corrupt,
    fit,
    measures,
    step_seed,
    this_place,
    weighted_loss,
)
from .workers import spread

SHARDS = 64  # of every data set, whatever the number of processes that make them
# Prompts [N, prompt], their lengths [N], answers [N, length].
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
_PIECES = re.compile(r"\d+|\D+")


class ModelConfig(Strict):
    width: int = Field(ge=8)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    hidden: int = Field(ge=8)


class DataConfig(Strict):
    name: str
    stream: str = Field(
        description="Dotted path of a function that gives (prompt, answer) pairs without end."
    )
    options: dict[str, Any] = Field(default_factory=dict)
    count: int = Field(
        ge=1, description="Training pairs; they are masked anew every time they come."
    )
    prompt: int = Field(ge=1, description="Tokens of the longest prompt.")
    length: int = Field(
        ge=1, description="Tokens of the answer region; the rest of it is end tokens."
    )
    batch: int = Field(ge=1)
    share: float = Field(gt=0, description="Of the steps.")


class TrainConfig(PairsConfig):
    compile: bool = True
    block_length: int | None = Field(
        None, ge=1, description="Makes the network block-causal, in blocks of this many tokens."
    )
    base: str | None = Field(
        None,
        description="Start from these weights: 'mini', or a folder that `oddlm train` wrote; "
        "default: random weights.",
    )
    model: ModelConfig
    data: list[DataConfig] = Field(min_length=1)
    _numbers = field_validator("block_length", mode="before")(no_flag)

    @model_validator(mode="after")
    def _has_blocks(self) -> Self:
        longest = max(data.prompt + data.length for data in self.data)
        if self.block_length is not None and self.block_length >= longest:
            raise ValueError(
                f"block_length {self.block_length} leaves no second block in {longest} tokens, "
                "the longest prompt with its answer: make it smaller, or leave it out"
            )
        return self


class Pairs:
    """Pairs of one data set as tensors: prompts left-padded, answers filled up with end tokens."""

    def __init__(self, config: DataConfig, columns: Columns, device: str) -> None:
        self.config = config
        self.prompts, self.lengths, self.answers = (torch.from_numpy(x).to(device) for x in columns)

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.randint(
            len(self.lengths), (self.config.batch,), generator=generator, device=self.lengths.device
        )
        return self.prompts[rows].long(), self.lengths[rows].long(), self.answers[rows].long()


def read_config(path: Path, **changes: Any) -> TrainConfig:
    given = {k: v for k, v in changes.items() if v is not None}
    return checked(TrainConfig, {**read_toml(path), **given})


class Objective(nn.Module):
    """The loss of a batch, as a module, so that processes can share its gradients."""

    def __init__(self, network: Transformer, focal: float) -> None:
        super().__init__()
        self.network, self.focal = network, focal

    def forward(
        self, canvas: Tensor, lengths: Tensor, answers: Tensor, mask: Tensor, t: Tensor
    ) -> Tensor:
        logits = answer_logits(self.network, canvas, lengths, answers)
        return weighted_loss(logits, answers, mask, t, focal=self.focal)


def train(
    config: TrainConfig, out: Path, *, device: str | None = None, workers: int | None = None
) -> Path:
    """Train, or resume an interrupted run; return the folder of the finished checkpoint."""
    place = this_place(device)
    make_folder(out)
    tokenizer = MiniTokenizer()
    made = make_pairs([*config.data, *map(_held_out, config.data)], workers)
    place.join()
    sets, held_out = (
        [Pairs(*m, place.device) for m in some]
        for some in (made[: len(config.data)], made[len(config.data) :])
    )
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    block_length = config.block_length
    network = _network(config, tokenizer.size).to(place.device)
    plain = place.shared(Objective(network, config.focal))
    objective = torch.compile(plain, dynamic=False) if config.compile else plain

    def loss_at(step: int) -> tuple[Tensor, str, int]:
        generator = torch.Generator(place.device).manual_seed(
            step_seed(config.seed, step, place.rank)
        )
        pairs = sets[_which(config, step)]
        canvas, *rest = corrupt(*pairs.draw(generator), tokenizer.mask_id, generator, block_length)
        with place.autocast(config):
            loss = objective(canvas, *rest)
        loss.backward()
        return loss, pairs.config.name, canvas.numel()

    def measured() -> dict[str, Any]:
        with place.autocast(config):
            return {p.config.name: check(network, tokenizer.mask_id, p) for p in held_out}

    optimiser = adamw(network.parameters(), config)
    fit(Run(config, out, place, network, optimiser, loss_at, measured))
    if place.rank == 0:
        save_checkpoint(network, out / "model")
    return out / "model"


def _network(config: TrainConfig, vocab_size: int) -> Transformer:
    """Return the network before its first step."""
    shape = config.model.model_dump()
    network = Transformer(
        TransformerConfig(vocab_size=vocab_size, block_length=config.block_length, **shape)
    )
    if config.base is None:
        return network
    base = load_checkpoint(HERE if config.base == "mini" else Path(config.base), vocab_size)
    if differing := [name for name, size in shape.items() if getattr(base.config, name) != size]:
        name = differing[0]
        raise ValueError(
            f"{name} is {shape[name]} in the recipe but {getattr(base.config, name)} in its base, "
            f"{config.base}: give the recipe the base's shape"
        )
    network.load_state_dict(base.state_dict())
    return network


@torch.no_grad()
def check(network: Transformer, mask_id: int, pairs: Pairs) -> dict[str, float]:
    """Measure the network on held-out pairs."""
    generator = torch.Generator(network.device).manual_seed(0)
    canvas, lengths, answers, mask, t = corrupt(
        *pairs.draw(generator), mask_id, generator, network.config.block_length
    )
    return measures(answer_logits(network, canvas, lengths, answers), answers, mask, t)


def make_pairs(
    configs: list[DataConfig], workers: int | None = None
) -> list[tuple[DataConfig, Columns]]:
    """Make the pairs of every data set, in shards that do not depend on the number of processes."""
    jobs = [
        (config, shard, size)
        for config in configs
        for shard, size in enumerate(_shard_sizes(config.count))
        if size
    ]
    parts = spread(_make_shard, jobs, workers)
    made = []
    for config in configs:
        own = [part for job, part in zip(jobs, parts, strict=True) if job[0] is config]
        prompts, lengths, answers = (np.concatenate(column) for column in zip(*own, strict=True))
        made.append((config, (prompts, lengths, answers)))
    return made


def _shard_sizes(count: int) -> list[int]:
    return [count // SHARDS + (shard < count % SHARDS) for shard in range(SHARDS)]


def _make_shard(job: tuple[DataConfig, int, int]) -> Columns:
    config, shard, size = job
    tokenizer = MiniTokenizer()
    encode_piece = cache(tokenizer.encode)
    stream = Registry[Callable[..., Iterator[tuple[str, str]]]]("stream").find(config.stream)
    prompts = np.full((size, config.prompt), tokenizer.pad_id, dtype=np.int16)
    lengths = np.zeros(size, dtype=np.int16)
    answers = np.full((size, config.length), tokenizer.eos_id, dtype=np.int16)
    made = 0
    for texts in stream(seed=shard, **config.options):
        # The tokenizer splits around every number, so pieces can be encoded alone and cached.
        p, a = (
            [t for piece in _PIECES.findall(text) for t in encode_piece(piece)] for text in texts
        )
        if len(p) > config.prompt or len(a) > config.length - 1:
            continue
        prompts[made, config.prompt - len(p) :], lengths[made] = p, len(p)
        answers[made, : len(a)] = a
        made += 1
        if made == size:
            break
    return prompts, lengths, answers


def _held_out(config: DataConfig) -> DataConfig:
    options = {**config.options, "split": "tune"}
    return config.model_copy(update={"options": options, "count": 2048, "batch": 1024})


def _which(config: TrainConfig, step: int) -> int:
    """Return the data set of a step: shares are kept exactly, and all processes agree."""
    shares = np.cumsum([d.share for d in config.data])
    position = (step * 0.6180339887498949) % 1.0  # the golden ratio spreads steps evenly
    return int(np.searchsorted(shares, position * shares[-1], side="right"))

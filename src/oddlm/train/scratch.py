"""Train a masked diffusion language model on endless streams of (prompt, answer) pairs.

Run it with `oddlm train recipes/mini/config.toml`, or as several processes with torchrun. The
prompt is kept, every answer token is masked with probability t ~ U(0, 1), and the masked ones are
predicted with weight 1/t: the bound of LLaDA (Nie et al. 2025, arXiv:2502.09992).
"""

import json
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional as F

from .config import read_toml
from .models.loading.device import chosen_device
from .models.mini import MiniTokenizer, save_checkpoint
from .models.transformer import Transformer, TransformerConfig
from .registry import Registry

SHARDS = 64  # of every data set, whatever the number of processes that make them
# Prompts [N, prompt], their lengths [N], answers [N, length].
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
_PIECES = re.compile(r"\d+|\D+")


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
    options: dict[str, Any] = {}
    count: int = Field(
        ge=1, description="Training pairs; they are masked anew every time they come."
    )
    prompt: int = Field(ge=1, description="Tokens of the longest prompt.")
    length: int = Field(
        ge=1, description="Tokens of the answer region; the rest of it is end tokens."
    )
    batch: int = Field(ge=1)
    share: float = Field(gt=0, description="Of the steps.")


class TrainConfig(Strict):
    seed: int = 0
    steps: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    warmup: int = Field(200, ge=0)
    decay: float = Field(
        0.3, ge=0, le=1, description="Last share of the steps, over which the rate falls to 0."
    )
    weight_decay: float = Field(0.1, ge=0)
    focal: float = Field(
        1.0, ge=0, description="Weight (1 - p)^focal on each token: easy ones count less."
    )
    precision: Literal["bf16", "fp32"] = "bf16"
    compile: bool = True
    log_every: int = Field(100, ge=1)
    check_every: int = Field(
        1000, ge=1, description="Steps between measurements on held-out pairs."
    )
    checkpoint_s: float = Field(60.0, gt=0)
    model: ModelConfig
    data: list[DataConfig] = Field(min_length=1)


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
    return TrainConfig.model_validate(
        {**read_toml(path), **{k: v for k, v in changes.items() if v is not None}}
    )


def train(
    config: TrainConfig, out: Path, *, device: str | None = None, workers: int | None = None
) -> Path:
    """Train, or resume an interrupted run; return the folder of the finished checkpoint."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    usual = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    device = str(chosen_device(device or usual))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = MiniTokenizer()
    made = make_pairs([*config.data, *map(_held_out, config.data)], workers)
    if world > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    sets, held_out = (
        [Pairs(*m, device) for m in some]
        for some in (made[: len(config.data)], made[len(config.data) :])
    )
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    network = Transformer(
        TransformerConfig(vocab_size=tokenizer.size, **config.model.model_dump())
    ).to(device)
    optimiser = torch.optim.AdamW(
        _groups(network, config.weight_decay),
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    start = _resume(out / "checkpoint.pt", config, network, optimiser, device)
    model = torch.nn.parallel.DistributedDataParallel(network) if world > 1 else network
    plain = partial(weighted_loss, model, focal=config.focal)
    objective = torch.compile(plain, dynamic=False) if config.compile else plain
    log = _Log(out / "log.jsonl", start, quiet=rank > 0)
    saved = time.monotonic()
    for step in range(start.step, config.steps):
        generator = torch.Generator(device).manual_seed(_seed(config.seed, step, rank))
        pairs = sets[_which(config, step)]
        canvas, lengths, answers, mask, t = corrupt(
            *pairs.draw(generator), tokenizer.mask_id, generator
        )
        with _precision(config, device):
            loss = objective(canvas, lengths, answers, mask, t)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * rate(config, step)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        log.count(pairs.config.batch * canvas.shape[1] * world)
        done = step + 1
        if done % config.log_every == 0 or done == config.steps:
            log(step=done, data=pairs.config.name, loss=round(loss.item(), 4))
        if done % config.check_every == 0 or done == config.steps:
            log(
                step=done,
                held_out={
                    p.config.name: check(network, tokenizer.mask_id, p, config, device)
                    for p in held_out
                },
            )
        if rank == 0 and (time.monotonic() - saved > config.checkpoint_s or done == config.steps):
            _save(out / "checkpoint.pt", config, network, optimiser, log.progress(done))
            saved = time.monotonic()
    if rank == 0:
        save_checkpoint(network, out / "model")
    return out / "model"


def corrupt(
    prompts: Tensor, lengths: Tensor, answers: Tensor, mask_id: int, generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Mask each answer token with its pair's probability t; t is spread evenly over (0, 1)."""
    B, L = answers.shape
    device = answers.device
    offset = torch.rand(1, generator=generator, device=device)
    order = torch.randperm(B, generator=generator, device=device)
    t = ((order + offset) / B).clamp(min=1 / L)[:, None]
    mask = torch.rand(B, L, generator=generator, device=device) < t
    canvas = torch.cat([prompts, answers.masked_fill(mask, mask_id)], dim=1)
    return canvas, lengths, answers, mask, t


def weighted_loss(
    model: Callable[..., Tensor],
    canvas: Tensor,
    lengths: Tensor,
    answers: Tensor,
    mask: Tensor,
    t: Tensor,
    *,
    focal: float,
) -> Tensor:
    """Cross entropy of the masked tokens, divided by t, with less weight on easy tokens."""
    logits = model(canvas, canvas.shape[1] - answers.shape[1], lengths).float()
    loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="none")
    loss = loss.view_as(answers)
    weight = mask / t * (1 - (-loss.detach()).exp()) ** focal
    return (weight * loss).sum() / answers.numel()


@torch.no_grad()
def check(
    network: Transformer, mask_id: int, pairs: Pairs, config: TrainConfig, device: str
) -> dict[str, float]:
    """Return the bound in nats per token and the accuracy at masked tokens, on held-out pairs."""
    generator = torch.Generator(device).manual_seed(0)
    canvas, lengths, answers, mask, t = corrupt(*pairs.draw(generator), mask_id, generator)
    with _precision(config, device):
        logits = network(canvas, canvas.shape[1] - answers.shape[1], lengths).float()
    loss = F.cross_entropy(logits.transpose(1, 2), answers, reduction="none")
    right = (logits.argmax(dim=-1) == answers)[mask].double().mean()
    return {"bound": round(float((loss * mask / t).mean()), 4), "right": round(float(right), 4)}


def rate(config: TrainConfig, step: int) -> float:
    """Factor on the learning rate: up over the warm-up, flat, down to 0 over the last steps."""
    up = (step + 1) / config.warmup if config.warmup else 1.0
    left = config.steps - step
    tail = max(1.0, config.decay * config.steps)
    return min(1.0, up, left / tail)


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
    # A fork of this process would copy the locks of its threads.
    fresh = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers or len(os.sched_getaffinity(0)), fresh) as pool:
        parts = list(pool.map(_make_shard, jobs))
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


def _groups(network: Transformer, weight_decay: float) -> list[dict[str, Any]]:
    matrices = [p for p in network.parameters() if p.dim() > 1]
    rest = [p for p in network.parameters() if p.dim() <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]


def _precision(config: TrainConfig, device: str) -> torch.autocast:
    return torch.autocast(
        device.partition(":")[0], torch.bfloat16, enabled=config.precision == "bf16"
    )


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True, slots=True)
class Progress:
    step: int = 0
    seconds: float = 0.0
    tokens: int = 0


class _Log:
    """Writes lines of JSON to a file and to standard output."""

    def __init__(self, path: Path, start: Progress, *, quiet: bool) -> None:
        self._path, self._start, self._quiet = path, start, quiet
        self._began, self._tokens = time.monotonic(), 0
        # An interrupted run logs the steps after its checkpoint again.
        if not quiet and path.exists():
            lines = [
                line
                for line in path.read_text().splitlines()
                if json.loads(line)["step"] <= start.step
            ]
            path.write_text("".join(line + "\n" for line in lines))

    def count(self, tokens: int) -> None:
        self._tokens += tokens

    def progress(self, step: int) -> Progress:
        seconds = self._start.seconds + time.monotonic() - self._began
        return Progress(step, round(seconds, 1), self._start.tokens + self._tokens)

    def __call__(self, *, step: int, **values: Any) -> None:
        if self._quiet:
            return
        line = json.dumps({**asdict(self.progress(step)), **values})
        with self._path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)


def _save(
    path: Path,
    config: TrainConfig,
    network: Transformer,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
) -> None:
    state = {
        "network": network.state_dict(),
        "optimiser": optimiser.state_dict(),
        "progress": asdict(progress),
    }
    torch.save({**state, "config": config.model_dump()}, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def _resume(
    path: Path,
    config: TrainConfig,
    network: Transformer,
    optimiser: torch.optim.Optimizer,
    device: str,
) -> Progress:
    if not path.exists():
        return Progress()
    state = torch.load(path, map_location=device, weights_only=True)
    if changed := [k for k, v in config.model_dump().items() if state["config"].get(k) != v]:
        raise ValueError(
            f"{path} was made with another {changed[0]}: use the same config, or another --out"
        )
    network.load_state_dict(state["network"])
    optimiser.load_state_dict(state["optimiser"])
    return Progress(**state["progress"])

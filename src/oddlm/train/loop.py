"""What every training run shares: schedule, masking, log, checkpoints, and the loop itself.

The prompt is kept, every answer token is masked with probability t ~ U(0, 1), and the masked ones
are predicted with weight 1/t: the bound of LLaDA (Nie et al. 2025, arXiv:2502.09992). Block-causal
networks have a t for each block (`blocks`).
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.loading.device import chosen_device
from ..progress import training_bar
from ..signals import deferring

LOG = "log.jsonl"


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoopConfig(Strict):
    """The settings that every recipe has."""

    seed: int = 0
    steps: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    warmup: int = Field(200, ge=0)
    decay: float = Field(
        0.3, ge=0, le=1, description="Last share of the steps, over which the rate falls to 0."
    )
    weight_decay: float = Field(0.1, ge=0)
    precision: Literal["bf16", "fp32"] = "bf16"
    log_every: int = Field(100, ge=1)
    check_every: int = Field(
        1000, ge=1, description="Steps between measurements on held-out pairs."
    )
    checkpoint_s: float = Field(60.0, gt=0)


class PairsConfig(LoopConfig):
    """The settings of every recipe that learns from pairs of prompt and answer."""

    focal: float = Field(
        1.0, ge=0, description="Weight (1 - p)^focal on each token: easy ones count less."
    )


@dataclass(frozen=True, slots=True)
class Place:
    """This process among those of a run, and its device."""

    rank: int
    world: int
    device: str

    def autocast(self, config: LoopConfig) -> torch.autocast:
        return torch.autocast(
            self.device.partition(":")[0], torch.bfloat16, enabled=config.precision == "bf16"
        )

    def join(self) -> None:
        """Meet the other processes, if torchrun started several."""
        if self.device.startswith("cuda:"):
            torch.cuda.set_device(self.device)  # collectives of objects use the current device
        if self.world > 1 and not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "nccl" if self.device.startswith("cuda") else "gloo"
            )

    def shared(self, module: nn.Module) -> nn.Module:
        """Average the gradients of the module over all processes."""
        if self.world == 1:
            return module
        return nn.parallel.DistributedDataParallel(module)

    def gathered(self, own: list[Any]) -> list[Any]:
        """Return the lists of all processes, one after another."""
        if self.world == 1:
            return own
        parts: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(parts, own)
        return [one for part in parts for one in part]


def this_place(device: str | None) -> Place:
    usual = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    return Place(
        int(os.environ.get("RANK", 0)),
        int(os.environ.get("WORLD_SIZE", 1)),
        str(chosen_device(device or usual)),
    )


@dataclass(frozen=True, slots=True)
class Progress:
    step: int = 0
    seconds: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A training run.

    trained: the weights that are saved and resumed.
    loss_at: returns the loss of a step, and the number of tokens it saw; calls `backward` itself.
    held_out: measures the network on held-out pairs or problems. Lists in it go to the log's file
        only.
    measure_first: measure once before the first step, too.
    unit: the run is saved and ended after multiples of this many steps only.
    notes: returns what else the log says of the last step.
    follow: called with what is logged.
    """

    config: LoopConfig
    out: Path
    place: Place
    trained: nn.Module
    optimiser: torch.optim.Optimizer
    loss_at: Callable[[int], tuple[Tensor, str, int]]
    held_out: Callable[[], dict[str, Any]]
    measure_first: bool = False
    unit: int = 1
    notes: Callable[[], Mapping[str, Any]] = dict
    follow: Callable[[int, Mapping[str, Any]], None] = lambda *_: None


def adamw(parameters: Iterable[nn.Parameter], config: LoopConfig) -> torch.optim.AdamW:
    """Return the optimiser; only matrices decay."""
    found = list(parameters)
    groups = [
        {"params": [p for p in found if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in found if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def fit(run: Run) -> Progress:
    """Train to the last step, or resume an interrupted run and then do so.

    Ctrl-C and SIGTERM end the run after the step, with a checkpoint.
    """
    config, rank = run.config, run.place.rank
    checkpoint = run.out / "checkpoint.pt"
    start = _resume(checkpoint, run)
    log = _Log(run, start)
    if run.measure_first and start.step == 0:
        log(step=0, held_out=run.held_out())
    saved = time.monotonic()
    with training_bar(start.step, config.steps, False if rank else None) as tick:
        for step, received in _steps(start.step, config.steps, run.unit):
            loss, name, tokens = _take(run, step)
            log.count(tokens * run.place.world)
            done = step + 1
            if done % config.log_every == 0 or done == config.steps:
                log(step=done, data=name, loss=round(loss.item(), 4), **run.notes())
            if done % config.check_every == 0 or done == config.steps:
                log(step=done, held_out=run.held_out())
            due = received or time.monotonic() - saved > config.checkpoint_s
            if rank == 0 and ((due and done % run.unit == 0) or done == config.steps):
                _save(checkpoint, run, log.progress(done))
                saved = time.monotonic()
            tick(done)
    return log.progress(config.steps)


def _take(run: Run, step: int) -> tuple[Tensor, str, int]:
    """Take one step of the optimiser; return what `loss_at` did."""
    result = run.loss_at(step)
    parameters = [p for group in run.optimiser.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for group in run.optimiser.param_groups:
        group["lr"] = run.config.learning_rate * rate(run.config, step)
    run.optimiser.step()
    run.optimiser.zero_grad(set_to_none=True)
    return result


def _steps(start: int, stop: int, unit: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each step, with the signals received so far, until there are some at a unit's end."""
    with deferring() as received:
        for step in range(start, stop):
            yield step, received
            if received and (step + 1) % unit == 0:
                break


def corrupt(
    prompts: Tensor,
    lengths: Tensor,
    answers: Tensor,
    mask_id: int,
    generator: torch.Generator,
    block_length: int | None = None,
) -> tuple[Tensor, ...]:
    """Mask each answer token with probability t, which is spread evenly over (0, 1).

    t is that of its pair, [B, 1], or with a block length that of its block, [B, L].
    """
    B, L = answers.shape
    device = answers.device
    size = block_length or L
    # An answer that begins inside a block may touch one block more.
    count = 1 if block_length is None else (L + size - 2) // size + 1
    offset = torch.rand(1, generator=generator, device=device)
    order = torch.randperm(B * count, generator=generator, device=device).view(B, count)
    t = ((order + offset) / order.numel()).clamp(min=1 / min(size, L))
    if block_length is not None:
        inside = lengths[:, None] % size + torch.arange(L, device=device)
        t = t.gather(1, inside // size)
    mask = torch.rand(B, L, generator=generator, device=device) < t
    canvas = torch.cat([prompts, answers.masked_fill(mask, mask_id)], dim=1)
    return canvas, lengths, answers, mask, t


def weighted_loss(
    logits: Tensor, answers: Tensor, mask: Tensor, t: Tensor, *, focal: float
) -> Tensor:
    """Cross entropy of the masked tokens, divided by t, with less weight on easy tokens."""
    loss = F.cross_entropy(logits.float().flatten(0, 1), answers.flatten(), reduction="none")
    loss = loss.view_as(answers)
    weight = mask / t * (1 - (-loss.detach()).exp()) ** focal
    return (weight * loss).sum() / answers.numel()


def measures(logits: Tensor, answers: Tensor, mask: Tensor, t: Tensor) -> dict[str, float]:
    """Return the bound in nats per token and the accuracy at masked tokens."""
    logits = logits.float()
    loss = F.cross_entropy(logits.transpose(1, 2), answers, reduction="none")
    right = (logits.argmax(dim=-1) == answers)[mask].double().mean()
    return {"bound": round(float((loss * mask / t).mean()), 4), "right": round(float(right), 4)}


def rate(config: LoopConfig, step: int) -> float:
    """Factor on the learning rate: up over the warm-up, flat, down to 0 over the last steps."""
    up = (step + 1) / config.warmup if config.warmup else 1.0
    left = config.steps - step
    tail = max(1.0, config.decay * config.steps)
    return min(1.0, up, left / tail)


def step_seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


class _Log:
    """Writes lines of JSON to a file and to standard output."""

    def __init__(self, run: Run, start: Progress) -> None:
        self._path, self._start, self._quiet = run.out / LOG, start, run.place.rank > 0
        self._began, self._tokens = time.monotonic(), 0
        self._follow = run.follow
        # An interrupted run logs the steps after its checkpoint again.
        if not self._quiet and self._path.exists():
            text = self._path.read_text()
            last = start.step if start.step else -1  # what was measured first, too
            lines = [line for line in text.splitlines() if _step(line) <= last]
            self._path.write_text("".join(line + "\n" for line in lines))

    def count(self, tokens: int) -> None:
        self._tokens += tokens

    def progress(self, step: int) -> Progress:
        seconds = self._start.seconds + time.monotonic() - self._began
        return Progress(step, round(seconds, 1), self._start.tokens + self._tokens)

    def __call__(self, *, step: int, **values: Any) -> None:
        if self._quiet:
            return
        line = {**asdict(self.progress(step)), **values}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(_without_lists(line)), flush=True)
        self._follow(step, values)


def _without_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_lists(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if not isinstance(value, list)
    }


def _step(line: str) -> float:
    """Return the step of a line; infinite for one that a full disk has cut short."""
    try:
        step: float = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf
    return step


def _save(path: Path, run: Run, progress: Progress) -> None:
    state = {
        "network": run.trained.state_dict(),
        "optimiser": run.optimiser.state_dict(),
        "progress": asdict(progress),
    }
    torch.save({**state, "config": run.config.model_dump(mode="json")}, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def _resume(path: Path, run: Run) -> Progress:
    if not path.exists():
        return Progress()
    state = torch.load(path, map_location=run.place.device, weights_only=True)
    config = run.config.model_dump(mode="json")
    if changed := [name for name, value in config.items() if state["config"].get(name) != value]:
        raise ValueError(
            f"{path} was made with other values of {changed[0]!r}: use the same recipe, or another "
            "--out"
        )
    run.trained.load_state_dict(state["network"])
    run.optimiser.load_state_dict(state["optimiser"])
    return Progress(**state["progress"])

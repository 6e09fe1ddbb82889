"""The run: rollouts, their advantages and weights, and steps of the optimiser on them.

Start it with `oddlm rl recipes/rl/config.toml --out runs/rl`, or as several processes with
torchrun.
Everything random derives from the seed and the step, so a run that resumes needs no generator.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..experiments.trackers import following
from ..files import make_folder
from ..lm import LM, load
from ..models import check_model
from ..models.loading.quant import is_quantized
from ..models.native import Native
from ..models.transformer import Transformer
from ..prompts import encode_prompts
from ..rolling import Rollouts, rollouts
from ..tasks import Problem, Task, find_task
from ..train.blocks import answer_logits
from ..train.loop import Place, Run, adamw, fit, step_seed, this_place
from .batch import Batch
from .config import RlConfig
from .estimators import ESTIMATORS
from .evaluate import measure
from .losses import ADVANTAGES, LOSSES, tilted
from .save import save_model

MODEL = "model"
NOT_OURS = (
    "{} does not run on our own network, so it cannot be trained here: use mini, smol or a "
    "checkpoint of LLaDA, Dream, Qwen3 or SDAR"
)
PROBLEMS, SAMPLES, ESTIMATE = range(3)  # purposes of a seed


class Objective(nn.Module):
    """The loss of a batch, as a module, so that processes can share its gradients."""

    def __init__(self, network: Transformer, config: RlConfig) -> None:
        super().__init__()
        self.network, self.kl, self.recompute = network, config.kl, config.recompute
        self.estimator = ESTIMATORS.build(config.estimator)
        self.loss = LOSSES.build(config.loss)

    def forward(
        self, batch: Batch, seed: int, before: Tensor | None, first: Tensor | None
    ) -> Tensor:
        """Return the mean over samples of their tokens' losses, per position of the answer.

        before, first: what `logprobs` returned when the batch was drawn, and of the first weights.
        """
        now = self.logprobs(batch, seed)
        loss = self.loss(now, now.detach() if before is None else before, batch) * batch.weights
        if first is not None:
            # The estimate of the divergence that is never negative (Schulman 2020).
            gap = first - now
            loss = loss + self.kl * (gap.exp() - 1 - gap) * batch.counted
        return loss.sum() / loss.numel()

    def logprobs(self, batch: Batch, seed: int, network: Transformer | None = None) -> Tensor:
        """[B, S]: the estimate of each token's log-probability; one seed gives one choice."""
        generator = torch.Generator(batch.tokens.device).manual_seed(seed)
        asked = self.network if network is None else network

        def look_once(prompts: Tensor, answers: Tensor) -> Tensor:
            canvas = torch.cat([prompts, answers], dim=1)
            logits = answer_logits(asked, canvas, batch.lengths, batch.tokens).float()
            never = torch.arange(logits.shape[-1], device=logits.device) == batch.mask_id
            logits = logits.masked_fill(never, -torch.inf)
            chosen = logits.gather(2, batch.tokens[..., None]).squeeze(2)
            # MASK may fill up an answer that ended early; such tokens never count.
            return (chosen - logits.logsumexp(dim=2)).where(batch.counted, 0.0)

        def look(prompts: Tensor, answers: Tensor) -> Tensor:
            if not self.recompute:
                return look_once(prompts, answers)
            found: Tensor = checkpoint(
                look_once, prompts, answers, use_reentrant=False, preserve_rng_state=False
            )
            return found

        return self.estimator(batch, look, generator)


class Training:
    """A model with its problems: draws rollouts, and computes the loss of a step."""

    def __init__(self, config: RlConfig, place: Place, lm: LM) -> None:
        self.config, self.place, self.lm = config, place, lm
        self.network, self.mask_id = trainable(lm)
        self.task = find_task(config.task).under(config.protocol)
        if self.task.template is not None and config.estimator_name in ("d1", "coupled"):
            raise ValueError(
                f"task {self.task.name!r} has given text inside its answers, which the estimator "
                f"{config.estimator_name!r} would hide: use 'trace'"
            )
        self.problems = self.task.problems(**config.problems)
        self.unseen = unseen(self.task, self.problems, config.evaluate.problems)
        self.params = config.params(config.rollouts.settings)
        self._check_lengths()
        self.advantage = ADVANTAGES.build(config.used_advantage)
        self.first = deepcopy(self.network).requires_grad_(False) if config.kl else None
        self.objective = Objective(self.network, config)
        self.shared = place.shared(self.objective)
        self.held: Batch
        self.before: list[list[Tensor]] = []  # by step on these rollouts and part of the batch
        self.notes: dict[str, Any] = {}

    def loss_at(self, step: int) -> tuple[Tensor, str, int]:
        if step % self.config.reuse == 0:
            self._draw(step)
        total = torch.zeros((), device=self.place.device)
        parts = range(0, len(self.held), self.config.rows)
        for i, start in enumerate(parts):
            batch, seed = self.held[start : start + self.config.rows], self._seed(step, i)
            with self.place.autocast(self.config):
                before = self.before[step % self.config.reuse][i] if self.before else None
                first = self._first(batch, seed)
                loss = self.shared(batch, seed, before, first) * len(batch) / len(self.held)
            loss.backward()
            total += loss.detach()
        return total, self.config.task, self.held.canvases.numel()

    def _draw(self, step: int) -> None:
        """Draw rollouts for the next steps; note what they are like."""
        config = self.config.rollouts
        places = self._places(step // self.config.reuse)
        rolled = rollouts(
            self.lm,
            [self._problem(place) for place in places],
            config.n,
            params=self.params,
            seeds=[step_seed(self.config.seed, SAMPLES, place) for place in places],
            reward=self.task,
            trajectories=True,
        )
        assert rolled.rewards is not None
        advantages = tilted(self.advantage(rolled.rewards), self.config.negative_weight)
        self.held = batch_of(rolled, advantages, self._weights(rolled), self.mask_id)
        self.before = self._estimates(step) if self.config.reuse > 1 else []
        self.notes = _notes(rolled, self.held, self.place)

    def _places(self, update: int) -> range:
        """Return where this process's problems stand among those of the whole run.

        Everything random derives from the place, so more processes with fewer problems each draw
        the same rollouts.
        """
        size = self.config.rollouts.prompts
        first = (update * self.place.world + self.place.rank) * size
        return range(first, first + size)

    def _problem(self, place: int) -> Problem:
        """Return a problem: all are met once before one comes again."""
        count = len(self.problems)
        seed = step_seed(self.config.seed, PROBLEMS, place // count)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        return self.problems[int(order[place % count])]

    def _weights(self, rolled: Rollouts) -> Tensor:
        """[B, S]: importance weights, 0 for tokens that do not count."""
        config = self.config.rollouts
        if config.weights == "tokens":
            return rolled.token_weights(config.clip, config.against)
        if config.weights == "samples":
            return rolled.sample_weights(config.clip, config.against)[:, None] * rolled.mask
        return rolled.mask.float()

    @torch.no_grad()
    def _estimates(self, step: int) -> list[list[Tensor]]:
        """Return the log-probabilities before the first of the steps that share rollouts."""
        rows = self.config.rows
        with self.place.autocast(self.config):
            return [
                [
                    self.objective.logprobs(self.held[start : start + rows], self._seed(later, i))
                    for i, start in enumerate(range(0, len(self.held), rows))
                ]
                for later in range(step, step + self.config.reuse)
            ]

    @torch.no_grad()
    def _first(self, batch: Batch, seed: int) -> Tensor | None:
        return None if self.first is None else self.objective.logprobs(batch, seed, self.first)

    def _seed(self, step: int, part: int) -> int:
        return step_seed(self.config.seed, ESTIMATE, step, self.place.rank, part)

    def measured(self) -> dict[str, Any]:
        return measure(self.lm, self.task, self.unseen, self.config.methods, self.place)

    def _check_lengths(self) -> None:
        """Raise ValueError if a sample would not fit behind its prompt, before any is drawn."""
        lm, drawn = self.lm, [(self.params, self.problems)]
        drawn += [(params, self.unseen) for _, params in self.config.methods.values()]
        for params, problems in drawn:
            prompts = [self.task.prompt(problem) for problem in problems]
            encode_prompts(
                lm.tokenizer, prompts, params.length, context=lm.info.context, raw=lm.raw
            )


def train(
    config: RlConfig,
    out: Path,
    *,
    device: str | None = None,
    track: Sequence[str] = (),
) -> Path:
    """Train, or resume an interrupted run; return the folder of the finished model."""
    place = this_place(device)
    place.join()
    make_folder(out)
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    check_model(config.model)
    try:
        check_model(config.model, device=place.device, dtype="fp32")
    except ValueError:
        raise ValueError(NOT_OURS.format(config.model)) from None
    lm = load(config.model, device=place.device, dtype="fp32", max_batch=config.max_batch)
    training = Training(config, place, lm)
    settings = config.model_dump(mode="json")
    digest = sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    told = track if place.rank == 0 else ()
    with following(told, out, f"rl-{out.name}-{digest}", settings) as follow:
        run = Run(
            config,
            out,
            place,
            training.network,
            adamw(training.network.parameters(), config),
            training.loss_at,
            training.measured,
            measure_first=True,
            unit=config.reuse,
            notes=lambda: training.notes,
            follow=lambda step, values: follow(flat(values), step),
        )
        fit(run)
    if place.rank == 0:
        save_model(config.model, training.network, out / MODEL)
    return out / MODEL


def flat(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in nested mappings under names like `held_out/plain/pass@1`."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": number for inner, number in flat(value).items()}
        elif isinstance(value, int | float):
            found[name] = value
    return found


def trainable(lm: LM) -> tuple[Transformer, int]:
    """Return the network of a model, ready to be trained, and its mask token.

    Raise ValueError if it cannot be trained.
    """
    model = lm.model
    if not isinstance(model, Native):
        raise ValueError(NOT_OURS.format(lm.info.name))
    if is_quantized(model.network):
        raise ValueError(f"{lm.info.name} is quantised, and only floats can be trained")
    if model.network.config.causal_context:
        raise ValueError(f"{lm.info.name} reads finished blocks causally, which is not trained yet")
    model.weights = None  # they will not be those of the file
    return model.network.requires_grad_(True), model.mask_id


def unseen(task: Task, seen: Sequence[Problem], options: Mapping[str, Any]) -> list[Problem]:
    """Return the problems to measure on; raise ValueError if one of them is trained on."""
    problems = task.problems(**options)
    known = {task.prompt(problem) for problem in seen}
    for problem in problems:
        if task.prompt(problem) in known:
            raise ValueError(
                f"problem {problem.id} is in problems and in evaluate.problems: choose another "
                "split or seed for one of them"
            )
    return problems


def batch_of(rolled: Rollouts, advantages: Tensor, weights: Tensor, mask_id: int) -> Batch:
    assert rolled.canvases is not None
    return Batch(
        prompts=rolled.prompt_ids,
        lengths=rolled.prompt_mask.sum(dim=1),
        tokens=rolled.tokens,
        counted=rolled.mask,
        commit_step=rolled.commit_step,
        canvases=rolled.canvases.transpose(0, 1),
        advantages=advantages.flatten(),
        weights=weights,
        mask_id=mask_id,
    )


def _notes(rolled: Rollouts, batch: Batch, place: Place) -> dict[str, Any]:
    """Return what the log says of rollouts, of all processes together."""
    rewards = rolled.rewards
    assert rewards is not None
    counted = batch.counted
    own = [
        rewards.mean(),
        (rewards.amax(dim=1) > rewards.amin(dim=1)).float().mean(),
        batch.weights[counted].mean(),
        -rolled.base_logprobs[counted].mean(),
        counted.sum(dim=1).float().mean(),
    ]
    parts = torch.tensor(place.gathered([[float(x) for x in own]]))
    names = ("reward", "mixed", "weight", "surprise", "length")
    return {name: round(float(x), 4) for name, x in zip(names, parts.mean(dim=0), strict=True)}

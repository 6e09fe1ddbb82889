"""Repulsion in sampling loops of your own: `Diversifier`, and `diversify` for a single call."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import finite, whole
from ..core import noise
from ..core.blocks import Blocks
from ..core.choose import check_logits
from ..core.explore import fork_cells
from ..core.guide import has_ended
from ..core.model import CPU, ModelInfo
from ..core.step import ABSENT, Step
from ..kernels import dispatch
from ..kernels.contract import Objective
from ..presets import ARITHMETIC, FEATURE, GRADIENT, OBJECTIVE, Arithmetic
from .features import Feature, Pooling
from .memory import Explored
from .repulsion import DuplicateMode, Gradient, Repelling, Repulsion

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Diversifier:
    """Repulsion in a loop of your own: made once per run, called at every step.

    Settings are checked and the backend is chosen once; a call compares shapes and waits for no
    GPU. A batch holds the samples of one or several prompts, B = groups * n; the samples of one
    prompt are neighbours.

    Args:
        guide: How samples are pushed; its schedule, end and protected ids count here, too.
        n: Samples per prompt.
        steps: Planned steps of the loop; it may end earlier.
        seed: One, or one per prompt. With the step it determines the random directions of
            duplicates.
        fork: At step 0 sample j gets the j-th most likely (position, token) pair: at that position
            all other logits are -inf. Protected ids are excluded.
        history: The `memory` of an earlier batch of the same prompts, to continue from it.

    Attributes:
        memory: The directions that the batch has explored so far; None unless the guide remembers
            or there is a history.
    """

    def __init__(
        self,
        guide: Repulsion | None = None,
        *,
        n: int,
        steps: int,
        seed: int | Sequence[int] = 0,
        fork: bool = False,
        history: Explored | None = None,
    ) -> None:
        self.guide = Repulsion() if guide is None else guide
        if not isinstance(self.guide, Repulsion):
            raise ValueError(f"guide must be an oddlm.Repulsion, not {type(guide).__name__}")
        self.n, self.steps, self.seed = whole("n", n), whole("steps", steps), seed
        noise.seed_tensor(seed, len(seed) if isinstance(seed, Sequence) else 1, CPU)
        self.fork, self.history = fork, _explored("history", history)
        if history is not None:
            self.guide.check_memory()
        form = self.guide.remember or (None if history is None else history.form)
        self.memory: Explored | None = None if form is None else Explored(form)
        self._pushes = self.memory is not None or not self.guide.idle
        self._resolved: tuple[Any, Repelling] | None = None
        self._seeds: Tensor | None = None

    @torch.no_grad()
    def __call__(
        self,
        logits: Tensor,
        tokens: Tensor | None = None,
        masked: Tensor | None = None,
        *,
        step: int,
    ) -> Tensor:
        """Return the pushed logits of a step; the input itself if there is nothing to push.

        Args:
            logits: [B, S, V], of the generated positions.
            tokens: [B, S], the current tokens of those positions, read where they are committed; -1
                is a token that does not count, as all do if this is None.
            masked: [B, S] bool, True if a position is not yet committed; None means all of them.
            step: Index of the step.
        """
        _check_shapes(logits, tokens, masked, self.n)
        if not 0 <= step < self.steps:
            raise ValueError(f"step must lie in 0..{self.steps - 1}, not {step}")
        running, forks = self._resolve(logits), self.fork and step == 0
        pushes = self._pushes and not has_ended(running, step, self.steps)
        if not pushes and not forks:
            return logits
        here, pushed = self._step(step, logits, tokens, masked), logits
        if pushes:
            pushed, self.memory = running.pushed_logits(logits, here, self.memory)
        return _forked(logits, pushed, here) if forks else pushed

    def _step(
        self, index: int, logits: Tensor, tokens: Tensor | None, masked: Tensor | None
    ) -> Step:
        (B, S, _), device = logits.shape, logits.device
        if masked is None:
            masked = torch.ones(B, S, dtype=torch.bool, device=device)
        if tokens is None:
            tokens = torch.full((B, S), ABSENT, device=device)
        return Step(
            index=index,
            total=self.steps,
            tokens=tokens.long(),
            blocks=Blocks(torch.zeros(1, S, dtype=torch.long, device=device), 1, masked),
            n=self.n,
            first_sample=0 if self.history is None else self.history.samples_at(index),
            seeds=self._seeds_on(device, B // self.n),
            protected=tuple(self.guide.protected or ()),
        )

    def _resolve(self, logits: Tensor) -> Repelling:
        """Return the guide of the run, resolved when the first logits of a kind come."""
        kind = logits.shape[-1], logits.device, logits.dtype
        if self._resolved is None or self._resolved[0] != kind:
            guide = self.guide
            chosen = dispatch.choose(*kind[1:], asked=guide.backend, forms=guide.forms)
            info = ModelInfo(kind[0], None, embedding=guide.embedding)
            resumes = self.history is not None
            running = guide.resolve(info, chosen, self.history, resumes=resumes)
            self._resolved = kind, running
        return self._resolved[1]

    def _seeds_on(self, device: torch.device, groups: int) -> Tensor:
        if self._seeds is None or (len(self._seeds), self._seeds.device) != (groups, device):
            self._seeds = noise.seed_tensor(self.seed, groups, device)
        return self._seeds


def diversify(
    logits: Tensor,
    tokens: Tensor,
    masked: Tensor,
    *,
    alpha: float,
    objective: str | Mapping[str, Any] | Objective = OBJECTIVE,
    feature: str | Mapping[str, Any] | Pooling | Feature = FEATURE,
    n: int | None = None,
    protected: Collection[int] = (),
    duplicates: DuplicateMode | None = None,
    tolerance: float | None = None,
    gradient: Gradient = GRADIENT,
    seed: int | Sequence[int] = 0,
    step: int = 0,
    embedding: Tensor | None = None,
    arithmetic: Arithmetic = ARITHMETIC,
    backend: dispatch.Asked = "auto",
    history: Explored | None = None,
    record: Explored | None = None,
) -> Tensor:
    """Push the samples of a batch apart: one line in your own loop, before it picks tokens.

    This is a `Diversifier` that is made and called once. It also checks the values of its inputs,
    for which it waits for a GPU.

    Args:
        logits: [B, S, V], of the generated positions.
        tokens: [B, S], the current tokens of those positions.
        masked: [B, S] bool, True if a position is not yet committed.
        alpha: Strength of the push at this step; apply your own schedule to it.
        objective: As in `Repulsion`.
        feature: As in `Repulsion`.
        n: Samples per prompt; by default all B belong to one prompt.
        protected: Ids that are never pushed, such as EOS and PAD.
        duplicates: As in `Repulsion`.
        tolerance: As in `Repulsion`.
        gradient: As in `Repulsion`.
        seed: One, or one per prompt. With `step` it determines the random directions of duplicates.
        step: Index of the step.
        embedding: As in `Repulsion`.
        arithmetic: As in `Repulsion`.
        backend: As in `Repulsion`.
        history: The `record` of an earlier batch of the same prompts, to continue from it.
        record: An `Explored()` that collects the directions of this batch.

    Returns:
        New logits of the same dtype. Committed positions and all inputs are unchanged.
    """
    finite("alpha", alpha)
    _explored("record", record)
    guide = Repulsion(
        objective=objective,
        feature=feature,
        alpha=alpha,
        alpha_schedule="constant",
        duplicates=duplicates,
        tolerance=tolerance,
        gradient=gradient,
        protected=protected,
        embedding=embedding,
        arithmetic=arithmetic,
        backend=backend,
        remember=None if record is None else record.form,
    )
    B = _check_shapes(logits, tokens, masked, n)[0]
    _check_values(logits, tokens, masked)
    steps = whole("step", step, least=0) + 1
    push = Diversifier(guide, n=B if n is None else n, steps=steps, seed=seed, history=history)
    pushed = push(logits, tokens, masked, step=step)
    if record is not None and push.memory is not None:
        record.feature, record.steps = push.memory.feature, {**record.steps, **push.memory.steps}
    return pushed


def _check_shapes(
    logits: Tensor, tokens: Tensor | None, masked: Tensor | None, n: int | None
) -> tuple[int, int, int]:
    """Return B, S and V; raise ValueError for arguments that do not fit each other."""
    if logits.dim() != 3 or logits.dtype not in FLOATS or 0 in logits.shape:
        known = ", ".join(str(f).removeprefix("torch.") for f in FLOATS)
        raise ValueError(
            f"logits must be {known} of shape [B, S, V], not {logits.dtype} {tuple(logits.shape)}"
        )
    B, S, V = logits.shape
    for name, value in (("tokens", tokens), ("masked", masked)):
        if value is not None and value.shape != (B, S):
            raise ValueError(
                f"{name} must have shape {(B, S)} like logits, not {tuple(value.shape)}"
            )
    if tokens is not None and tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"tokens must be int64 or int32, not {tokens.dtype}")
    if masked is not None and masked.dtype != torch.bool:
        raise ValueError(f"masked must be bool, not {masked.dtype}")
    if n is not None and B % whole("n", n):
        raise ValueError(f"n must divide the batch of {B} samples, not {n}")
    return B, S, V


def _forked(logits: Tensor, pushed: Tensor, step: Step) -> Tensor:
    """Return the pushed logits [B, S, V] with a single token left at one position per sample."""
    tokens, commit = fork_cells(logits, step)
    sample = torch.arange(len(logits), device=logits.device)
    position = commit.byte().argmax(dim=1)  # [B]
    token = tokens[sample, position]
    rows = pushed[sample, position]  # [B, V]
    alone = torch.full_like(rows, -torch.inf)
    alone[sample, token] = logits[sample, position, token]
    result = pushed.clone() if pushed is logits else pushed
    # A sample without masked positions keeps its row.
    result[sample, position] = torch.where(commit.any(dim=1, keepdim=True), alone, rows)
    return result


def _check_values(logits: Tensor, tokens: Tensor, masked: Tensor) -> None:
    """Raise ValueError for committed ids outside the vocabulary, and for bad numbers."""
    V, committed = logits.shape[-1], tokens[~masked]
    if committed.numel() and not 0 <= int(committed.min()) <= int(committed.max()) < V:
        raise ValueError(f"tokens holds a committed id outside the vocabulary 0..{V - 1}")
    check_logits(logits, masked)


def _explored(name: str, value: Any) -> Explored | None:
    if value is not None and not isinstance(value, Explored):
        raise ValueError(f"{name} must be an oddlm.Explored, not {type(value).__name__}")
    return value

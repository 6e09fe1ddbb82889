"""`diversify`: repulsion as a single function, for sampling loops of your own."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import finite, ids, whole
from ..core import noise
from ..core.blocks import Blocks
from ..core.choose import check_logits
from ..core.model import ModelInfo
from ..core.step import Step
from ..kernels import dispatch
from ..kernels.contract import Objective
from ..presets import ARITHMETIC, FEATURE, GRADIENT, OBJECTIVE, Arithmetic
from .features import Feature, Pooling
from .memory import Explored
from .repulsion import DuplicateMode, Gradient, Repulsion

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@torch.no_grad()
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

    The batch holds the samples of one or several prompts, B = groups * n; the samples of one prompt
    are neighbours.

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
    guide = Repulsion(
        objective=objective,
        feature=feature,
        alpha=alpha,
        alpha_schedule="constant",
        duplicates=duplicates,
        tolerance=tolerance,
        gradient=gradient,
        embedding=embedding,
        arithmetic=arithmetic,
        backend=backend,
    )
    n = _check_batch(logits, tokens, masked, n, protected)
    for name, value in (("history", history), ("record", record)):
        if value is not None and not isinstance(value, Explored):
            raise ValueError(f"{name} must be an oddlm.Explored, not {type(value).__name__}")
    if history is not None or record is not None:
        guide.check_memory()
    info = ModelInfo(logits.shape[-1], None, tuple(protected), embedding=embedding)
    chosen = dispatch.choose(logits.device, logits.dtype, asked=guide.backend, forms=guide.forms)
    running = guide.resolve(info, chosen, history, resumes=history is not None)
    check_logits(logits, masked)
    if guide.idle and record is None:
        return logits
    here = Step(
        index=step,
        total=1,
        tokens=tokens.long(),
        blocks=Blocks(
            torch.zeros(1, logits.shape[1], dtype=torch.long, device=logits.device), 1, masked
        ),
        n=n,
        first_sample=0 if history is None else history.samples_at(step),
        seeds=noise.seed_tensor(seed, len(logits) // n, logits.device),
        protected=tuple(protected),
    )
    return running.pushed_logits(logits, here, record)


def _check_batch(
    logits: Tensor, tokens: Tensor, masked: Tensor, n: int | None, protected: Collection[int]
) -> int:
    if logits.dim() != 3 or logits.dtype not in FLOATS or 0 in logits.shape:
        known = ", ".join(str(f).removeprefix("torch.") for f in FLOATS)
        raise ValueError(
            f"logits must be {known} of shape [B, S, V], not {logits.dtype} {tuple(logits.shape)}"
        )
    B, S, V = logits.shape
    for name, value in (("tokens", tokens), ("masked", masked)):
        if value.shape != (B, S):
            raise ValueError(
                f"{name} must have shape {(B, S)} like logits, not {tuple(value.shape)}"
            )
    if tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"tokens must be int64 or int32, not {tokens.dtype}")
    if masked.dtype != torch.bool:
        raise ValueError(f"masked must be bool, not {masked.dtype}")
    n = B if n is None else whole("n", n)
    if B % n:
        raise ValueError(f"n must divide the batch of {B} samples, not {n}")
    committed = tokens[~masked]
    if committed.numel() and not 0 <= int(committed.min()) <= int(committed.max()) < V:
        raise ValueError(f"tokens holds a committed id outside the vocabulary 0..{V - 1}")
    ids("protected", protected, V)
    return n

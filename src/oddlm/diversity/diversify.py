"""`diversify`: the push by itself, for anybody's own loop."""

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
    """Push the samples of a batch apart: the one line to add to a sampling loop of your own, before
    it picks tokens.

    logits [B, S, V] of the generated positions, tokens [B, S] as they stand, masked [B, S] bool. B
    = groups x n, the samples of one prompt being neighbours (n=None: one group). alpha is used as
    it is: multiply it with a schedule of your own. Where a duplicate is broken the direction
    depends on seed (one, or one per group) and step. `protected` ids (EOS, PAD) are never pushed.
    To go on in a second batch, give the first one `record=Explored()` and the second the same
    object as `history`. The other arguments are those of `Repulsion`. Returns new logits of the
    same dtype; committed positions and all other inputs stay as they are.
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
        raise ValueError(f"n must divide the batch of {B} rows, not {n}")
    committed = tokens[~masked]
    if committed.numel() and not 0 <= int(committed.min()) <= int(committed.max()) < V:
        raise ValueError(f"tokens holds a committed id outside the vocabulary 0..{V - 1}")
    ids("protected", protected, V)
    return n

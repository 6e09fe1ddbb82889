"""What makes samples begin differently: a fork in the first step, noise on the order, noise on the
prompt.

Noise on the embeddings of the prompt is strong at first and gone at the end: every sample reads the
question in its own way. After time-annealed perturbation sampling (Wu et al. 2026,
arXiv:2601.22629), which brings CADS (Sadat et al. 2024) from images to text: the scale falls like a
quarter of a cosine, every step draws anew, and each token keeps the length of its embedding. Theirs
is noise of one size for all tokens, ours goes by the length of each: scale 1 turns every token by
about 45 degrees.
"""

from math import pi, sqrt

import torch
from torch import Tensor

from . import noise
from .choose import row_tiles
from .step import Step, id_tensor


def order_noise(step: Step, temperature: float) -> Tensor:
    """[B, L]: Gumbel noise on the log-score that picks positions."""
    keys = noise.key(*step.address(), step.index, noise.Purpose.ORDER)
    return temperature * noise.gumbel(keys, step.tokens.shape[1])


def prompt_nudge(
    prompts: Tensor, prompt_lengths: Tensor, step: Step, scale: float, embedding: Tensor
) -> Tensor:
    """[B, start, H]: what this step adds to the embeddings of the left-padded prompts [B, start].

    Positions count from the first real token, so that a prompt is moved alike alone and beside
    longer ones.
    """
    start, H = prompts.shape[1], embedding.shape[1]
    seeds, samples = step.address()
    place = torch.arange(start, device=prompts.device) - (start - prompt_lengths)[:, None]
    keys = noise.key(
        seeds[:, None], samples[:, None], step.index, noise.Purpose.PROMPT, place
    )  # [B, start]
    strength = scale * annealed(step) / sqrt(H)
    wide = torch.promote_types(embedding.dtype, torch.float32)
    nudge = torch.empty(*prompts.shape, H, dtype=embedding.dtype, device=prompts.device)
    for rows in row_tiles(torch.arange(len(prompts), device=prompts.device), start * H):
        x = embedding[prompts[rows].to(embedding.device)].to(prompts.device, wide)  # [R, start, H]
        size = x.norm(dim=-1, keepdim=True)
        moved = x + strength[rows, None, None].to(wide) * size * noise.normal(keys[rows], H).to(
            wide
        )
        moved = moved * (size / moved.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(wide).tiny))
        nudge[rows] = (moved - x).to(nudge.dtype)
    return nudge


def annealed(step: Step) -> Tensor:
    """[B] float64: from nearly 1 at the first step to 0 at the last."""
    done = (1 - step.time_left + 1 / step.total).clamp(max=1.0)
    return (done * (pi / 2)).cos()


def fork_cells(logits: Tensor, step: Step, temperature: float = 0.0) -> tuple[Tensor, Tensor]:
    """Sample j's forced first commit: the j-th likeliest (position, token) cell, protected ids
    excluded.

    With a temperature, likeliest after Gumbel noise that the samples of a prompt share: their cells
    are then drawn without replacement. Returns tokens [B, L] and commit [B, L], one True per row.
    Ties go to the lowest position, then to the lowest token.
    """
    L, V = logits.shape[1:]
    tokens, commit = step.tokens.clone(), torch.zeros_like(step.open)
    protected = id_tensor(step.protected, logits.device)
    seeds, samples = step.address()
    keys = noise.key(
        seeds[:, None], 0, step.index, noise.Purpose.FORK, torch.arange(L, device=logits.device)
    )  # [B, L]
    deepest = min(step.first_sample + step.n, L * V)
    for rows in row_tiles(torch.arange(len(logits), device=logits.device), logits[0].numel()):
        cells = (
            logits[rows].to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        )
        cells = cells.masked_fill(~step.open[rows, :, None], -torch.inf)
        allowed = cells.index_fill(-1, protected, -torch.inf)
        some = (
            allowed.isfinite().flatten(1).any(dim=1)
        )  # otherwise every cell is protected, and one of them it must be
        cells = allowed.where(some[:, None, None], cells)
        if temperature > 0:
            cells = cells + temperature * noise.gumbel(keys[rows], V).to(cells.dtype)
        cells = cells.flatten(1)
        cell = _ranked(cells, samples[rows] % cells.isfinite().sum(dim=1).clamp(min=1), deepest)
        tokens[rows, cell // V], commit[rows, cell // V] = cell % V, True
    return tokens, commit & step.open


def _ranked(values: Tensor, rank: Tensor, deepest: int) -> Tensor:
    """[R]: column of the rank-th largest of values [R, C], lowest column first on ties, without
    sorting everything.

    deepest: above all ranks, so that nobody has to ask the device for the largest.
    """
    cut = values.topk(deepest).values.gather(1, rank[:, None])
    level = values == cut
    wanted = rank - (values > cut).sum(dim=1) + 1
    nth = level & (level.cumsum(dim=1, dtype=torch.int32) == wanted[:, None])
    return nth.byte().argmax(dim=1)

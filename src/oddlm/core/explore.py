"""Ways to make samples start differently: fork, order noise and prompt noise.

Noise on the embeddings of the prompt is strong at first and gone at the end, so that every sample
reads the prompt a little differently. It follows time-annealed perturbation sampling (Wu et al.
2026, arXiv:2601.22629), which brings CADS (Sadat et al. 2024) from images to text: the scale falls
like a quarter of a cosine, every step draws new noise, and each token keeps the norm of its
embedding. Their noise has one size for all tokens; ours is relative to the norm of each, so that
scale 1 rotates every token by about 45 degrees.
"""

from math import pi, sqrt

import torch
from torch import Tensor

from . import noise
from .choose import row_tiles
from .step import Step, id_tensor


def order_noise(step: Step, temperature: float) -> Tensor:
    """Return Gumbel noise [B, L] for the log-score that ranks the positions."""
    keys = noise.key(*step.address(), step.index, noise.Purpose.ORDER)
    return temperature * noise.gumbel(keys, step.tokens.shape[1])


def prompt_nudge(
    prompts: Tensor, prompt_lengths: Tensor, step: Step, scale: float, embedding: Tensor
) -> Tensor:
    """Return what this step adds to the embeddings of the left-padded prompts, [B, start, H].

    Positions count from the first real token, so a prompt gets the same noise whatever its padding.
    """
    start, H = prompts.shape[1], embedding.shape[1]
    seeds, samples = step.address()
    place = torch.arange(start, device=prompts.device) - (start - prompt_lengths)[:, None]
    # [B, start]
    keys = noise.key(seeds[:, None], samples[:, None], step.index, noise.Purpose.PROMPT, place)
    strength = scale * annealed(step) / sqrt(H)
    wide = torch.promote_types(embedding.dtype, torch.float32)
    nudge = torch.empty(*prompts.shape, H, dtype=embedding.dtype, device=prompts.device)
    for rows in row_tiles(torch.arange(len(prompts), device=prompts.device), start * H):
        x = embedding[prompts[rows].to(embedding.device)].to(prompts.device, wide)  # [R, start, H]
        size = x.norm(dim=-1, keepdim=True)
        random = noise.normal(keys[rows], H).to(wide)
        moved = x + strength[rows, None, None].to(wide) * size * random
        moved = moved * (size / moved.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(wide).tiny))
        nudge[rows] = (moved - x).to(nudge.dtype)
    return nudge


def annealed(step: Step) -> Tensor:
    """Return the noise scale [B] float64, from nearly 1 at the first step to 0 at the last."""
    done = (1 - step.time_left + 1 / step.total).clamp(max=1.0)
    return (done * (pi / 2)).cos()


def fork_cells(logits: Tensor, step: Step, temperature: float = 0.0) -> tuple[Tensor, Tensor]:
    """Choose the first commit of sample j: the j-th most likely (position, token) cell.

    Protected ids are excluded. At a temperature above 0, all samples of a prompt share Gumbel noise
    on the cells, which draws them without replacement. Ties go to the lowest position, then to the
    lowest token. Returns tokens [B, L] and commit [B, L], with one True per sample.
    """
    L, V = logits.shape[1:]
    tokens, commit = step.tokens.clone(), torch.zeros_like(step.open)
    protected = id_tensor(step.protected, logits.device)
    seeds, samples = step.address()
    positions = torch.arange(L, device=logits.device)
    keys = noise.key(seeds[:, None], 0, step.index, noise.Purpose.FORK, positions)  # [B, L]
    deepest = min(step.first_sample + step.n, L * V)
    for rows in row_tiles(torch.arange(len(logits), device=logits.device), logits[0].numel()):
        wide = torch.promote_types(logits.dtype, torch.float32)
        cells = logits[rows].to(wide).log_softmax(dim=-1)
        cells = cells.masked_fill(~step.open[rows, :, None], -torch.inf)
        allowed = cells.index_fill(-1, protected, -torch.inf)
        # If every cell is protected, one of them has to be chosen.
        some = allowed.isfinite().flatten(1).any(dim=1)
        cells = allowed.where(some[:, None, None], cells)
        if temperature > 0:
            cells = cells + temperature * noise.gumbel(keys[rows], V).to(cells.dtype)
        cells = cells.flatten(1)
        cell = _ranked(cells, samples[rows] % cells.isfinite().sum(dim=1).clamp(min=1), deepest)
        place = (cell // V)[:, None]
        tokens[rows] = tokens[rows].scatter(1, place, (cell % V)[:, None])
        commit[rows] = commit[rows].scatter(1, place, True)  # an index and a scalar would wait
    return tokens, commit & step.open


def _ranked(values: Tensor, rank: Tensor, deepest: int) -> Tensor:
    """Return the column [R] of the rank-th largest of values [R, C] without a full sort.

    Ties go to the lowest column. `deepest` is an upper bound of the ranks, which saves reading the
    largest one back from the device.
    """
    cut = values.topk(deepest).values.gather(1, rank[:, None])
    tied = values == cut
    nth_tie = rank - (values > cut).sum(dim=1) + 1
    nth = tied & (tied.cumsum(dim=1, dtype=torch.int32) == nth_tie[:, None])
    return nth.byte().argmax(dim=1)

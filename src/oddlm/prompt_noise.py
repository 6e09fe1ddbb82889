"""Noise on the embeddings of the prompt, strong at first and gone at the end: every sample reads the question in its own way.

After time-annealed perturbation sampling (Wu et al. 2026, arXiv:2601.22629), which brings CADS (Sadat et al. 2024) from images
to text: the scale falls like a quarter of a cosine, every step draws anew, and each token keeps the length of its embedding.
Theirs is noise of one size for all tokens, ours goes by the length of each: scale 1 turns every token by about 45 degrees.
"""

from math import pi, sqrt

import torch
from torch import Tensor

from . import noise
from .sampling import row_tiles
from .types import Step


def prompt_nudge(prompts: Tensor, prompt_lengths: Tensor, step: Step, scale: float) -> Tensor:
    """[B, start, H]: what this step adds to the embeddings of the left-padded prompts [B, start].

    Positions count from the first real token, so that a prompt is moved alike alone and beside longer ones.
    """
    embedding = step.embedding
    assert embedding is not None
    start, H = prompts.shape[1], embedding.shape[1]
    seeds, samples = step.address()
    place = torch.arange(start, device=prompts.device) - (start - prompt_lengths)[:, None]
    keys = noise.key(seeds[:, None], samples[:, None], step.index, noise.Purpose.PROMPT, place)  # [B, start]
    strength = scale * annealed(step) / sqrt(H)
    wide = torch.promote_types(embedding.dtype, torch.float32)
    nudge = torch.empty(*prompts.shape, H, dtype=embedding.dtype, device=prompts.device)
    for rows in row_tiles(torch.arange(len(prompts), device=prompts.device), start * H):
        x = embedding[prompts[rows].to(embedding.device)].to(prompts.device, wide)  # [R, start, H]
        size = x.norm(dim=-1, keepdim=True)
        moved = x + strength[rows, None, None].to(wide) * size * noise.normal(keys[rows], H).to(wide)
        moved = moved * (size / moved.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(wide).tiny))
        nudge[rows] = (moved - x).to(nudge.dtype)
    return nudge


def annealed(step: Step) -> Tensor:
    """[B] float64: from nearly 1 at the first step to 0 at the last."""
    done = (1 - step.time_left + 1 / step.total).clamp(max=1.0)
    return (done * (pi / 2)).cos()

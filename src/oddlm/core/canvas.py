"""Prompts and templates as a canvas of tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .model import ModelInfo

Prompt = Sequence[int] | Tensor
Template = Sequence[int | None]  # tokens, with None for each token to be written


def lay_prompts(prompts: Sequence[Prompt], n: int, info: ModelInfo) -> tuple[Tensor, Tensor]:
    """Return the left-padded prompts, each n times, [B, start], and their lengths [B]."""
    if not len(prompts):
        raise ValueError("prompts is empty: give at least one prompt")
    rows = [_ids(f"prompts[{i}]", prompt, info) for i, prompt in enumerate(prompts)]
    start = max(len(row) for row in rows)
    pad = 0 if info.mask_id is None else info.mask_id  # the padding is never read
    canvas = torch.full((len(rows), start), pad, device=info.device)
    for i, row in enumerate(rows):
        canvas[i, start - len(row) :] = row
    lengths = torch.tensor([len(row) for row in rows], device=info.device)
    return canvas.repeat_interleave(n, dim=0), lengths.repeat_interleave(n)


def _ids(name: str, given: Prompt, info: ModelInfo) -> Tensor:
    try:
        row = torch.as_tensor(given)
        if row.dim() != 1 or (len(row) and (row.is_floating_point() or row.dtype == torch.bool)):
            raise TypeError(f"{row.dtype} of shape {tuple(row.shape)}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a flat sequence of token ids, not {error}") from error
    row = row.long()
    if len(row) and not 0 <= int(row.min()) <= int(row.max()) < info.vocab_size:
        raise ValueError(f"{name} holds a token id outside the vocabulary 0..{info.vocab_size - 1}")
    return row.to(info.device)


def lay_templates(
    templates: Sequence[Template] | None, n: int, length: int, prompts: int, info: ModelInfo
) -> tuple[Tensor | None, Tensor | None]:
    """Return answers [B, L] with the tokens of the templates, and where those are, [B, L] bool."""
    if templates is None:
        return None, None
    if len(templates) != prompts:
        raise ValueError(
            f"templates must be one per prompt: got {len(templates)} for {prompts} prompts"
        )
    rows, given = [], []
    for i, template in enumerate(templates):
        if len(template) != length:
            raise ValueError(
                f"templates[{i}] has {len(template)} positions, but length is {length}"
            )
        if all(token is not None for token in template):
            raise ValueError(f"templates[{i}] has no position to write")
        if info.mask_id is not None and info.mask_id in template:
            raise ValueError(
                f"templates[{i}] holds the mask token {info.mask_id}: use None for a token to be "
                "written"
            )
        filled = [0 if token is None else token for token in template]
        rows.append(_ids(f"templates[{i}]", filled, info))
        given.append(torch.tensor([token is not None for token in template], device=info.device))
    answers, fixed = (torch.stack(x).repeat_interleave(n, dim=0) for x in (rows, given))
    return answers, fixed

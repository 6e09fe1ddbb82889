"""From logits to tokens and confidences, a tile of rows at a time: no second [B, L, V] array exists."""

from collections.abc import Iterator
from dataclasses import replace
from math import log

import torch
from torch import Tensor

from . import noise
from .types import Prediction, Step

LATE = 1e-3  # what `suppress_confidence` multiplies a confidence with


def check_logits(logits: Tensor, masked: Tensor, name: str = "logits") -> None:
    """NaN, +inf, or nothing but -inf at a masked position is an error that names the first such row."""
    peak = logits.amax(dim=-1)  # NaN survives amax; so do +inf and a row of -inf
    bad = masked & ~peak.isfinite()
    if bad.any():
        row, position = (int(i) for i in bad.nonzero()[0])
        value = peak[row, position].item()
        what = {torch.inf: "+inf", -torch.inf: "nothing but -inf"}.get(value, "NaN")
        raise ValueError(f"{name} hold {what} at row {row}, position {position}")


def row_tiles(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Split row indices so that a tile of rows x size stays small."""
    return iter(rows.split(max(1, noise.TILE_ELEMENTS // size))) if len(rows) else iter(())


def filter_logits(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Keep the k likeliest tokens, and the smallest set of likeliest tokens that holds probability p; the rest is -inf."""
    if top_k is None and top_p is None:
        return logits
    ranked = logits.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(logits, dtype=torch.bool)
    if top_k is not None:
        keep[..., top_k:] = False
    if top_p is not None:
        mass = ranked.values.softmax(dim=-1)
        keep &= mass.cumsum(dim=-1) - mass < top_p
    return logits.masked_fill(~torch.zeros_like(keep).scatter(-1, ranked.indices, keep), -torch.inf)


def predict(
    logits: Tensor, step: Step, *, temperature: float, top_k: int | None, top_p: float | None, needs: str | None
) -> Prediction:
    """Gumbel-max at `temperature` (0: argmax, lowest id on ties) at every open position.

    Confidence is the softmax of the logits themselves, without temperature or filters.
    """
    _, L, V = logits.shape
    seeds, samples = step.address()
    positions = torch.arange(L, device=logits.device)
    keys = noise.key(seeds[:, None], samples[:, None], step.index, noise.Purpose.TOKEN, positions).flatten()
    tokens = step.tokens.flatten().clone()
    confidence = torch.zeros_like(tokens, dtype=torch.float64)
    extra = torch.zeros_like(confidence)
    flat = logits.reshape(-1, V)
    for rows in row_tiles(step.open.flatten().nonzero().squeeze(1), V):
        x = flat[rows].to(torch.promote_types(logits.dtype, torch.float32))  # [R, V]
        score = filter_logits(x, top_k, top_p)
        if temperature > 0:
            score = score + temperature * noise.gumbel(keys[rows], V).to(x.dtype)
        tokens[rows] = score.argmax(dim=-1)
        confidence[rows], extra[rows] = _statistics(x, tokens[rows], needs)
    shape = step.tokens.shape
    return Prediction(
        tokens=tokens.view(shape),
        confidence=confidence.view(shape),
        margin=extra.view(shape) if needs == "margin" else None,
        entropy=extra.view(shape) if needs == "entropy" else None,
        logits=logits,
    )


def _statistics(x: Tensor, tokens: Tensor, needs: str | None) -> tuple[Tensor, Tensor]:
    """Probability of `tokens`, and margin or entropy, each [R] float64.

    The likeliest token is left out of the sum of exponentials, so that probabilities near 1 keep their differences.
    """
    peak, likeliest = x.max(dim=-1, keepdim=True)
    weights = (x - peak).exp().scatter(-1, likeliest, 0.0)
    total = 1 + weights.sum(dim=-1).double()
    probability = (x.gather(-1, tokens[:, None]) - peak).squeeze(-1).double().exp() / total
    if needs == "margin":
        return probability, (1 - weights.amax(dim=-1).double()) / total
    if needs == "entropy":
        depth = (peak - x).masked_fill(weights == 0, 0.0)  # -inf logits weigh nothing
        return probability, total.log() + (weights * depth).sum(dim=-1).double() / total
    return probability, torch.zeros_like(probability)


def delay(prediction: Prediction, ids: Tensor) -> Prediction:
    """Choices of `ids` count as a thousand times less confident than they are, so that they are committed late."""
    if not len(ids):
        return prediction
    late = torch.isin(prediction.tokens, ids)
    return replace(
        prediction,
        confidence=torch.where(late, prediction.confidence * LATE, prediction.confidence),
        margin=None if prediction.margin is None else torch.where(late, prediction.margin * LATE, prediction.margin),
        entropy=None if prediction.entropy is None else torch.where(late, prediction.entropy - log(LATE), prediction.entropy),
    )


def probability(logits: Tensor, tokens: Tensor, where: Tensor) -> Tensor:
    """[B, L] float64: probability of `tokens` at the positions `where`, 0 elsewhere."""
    result = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
    x = logits[where].to(torch.promote_types(logits.dtype, torch.float32))
    result[where] = _statistics(x, tokens[where], None)[0]
    return result


def fork_cells(logits: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Sample j's forced first commit: the j-th likeliest (position, token) cell, protected ids excluded.

    Returns tokens [B, L] and commit [B, L], one True per row. Ties go to the lowest position, then the lowest token.
    """
    _, L, V = logits.shape
    tokens, commit = step.tokens.clone(), torch.zeros_like(step.open)
    protected = torch.tensor(step.protected, dtype=torch.long, device=logits.device)
    _, samples = step.address()
    for rows in row_tiles(torch.arange(len(logits), device=logits.device), L * V):
        cells = logits[rows].to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        cells = cells.masked_fill(~step.open[rows, :, None], -torch.inf)
        allowed = cells.index_fill(-1, protected, -torch.inf)
        some = allowed.isfinite().any(dim=(1, 2))  # otherwise every cell is protected, and one of them it must be
        cells = torch.where(some[:, None, None], allowed, cells).flatten(1)
        cell = _ranked(cells, samples[rows] % cells.isfinite().sum(dim=1))
        tokens[rows, cell // V], commit[rows, cell // V] = cell % V, True
    return tokens, commit


def _ranked(values: Tensor, rank: Tensor) -> Tensor:
    """[R, C], [R] -> [R]: index of each row's rank-th largest value, lowest index first on ties, without sorting everything."""
    cut = values.topk(int(rank.max()) + 1).values.gather(1, rank[:, None])  # [R, 1]
    level = values == cut
    place = rank[:, None] - (values > cut).sum(dim=1, keepdim=True)  # among its equals
    return (level & (level.cumsum(dim=1) == place + 1)).byte().argmax(dim=1)

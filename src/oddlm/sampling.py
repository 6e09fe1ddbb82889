"""From logits to tokens and confidences, a tile of rows at a time or in a fused kernel: no second [B, L, V] array exists."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Any

import torch
from torch import Tensor

from . import noise
from .alarm import Alarm
from .kernels.choice import triton_kernel
from .kernels.reference import id_tensor, keys_of
from .types import Guide, Prediction, Step

NUCLEUS = 64  # tokens that hold top_p almost always
CONFIDENCES = ("full", "sampled")
COLDEST = 1e-30  # logits divided by less would overflow, and every distribution is one-hot long before
EPSILON = 1e-10  # Dream's entropy is that of p log(p + EPSILON)
LATE = 1e-3  # what `suppress_confidence` multiplies a confidence with


def check_logits(logits: Tensor, masked: Tensor, name: str = "logits", alarm: Alarm | None = None) -> None:
    """NaN, +inf, or nothing but -inf at a masked position is an error that names the first such row."""
    check_peaks(logits.amax(dim=-1), masked, name, alarm)  # NaN survives amax; so do +inf and a row of -inf


def check_peaks(peak: Tensor, masked: Tensor, name: str, alarm: Alarm | None) -> None:
    """`check_logits` on the largest logit of each row, or NaN."""

    def describe(row: int, position: int, value: float) -> str:
        what = {torch.inf: "+inf", -torch.inf: "nothing but -inf"}.get(value, "NaN")
        return f"{name} hold {what} at row {row}, position {position}"

    (alarm or Alarm(patient=False)).check(masked & ~(peak.abs() < torch.inf), peak, describe)


@dataclass(frozen=True)
class Outlook:
    """The logits of one step before and after its guide. A fused kernel draws from them without writing them: then they exist
    only once somebody asks.
    """

    network: Tensor  # [B, m, V] as they came
    positions: Tensor | None  # [B, m]: whose they are, the masked ones; None: all, m = L
    step: Step
    alarm: Alarm
    kernel: Any  # `kernels.triton`, where it can draw from these logits
    push: Any = None  # what a fused guide does to them, a `kernels.triton.Push`
    written: Tensor | None = None  # what another guide made of them

    @cached_property
    def base(self) -> Tensor:
        """[B, L, V] suppressed, not guided; undefined at committed positions."""
        never = id_tensor(self.step.never, self.network.device)
        if self.positions is None:
            return self.network.index_fill(-1, never, -torch.inf)
        return spread(self.network, self.step.masked).index_fill_(-1, never, -torch.inf)

    @cached_property
    def guided(self) -> Tensor:
        """[B, L, V]."""
        if self.push is not None:
            guided: Tensor = self.kernel.write(self.base, self.step.masked, self.push)
            return guided
        return self.base if self.written is None else self.written

    @property
    def is_guided(self) -> bool:
        return self.push is not None or self.written is not None

    def without_guide(self) -> "Outlook":
        return replace(self, push=None, written=None)


def spread(rows: Tensor, masked: Tensor) -> Tensor:
    """[B, L, V] from the rows [B, m, V] of m masked positions each; a committed position repeats one of them."""
    B, m, V = rows.shape
    place = (masked.cumsum(dim=1) - 1).clamp(min=0) + m * torch.arange(B, device=rows.device)[:, None]
    return rows.reshape(B * m, V).index_select(0, place.flatten()).view(*masked.shape, V)


def look(network: Tensor, positions: Tensor | None, step: Step, guide: Guide | None, alarm: Alarm) -> Outlook:
    """Guide the network's logits [B, m, V] of these positions (None: all), fused where guide and device allow it."""
    outlook = Outlook(network, positions, step, alarm, triton_kernel(network))
    if outlook.kernel is not None and guide is None:
        return outlook
    fused = getattr(guide, "fused", None)
    if outlook.kernel is not None and fused is not None and (push := fused(network, positions, step)) is not None:
        check_peaks(push.largest, step.masked, "logits", alarm)
        return replace(outlook, push=push)
    check_logits(outlook.base, step.masked, alarm=alarm)
    return outlook if guide is None else replace(outlook, written=_checked(guide(outlook.base, step), outlook))


def _checked(guided: Tensor, outlook: Outlook) -> Tensor | None:
    """What a guide gave back: of the right shape, sane, and still without the ids that are never written."""
    base, step = outlook.base, outlook.step
    if guided is base:
        return None
    if guided.shape != base.shape:
        raise ValueError(f"the guide returned logits {tuple(guided.shape)}, expected {tuple(base.shape)}")
    never = id_tensor(step.never, guided.device)
    if not guided[..., never].isneginf().all():
        guided = guided.index_fill(-1, never, -torch.inf)
    check_logits(guided, step.masked, "the guide's logits", outlook.alarm)
    return guided


def row_tiles(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Split row indices so that a tile of rows x size stays small."""
    return iter(rows.split(max(1, noise.tile_elements(rows.device) // size))) if len(rows) else iter(())


def filter_logits(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Keep the k likeliest tokens, and the smallest set of likeliest tokens that holds probability p; the rest is -inf.

    Probability 1 is everything.
    """
    top_p = None if top_p == 1 else top_p
    if top_k is None and top_p is None:
        return logits
    total = logits.logsumexp(dim=-1, keepdim=True)
    many = logits.shape[-1]
    some = min(many, max(NUCLEUS, top_k or 0))
    ranked = logits.topk(some).values  # sorting everything costs a GPU more than the rest of a step
    if top_p is not None and some < many and bool(((ranked - total).exp().sum(dim=-1) < top_p).any()):
        ranked = logits.sort(dim=-1, descending=True).values
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if top_k is not None:
        keep[..., top_k:] = False
    if top_p is not None:
        mass = (ranked - total).exp()
        keep &= mass.cumsum(dim=-1) - mass < top_p
        keep[..., 0] = True  # the smallest p are 0 in float32
    return _keep(logits, ranked, keep.sum(dim=-1, keepdim=True))


def _keep(logits: Tensor, ranked: Tensor, kept: Tensor) -> Tensor:
    """The `kept` [R, 1] largest of the logits, the lowest ids of equal ones; the rest is -inf. ranked: the first, sorted."""
    cut = ranked.gather(-1, kept - 1)
    level = logits == cut
    wanted = kept - (logits > cut).sum(dim=-1, keepdim=True)
    first = level & (level.cumsum(dim=-1, dtype=torch.int32) <= wanted)
    return logits.masked_fill(~((logits > cut) | first), -torch.inf)


def sampled_distribution(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> tuple[Tensor, Tensor]:
    """Logits [R, V] after temperature, top_p and top_k, in this order, and their softmax: what Dream's sampler draws from.

    Its arithmetic is that of the logits' own precision, and so is this: in bfloat16 every probability above 0.998 is 1, and
    such ties decide its order. (float16 is too narrow for logits over a temperature, and counts as float32.)
    """
    x = logits.float() if logits.dtype is torch.float16 else logits
    x = x / max(temperature, COLDEST) if temperature > 0 else x
    if top_p is not None and top_p < 1:
        x = _nucleus(x, top_p)
    if top_k is not None:
        least = x.topk(min(top_k, x.shape[-1])).values[..., -1:]
        x = x.masked_fill(x < least, -torch.inf)  # tokens equal to the k-th likeliest stay
    return x, x.softmax(dim=-1)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """The likeliest tokens up to the first with which their mass, rounded like the logits, is above top_p."""
    shares, many = logits.softmax(dim=-1), logits.shape[-1]
    wide = torch.promote_types(logits.dtype, torch.float32)
    for some in (min(NUCLEUS, many), many):
        ranked, tokens = logits.topk(some) if some < many else logits.sort(dim=-1, descending=True, stable=True)
        above = shares.gather(-1, tokens).to(wide).cumsum(dim=-1).to(logits.dtype) > top_p
        if bool(above[..., -1].all()):
            break
    kept = ((~above).sum(dim=-1, keepdim=True) + 1).clamp(max=many)
    return _keep(logits, ranked, kept)


def predict(
    outlook: Outlook,
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    needs: str | None,
    confidence: str = "full",
) -> Prediction:
    """Gumbel-max at `temperature` (0: argmax, lowest id on ties) at every open position.

    Full confidence is the softmax of the guided logits themselves, without temperature or filters; sampled confidence is
    that of what tokens are drawn from.
    """
    step, full = outlook.step, confidence == "full"
    if outlook.kernel is not None:
        if full and top_k is None and top_p is None:
            return _draw_fused(outlook, temperature, needs)
        check_logits(outlook.guided, step.open, _source(outlook), outlook.alarm)  # the fused draw would have
    keys = keys_of(step, noise.Purpose.TOKEN, step.tokens.shape[1]).flatten()
    logits = outlook.guided
    V = logits.shape[-1]
    tokens = step.tokens.flatten().clone()
    chosen = torch.zeros_like(tokens, dtype=torch.float64)
    extra = torch.zeros_like(chosen)
    flat, wide = logits.reshape(-1, V), torch.promote_types(logits.dtype, torch.float32)
    for rows in row_tiles(step.open.flatten().nonzero().squeeze(1), V):
        if full:
            x = flat[rows].to(wide)  # [R, V]
            score, heat = filter_logits(x, top_k, top_p), temperature
        else:
            x, shares = sampled_distribution(flat[rows], temperature, top_k, top_p)
            score, heat = x.to(wide), 1.0
        if temperature > 0:
            score = score + heat * noise.gumbel(keys[rows], V).to(wide)
        tokens[rows] = score.argmax(dim=-1)
        chosen[rows], extra[rows] = (
            _statistics(x, tokens[rows], needs) if full else _rounded_statistics(shares, tokens[rows], needs)
        )
    shape = step.tokens.shape
    return Prediction(
        tokens=tokens.view(shape),
        confidence=chosen.view(shape),
        margin=extra.view(shape) if needs == "margin" else None,
        entropy=extra.view(shape) if needs == "entropy" else None,
        logits=logits,
    )


def _draw_fused(outlook: Outlook, temperature: float, needs: str | None) -> Prediction:
    """The same in one pass, by a kernel that keeps noise and guided logits to itself."""
    step, push, written = outlook.step, outlook.push, outlook.written
    source = (outlook.network, outlook.positions) if written is None else (written, None)
    drawn = outlook.kernel.draw(*source, step, push, temperature=temperature, needs=needs)
    check_peaks(drawn.largest, step.open, _source(outlook), outlook.alarm)
    return Prediction(
        tokens=drawn.tokens,
        confidence=drawn.confidence,
        margin=drawn.extra if needs == "margin" else None,
        entropy=drawn.extra if needs == "entropy" else None,
        logprobs=None if written is not None else (drawn.base_logprob, drawn.logprob),
    )


def _source(outlook: Outlook) -> str:
    """Who is to blame for what is drawn from."""
    return "logits" if outlook.push is None else "the guide's logits"


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


def _rounded_statistics(shares: Tensor, tokens: Tensor, needs: str | None) -> tuple[Tensor, Tensor]:
    """`_statistics` of given probabilities [R, V], each operation rounded to their precision, as Dream's sampler has it."""
    probability = shares.gather(-1, tokens[:, None]).squeeze(-1).double()
    if needs == "margin":
        first, second = shares.topk(2).values.unbind(dim=-1)
        return probability, (first - second).double()
    if needs == "entropy":
        return probability, -(shares * (shares + EPSILON).log()).sum(dim=-1).double()
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


def fork_cells(logits: Tensor, step: Step, temperature: float = 0.0) -> tuple[Tensor, Tensor]:
    """Sample j's forced first commit: the j-th likeliest (position, token) cell, protected ids excluded.

    With a temperature, likeliest after Gumbel noise that the samples of a prompt share: their cells are then drawn without
    replacement. Returns tokens [B, L] and commit [B, L], one True per row. Ties go to the lowest position, then to the lowest
    token.
    """
    L, V = logits.shape[1:]
    tokens, commit = step.tokens.clone(), torch.zeros_like(step.open)
    protected = id_tensor(step.protected, logits.device)
    seeds, samples = step.address()
    keys = noise.key(seeds[:, None], 0, step.index, noise.Purpose.FORK, torch.arange(L, device=logits.device))  # [B, L]
    deepest = min(step.first_sample + step.n, L * V)
    for rows in row_tiles(torch.arange(len(logits), device=logits.device), logits[0].numel()):
        cells = logits[rows].to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        cells = cells.masked_fill(~step.open[rows, :, None], -torch.inf)
        allowed = cells.index_fill(-1, protected, -torch.inf)
        some = allowed.isfinite().flatten(1).any(dim=1)  # otherwise every cell is protected, and one of them it must be
        cells = allowed.where(some[:, None, None], cells)
        if temperature > 0:
            cells = cells + temperature * noise.gumbel(keys[rows], V).to(cells.dtype)
        cells = cells.flatten(1)
        cell = _ranked(cells, samples[rows] % cells.isfinite().sum(dim=1), deepest)
        tokens[rows, cell // V], commit[rows, cell // V] = cell % V, True
    return tokens, commit


def _ranked(values: Tensor, rank: Tensor, deepest: int) -> Tensor:
    """[R]: column of the rank-th largest of values [R, C], lowest column first on ties, without sorting everything.

    deepest: above all ranks, so that nobody has to ask the device for the largest.
    """
    cut = values.topk(deepest).values.gather(1, rank[:, None])
    level = values == cut
    wanted = rank - (values > cut).sum(dim=1) + 1
    nth = level & (level.cumsum(dim=1, dtype=torch.int32) == wanted[:, None])
    return nth.byte().argmax(dim=1)

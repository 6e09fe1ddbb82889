"""From logits to tokens and confidences, a tile of rows at a time or in a fused kernel: no second
[B, L, V] array exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log

import torch
from torch import Tensor

from . import noise
from .alarm import Alarm
from .guide import Backend, Pushed, RunGuide
from .step import Memory, Prediction, Step, id_tensor

NUCLEUS = 64  # tokens that hold top_p almost always
CONFIDENCES = ("full", "sampled")
COLDEST = (
    1e-30  # logits divided by less would overflow, and every distribution is one-hot long before
)
EPSILON = 1e-10  # Dream's entropy is that of p log(p + EPSILON)
LATE = 1e-3  # what `suppress_confidence` multiplies a confidence with


def check_logits(
    logits: Tensor, masked: Tensor, name: str = "logits", alarm: Alarm | None = None
) -> None:
    """NaN, +inf, or nothing but -inf at a masked position is an error that names the first such
    row.
    """
    check_peaks(
        logits.amax(dim=-1), masked, name, alarm
    )  # NaN survives amax; so do +inf and a row of -inf


def check_peaks(peak: Tensor, masked: Tensor, name: str, alarm: Alarm | None) -> None:
    """`check_logits` on the largest logit of each row, or NaN."""
    (alarm or Alarm(patient=False)).check(
        masked & ~(peak.abs() < torch.inf), peak, partial(_describe, name)
    )


def _describe(name: str, row: int, position: int, value: float) -> str:
    what = {torch.inf: "+inf", -torch.inf: "nothing but -inf"}.get(value, "NaN")
    return f"{name} hold {what} at sample {row}, position {position}"


@dataclass(frozen=True)
class Outlook:
    """The logits of one step before and after its guide. A fused kernel draws from them without
    writing them: then they exist only once somebody asks.
    """

    answer: Tensor  # [B, m, V] as the network gave them
    positions: Tensor | None  # [B, m]: whose they are; None: all, m = L
    answered: Tensor  # [B, L] bool: the masked positions among them
    step: Step
    alarm: Alarm
    backend: Backend
    pushed: Pushed | None = None

    @cached_property
    def base(self) -> Tensor:
        """[B, L, V] suppressed, not pushed; undefined where nothing was answered."""
        never = id_tensor(self.step.never, self.answer.device)
        if self.positions is None:
            return self.answer.index_fill(-1, never, -torch.inf)
        return spread(self.answer, self.answered).index_fill_(-1, never, -torch.inf)

    @cached_property
    def pushed_logits(self) -> Tensor:
        """[B, L, V]."""
        if self.pushed is None:
            return self.base
        if self.pushed.push is not None:
            logits: Tensor = self.backend.kernel.write(self.base, self.answered, self.pushed.push)
            return logits
        assert self.pushed.logits is not None
        return self.pushed.logits

    def without_guide(self) -> "Outlook":
        return replace(self, pushed=None)


def spread(rows: Tensor, answered: Tensor) -> Tensor:
    """[B, L, V] from the rows [B, m, V] of the answered positions, m at most; any other position
    repeats one of them.
    """
    B, m, V = rows.shape
    place = (answered.cumsum(dim=1) - 1).clamp(min=0) + m * torch.arange(B, device=rows.device)[
        :, None
    ]
    return rows.reshape(B * m, V).index_select(0, place.flatten()).view(*answered.shape, V)


def look(
    outlook: Outlook, guide: RunGuide | None, memory: Memory | None, seen: Step
) -> tuple[Outlook, Memory | None]:
    """Guide the logits, and what the guide remembers then. seen: the step as the guide is to see
    it.
    """
    alarm = outlook.alarm
    if guide is None:
        if outlook.backend.kernel is None:
            check_logits(
                outlook.base, outlook.answered, alarm=alarm
            )  # the fused draw does it by the way
        return outlook, memory
    if guide.fused:
        pushed = guide(outlook.answer, seen, memory, outlook.positions)
        check_peaks(pushed.push.largest, outlook.answered, "logits", alarm)
        return replace(outlook, pushed=pushed), pushed.memory
    check_logits(outlook.base, outlook.answered, alarm=alarm)
    pushed = guide(outlook.base, seen, memory)
    assert pushed.logits is not None
    if pushed.logits is outlook.base:
        return outlook, pushed.memory
    return replace(
        outlook, pushed=replace(pushed, logits=_checked(pushed.logits, outlook))
    ), pushed.memory


def _checked(pushed: Tensor, outlook: Outlook) -> Tensor:
    """What a guide gave back: of the right shape, sane, and still without the ids that are never
    written.
    """
    base, step = outlook.base, outlook.step
    if pushed.shape != base.shape:
        raise ValueError(
            f"the guide returned logits {tuple(pushed.shape)}, expected {tuple(base.shape)}"
        )
    never = id_tensor(step.never, pushed.device)
    if not pushed[..., never].isneginf().all():
        pushed = pushed.index_fill(-1, never, -torch.inf)
    check_logits(pushed, outlook.answered, "the guide's logits", outlook.alarm)
    return pushed


def row_tiles(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Split row indices so that a tile of rows x size stays small."""
    return (
        iter(rows.split(max(1, noise.tile_elements(rows.device) // size)))
        if len(rows)
        else iter(())
    )


def filter_logits(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Keep the k likeliest tokens, and the smallest set of likeliest tokens that holds probability
    p; the rest is -inf.

    Probability 1 is everything.
    """
    top_p = None if top_p == 1 else top_p
    if top_k is None and top_p is None:
        return logits
    total = logits.logsumexp(dim=-1, keepdim=True)
    many = logits.shape[-1]
    some = min(many, max(NUCLEUS, top_k or 0))
    ranked = logits.topk(some).values  # sorting everything costs a GPU more than the rest of a step
    if (
        top_p is not None
        and some < many
        and bool(((ranked - total).exp().sum(dim=-1) < top_p).any())
    ):
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
    """The `kept` [R, 1] largest of the logits, the lowest ids of equal ones; the rest is -inf.
    ranked: the first, sorted.
    """
    cut = ranked.gather(-1, kept - 1)
    level = logits == cut
    wanted = kept - (logits > cut).sum(dim=-1, keepdim=True)
    first = level & (level.cumsum(dim=-1, dtype=torch.int32) <= wanted)
    return logits.masked_fill(~((logits > cut) | first), -torch.inf)


def sampled_distribution(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
) -> tuple[Tensor, Tensor]:
    """Logits [R, V] after temperature, top_p and top_k, in this order, and their softmax: what
    Dream's sampler draws from.

    Its arithmetic is that of the logits' own precision, and so is this: in bfloat16 every
    probability above 0.998 is 1, and such ties decide its order. (float16 is too narrow for logits
    over a temperature, and counts as float32.)
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
    """The likeliest tokens up to the first with which their mass, rounded like the logits, is above
    top_p.
    """
    shares, many = logits.softmax(dim=-1), logits.shape[-1]
    wide = torch.promote_types(logits.dtype, torch.float32)
    for some in (min(NUCLEUS, many), many):
        ranked, tokens = (
            logits.topk(some) if some < many else logits.sort(dim=-1, descending=True, stable=True)
        )
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

    Full confidence is the softmax of the pushed logits themselves, without temperature or filters;
    sampled confidence is that of what tokens are drawn from.
    """
    step, full = outlook.step, confidence == "full"
    if outlook.backend.draws:
        return _draw_fused(outlook, temperature, needs)
    if outlook.backend.kernel is not None:
        check_logits(
            outlook.pushed_logits, step.open, _source(outlook), outlook.alarm
        )  # the fused draw would have
    keys = step.keys(noise.Purpose.TOKEN, step.tokens.shape[1]).flatten()
    logits = outlook.pushed_logits
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
            _statistics(x, tokens[rows], needs)
            if full
            else _rounded_statistics(shares, tokens[rows], needs)
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
    """The same in one pass, by a kernel that keeps noise and pushed logits to itself."""
    step = outlook.step
    push, written = (
        (None, None) if outlook.pushed is None else (outlook.pushed.push, outlook.pushed.logits)
    )
    source = (outlook.answer, outlook.positions) if written is None else (written, None)
    drawn = outlook.backend.kernel.draw(*source, step, push, temperature=temperature, needs=needs)
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
    return (
        "the guide's logits"
        if outlook.pushed is not None and outlook.pushed.push is not None
        else "logits"
    )


def _statistics(x: Tensor, tokens: Tensor, needs: str | None) -> tuple[Tensor, Tensor]:
    """Probability of `tokens`, and margin or entropy, each [R] float64.

    The likeliest token is left out of the sum of exponentials, so that probabilities near 1 keep
    their differences.
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
    """`_statistics` of given probabilities [R, V], each operation rounded to their precision, as
    Dream's sampler has it.
    """
    probability = shares.gather(-1, tokens[:, None]).squeeze(-1).double()
    if needs == "margin":
        first, second = shares.topk(2).values.unbind(dim=-1)
        return probability, (first - second).double()
    if needs == "entropy":
        return probability, -(shares * (shares + EPSILON).log()).sum(dim=-1).double()
    return probability, torch.zeros_like(probability)


def delay(prediction: Prediction, ids: Tensor) -> Prediction:
    """Choices of `ids` count as a thousand times less confident than they are, so that they are
    committed late.
    """
    if not len(ids):
        return prediction
    late = torch.isin(prediction.tokens, ids)
    return replace(
        prediction,
        confidence=torch.where(late, prediction.confidence * LATE, prediction.confidence),
        margin=None
        if prediction.margin is None
        else torch.where(late, prediction.margin * LATE, prediction.margin),
        entropy=None
        if prediction.entropy is None
        else torch.where(late, prediction.entropy - log(LATE), prediction.entropy),
    )


def probability(logits: Tensor, tokens: Tensor, where: Tensor) -> Tensor:
    """[B, L] float64: probability of `tokens` at the positions `where`, 0 elsewhere."""
    result = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
    x = logits[where].to(torch.promote_types(logits.dtype, torch.float32))
    result[where] = _statistics(x, tokens[where], None)[0]
    return result

"""From logits to tokens and confidences, tile by tile or in a fused kernel.

There is never a second [B, L, V] array.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log

import torch
from torch import Tensor

from . import noise
from .alarm import Alarm, Check
from .guide import Backend, Pushed, RunGuide
from .step import Memory, Prediction, Step, id_tensor

NUCLEUS = 64  # this many tokens almost always hold top_p
CONFIDENCES = ("full", "sampled")
# Logits divided by less would overflow, and every distribution is one-hot long before.
COLDEST = 1e-30
EPSILON = 1e-10  # Dream computes the entropy as -p log(p + EPSILON)
LATE = 1e-3  # factor of `suppress_confidence` on a confidence


def check_logits(
    logits: Tensor, masked: Tensor, name: str = "logits", alarm: Alarm | None = None
) -> None:
    """Raise ValueError for NaN, +inf, or nothing but -inf at a masked position."""
    # NaN survives amax; so do +inf and a row of -inf.
    check_peaks(logits.amax(dim=-1), masked, name, alarm)


def check_peaks(peak: Tensor, masked: Tensor, name: str, alarm: Alarm | None) -> None:
    """Do `check_logits` on the largest logit (or NaN) of each position."""
    check = Check(peak, masked, _unusable, partial(_describe, name))
    (alarm or Alarm(patient=False)).check(check)


def _unusable(peak: Tensor) -> Tensor:
    return ~(peak.abs() < torch.inf)


def _describe(name: str, sample: int, position: int, value: float) -> str:
    what = {torch.inf: "+inf", -torch.inf: "nothing but -inf"}.get(value, "NaN")
    return f"{name} hold {what} at sample {sample}, position {position}"


@dataclass(frozen=True)
class Outlook:
    """The logits of one step before and after its guide.

    A fused kernel draws from them without writing them; they are then computed on first use.
    """

    answer: Tensor  # [B, m, V]: the network's output
    positions: Tensor | None  # [B, m]: the positions of the answer; None means all, m = L
    answered: Tensor  # [B, L] bool: those among them whose logits are read
    step: Step
    alarm: Alarm
    backend: Backend
    pushed: Pushed | None = None

    @cached_property
    def base(self) -> Tensor:
        """[B, L, V]: before the push, suppressed ids at -inf; undefined where not answered."""
        never = id_tensor(self.step.never, self.answer.device)
        if self.positions is None:
            return self.answer.index_fill(-1, never, -torch.inf)
        return spread(self.answer, self.answered).index_fill_(-1, never, -torch.inf)

    @cached_property
    def pushed_logits(self) -> Tensor:
        """[B, L, V]: after the push."""
        if self.pushed is None:
            return self.base
        if self.pushed.push is not None:
            here = self.answered & self.step.masked
            logits: Tensor = self.backend.kernel.write(self.base, here, self.pushed.push)
            return logits
        assert self.pushed.logits is not None
        return self.pushed.logits

    def without_guide(self) -> "Outlook":
        return replace(self, pushed=None)


def spread(rows: Tensor, answered: Tensor) -> Tensor:
    """Spread the rows [B, m, V] of the answered positions, at most m per sample, over [B, L, V].

    Any other position repeats one of them.
    """
    B, m, V = rows.shape
    first = m * torch.arange(B, device=rows.device)[:, None]
    place = (answered.cumsum(dim=1) - 1).clamp(min=0) + first
    return rows.reshape(B * m, V).index_select(0, place.flatten()).view(*answered.shape, V)


def look(
    outlook: Outlook, guide: RunGuide | None, memory: Memory | None, seen: Step
) -> tuple[Outlook, Memory | None]:
    """Apply the guide to the logits, and return them with the guide's new memory.

    `seen` is the step as the guide sees it.
    """
    alarm = outlook.alarm
    if guide is None:
        if outlook.backend.kernel is None:  # the fused draw checks them itself
            check_logits(outlook.base, outlook.answered, alarm=alarm)
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
    pushed = replace(pushed, logits=_checked(pushed.logits, outlook))
    return replace(outlook, pushed=pushed), pushed.memory


def _checked(pushed: Tensor, outlook: Outlook) -> Tensor:
    """Check the logits that a guide returned, and suppress the ids that are never written."""
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
    if not len(rows):
        return iter(())
    return iter(rows.split(max(1, noise.tile_elements(rows.device) // size)))


def filter_logits(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Apply top-k and top-p: keep the k most likely tokens, and the smallest set with mass p.

    All other logits become -inf. `top_p=1` keeps everything.
    """
    top_p = None if top_p == 1 else top_p
    if top_k is None and top_p is None:
        return logits
    total = logits.logsumexp(dim=-1, keepdim=True)
    V = logits.shape[-1]
    some = min(V, max(NUCLEUS, top_k or 0))
    ranked = logits.topk(some).values  # a full sort costs a GPU more than the rest of a step
    if top_p is not None and some < V:
        mass = (ranked - total).exp().sum(dim=-1)
        if bool((mass < top_p).any()):
            ranked = logits.sort(dim=-1, descending=True).values
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if top_k is not None:
        keep[..., top_k:] = False
    if top_p is not None:
        mass = (ranked - total).exp()
        keep &= mass.cumsum(dim=-1) - mass < top_p
        keep[..., 0] = True  # a tiny p is 0 in float32
    return _keep(logits, ranked, keep.sum(dim=-1, keepdim=True))


def _keep(logits: Tensor, ranked: Tensor, kept: Tensor) -> Tensor:
    """Keep the `kept` [R, 1] largest logits (lowest ids on ties) and set the others to -inf.

    `ranked` holds the largest logits in descending order.
    """
    cut = ranked.gather(-1, kept - 1)
    tied = logits == cut
    ties_to_keep = kept - (logits > cut).sum(dim=-1, keepdim=True)
    first = tied & (tied.cumsum(dim=-1, dtype=torch.int32) <= ties_to_keep)
    return logits.masked_fill(~((logits > cut) | first), -torch.inf)


def sampled_distribution(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
) -> tuple[Tensor, Tensor]:
    """Return logits [R, V] after temperature, top_p and top_k, in this order, and their softmax.

    This is the distribution that Dream's sampler draws from. Like Dream's code it computes in the
    precision of the logits: in bfloat16 every probability above 0.998 is 1, and such ties decide
    the order of commits. (float16 is too narrow for logits over a temperature, so it is computed in
    float32.)
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
    """Keep the most likely tokens, up to the first whose cumulative mass exceeds top_p.

    The mass is rounded to the precision of the logits.
    """
    probs, V = logits.softmax(dim=-1), logits.shape[-1]
    wide = torch.promote_types(logits.dtype, torch.float32)
    for some in (min(NUCLEUS, V), V):
        ranked, tokens = (
            logits.topk(some) if some < V else logits.sort(dim=-1, descending=True, stable=True)
        )
        above = probs.gather(-1, tokens).to(wide).cumsum(dim=-1).to(logits.dtype) > top_p
        if bool(above[..., -1].all()):
            break
    kept = ((~above).sum(dim=-1, keepdim=True) + 1).clamp(max=V)
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
    """Choose a token at every writable position by Gumbel-max (at temperature 0 by argmax).

    Ties go to the lowest id. Full confidence is the softmax of the pushed logits, without
    temperature or filters; sampled confidence is that of the distribution tokens are drawn from.
    """
    step, full = outlook.step, confidence == "full"
    if outlook.backend.draws:
        return _draw_fused(outlook, temperature, needs)
    if outlook.backend.kernel is not None:
        # The fused draw would have checked them.
        check_logits(outlook.pushed_logits, step.writable, _source(outlook), outlook.alarm)
    keys = step.keys(noise.Purpose.TOKEN, step.tokens.shape[1]).flatten()
    logits = outlook.pushed_logits
    V = logits.shape[-1]
    tokens = step.tokens.flatten().clone()
    chosen = torch.zeros_like(tokens, dtype=torch.float64)
    extra = torch.zeros_like(chosen)
    flat, wide = logits.reshape(-1, V), torch.promote_types(logits.dtype, torch.float32)
    for rows in row_tiles(step.writable.flatten().nonzero().squeeze(1), V):
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


def drawn_logprobs(
    logits: Tensor,
    tokens: Tensor,
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    confidence: str,
) -> Tensor:
    """Return the log-probabilities with which `predict` draws `tokens` [R] from logits [R, V].

    They are those after filters and temperature, [R] float64: 0 at temperature 0.
    """
    if temperature == 0:
        return torch.zeros(tokens.shape, dtype=torch.float64, device=logits.device)
    if confidence == "full":
        wide = torch.promote_types(logits.dtype, torch.float32)
        x = filter_logits(logits.to(wide), top_k, top_p).double() / temperature
    else:
        x = sampled_distribution(logits, temperature, top_k, top_p)[0].double()
    return x.gather(1, tokens[:, None]).squeeze(1) - x.logsumexp(dim=1)


def _draw_fused(outlook: Outlook, temperature: float, needs: str | None) -> Prediction:
    """Do the same in one kernel that never writes noise or pushed logits to memory."""
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
    """Return the name of the drawn logits in error messages."""
    fused = outlook.pushed is not None and outlook.pushed.push is not None
    return "the guide's logits" if fused else "logits"


def _statistics(x: Tensor, tokens: Tensor, needs: str | None) -> tuple[Tensor, Tensor]:
    """Return the probability of `tokens`, and margin or entropy, each [R] float64.

    The most likely token is left out of the sum of exponentials, so that probabilities near 1
    remain distinct.
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
    """Compute `_statistics` from probabilities [R, V], rounding every operation as Dream does."""
    probability = shares.gather(-1, tokens[:, None]).squeeze(-1).double()
    if needs == "margin":
        first, second = shares.topk(2).values.unbind(dim=-1)
        return probability, (first - second).double()
    if needs == "entropy":
        return probability, -(shares * (shares + EPSILON).log()).sum(dim=-1).double()
    return probability, torch.zeros_like(probability)


def delay(prediction: Prediction, ids: Tensor, open_: Tensor) -> Prediction:
    """Divide the confidence of choices of `ids` by 1000, so that they are committed late.

    Where all open positions [B, L] of a sample choose them there is nothing to wait for, and a
    parallel policy may commit them all at once.
    """
    if not len(ids):
        return prediction
    late = torch.isin(prediction.tokens, ids)
    late = late & (open_ & ~late).any(dim=1, keepdim=True)
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

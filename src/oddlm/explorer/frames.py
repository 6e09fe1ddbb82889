"""Makes the messages of a run (see `messages`) from the events of the sampler."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.model import ModelInfo
from ..core.step import Observer, Sample, StepEvent, Tokenizer
from ..lm import LM
from ..params import SampleParams
from .messages import End, EndSample, Likely, SampleStep, Spot, Start, StepFrame, Usage
from .usage import extra

DIGITS = 5


def start_of(
    name: str, info: ModelInfo, prompt: str, ids: Sequence[int], n: int, params: SampleParams
) -> Start:
    return Start(
        model=name,
        prompt=prompt,
        prompt_tokens=len(ids),
        n=n,
        params=params.model_copy(update={"fork": params.forks}),
        mask_id=unwritten_id(info),
        end_ids=list(info.end_ids),
    )


def end_of(samples: Sequence[Sample], usage: Usage, seed: int) -> End:
    ends = [
        EndSample(
            index=sample.index,
            text=sample.text,
            tokens=list(sample.tokens),
            commit_steps=list(sample.commit_steps),
            finish_reason=sample.finish_reason,
        )
        for sample in samples
    ]
    return End(samples=ends, usage=usage, oddlm=extra([samples], seed))


def frames_of(lm: LM, *, positions: bool) -> "FrameMaker":
    info = lm.info
    unwritten = unwritten_id(info)
    return FrameMaker(lm.tokenizer, {unwritten, *info.end_ids}, unwritten, positions=positions)


def unwritten_id(info: ModelInfo) -> int:
    """Return the id that stands for a position that is not written yet."""
    return -1 if info.mask_id is None else info.mask_id


class FrameMaker:
    """An observer that sends a StepFrame for each step of one prompt."""

    def __init__(
        self, tokenizer: Tokenizer, silent: Iterable[int], unwritten: int, *, positions: bool
    ) -> None:
        self.tokenizer, self.unwritten = tokenizer, unwritten
        self.known = set(silent)  # ids whose text was sent, or is never sent
        self.positions = positions

    def __call__(self, send: Callable[[Any], None]) -> Observer:
        return lambda event: send(self.frame(event))

    def frame(self, event: StepEvent) -> StepFrame:
        step = event.step
        after = torch.where(event.shown, event.chosen.tokens, step.tokens)
        written = after.masked_fill(step.masked & ~event.shown, self.unwritten).tolist()
        entropy, force = event.entropy, event.force
        open_, masked = (where.sum(dim=1).clamp(min=1) for where in (step.open, step.masked))
        means = [(entropy.sum(dim=1) / open_).tolist(), (force.sum(dim=1) / masked).tolist()]
        every = [_short(entropy), _short(force)] if self.positions else [[None] * len(written)] * 2
        spots = _spots(event)
        samples = [
            SampleStep(
                tokens=written[row],
                spots=spots[row],
                mean_entropy=_round(means[0][row]),
                mean_force=_round(means[1][row]),
                entropy=every[0][row],
                force=every[1][row],
            )
            for row in range(len(written))
        ]
        return StepFrame(
            step=step.index, total=step.total, samples=samples, pieces=self._pieces(samples)
        )

    def _pieces(self, samples: list[SampleStep]) -> dict[int, str]:
        spots = [spot for sample in samples for spot in sample.spots]
        used = {
            token
            for spot in spots
            for token in (spot.token, spot.plain_token, *(one.token for one in spot.top))
        }
        # tokens of a template are in no spot
        used |= {token for sample in samples for token in sample.tokens}
        fresh = sorted(used - self.known)
        self.known.update(fresh)
        return {token: self.tokenizer.decode([token]) for token in fresh}


def _spots(event: StepEvent) -> list[list[Spot]]:
    """For each row, where the pushed or the plain choice commits."""
    chosen, plain, top = event.chosen, event.plain, event.top
    found: list[list[Spot]] = [[] for _ in range(len(event.commit))]
    where = (chosen.commit | plain.commit).nonzero(as_tuple=True)
    columns = zip(
        *(position.tolist() for position in where),
        *(
            choice[where].tolist()
            for choice in (chosen.commit, plain.commit, chosen.tokens, plain.tokens)
        ),
        *(_short(p[where]) for p in (chosen.pushed_probability, chosen.base_probability)),
        *(_short(p[where]) for p in (plain.pushed_probability, plain.base_probability)),
        top.tokens[where].tolist(),
        *(_short(p[where]) for p in (top.pushed_probability, top.base_probability)),
        strict=True,
    )
    for (
        row,
        position,
        pushed,
        bare,
        token,
        other,
        p,
        base,
        q,
        other_base,
        likely,
        after,
        before,
    ) in columns:
        found[row].append(
            Spot(
                position=position,
                by="both" if pushed and bare else "pushed" if pushed else "plain",
                token=token,
                probability=p,
                base_probability=base,
                plain_token=other,
                plain_probability=q,
                plain_base_probability=other_base,
                top=[
                    Likely(token=t, probability=a, base_probability=b)
                    for t, a, b in zip(likely, after, before, strict=True)
                ],
            )
        )
    return found


def _short(values: Tensor) -> list[Any]:
    rounded: list[Any] = values.double().mul(10**DIGITS).round().div(10**DIGITS).tolist()
    return rounded


def _round(value: float) -> float:
    return round(value, DIGITS)

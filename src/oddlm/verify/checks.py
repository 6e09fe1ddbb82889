"""The checks of a model, their verdicts, and what a run will cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal

from ..bench.costs import network_flops
from ..lm import LM
from ..models import outline_model
from ..models.loading.checkpoint import Description
from ..models.loading.device import chosen_device, chosen_dtype
from ..models.loading.quant import footprint
from ..params import SampleParams
from ..prompts import encode_prompts
from ..text import number_of, percent
from .network import NATS, difference, fingerprint, read, shots
from .published import Checkpoint, Score
from .ranges import LEVEL, Range, score_range

Verdict = Literal["passed", "failed", "unknown"]


@dataclass(frozen=True)
class Check:
    name: str
    verdict: Verdict
    found: str
    expected: str
    identifies: bool = True  # passing it says which model this is, not just that it works

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def overall(checks: Sequence[Check]) -> Verdict:
    """Return "passed" only if a check that identifies the model passed, and none failed."""
    if any(one.verdict == "failed" for one in checks):
        return "failed"
    identified = any(one.identifies and one.verdict == "passed" for one in checks)
    return "passed" if identified else "unknown"


def digest_check(found: str | None, known: Checkpoint | None) -> Check:
    """Compare the digest of the weights; what is not known cannot fail."""
    expected = None if known is None else known.digest
    here = found or "not known"
    if expected is None or found is None:
        return Check("weights", "unknown", here, "no digest is known")
    return Check("weights", "passed" if found == expected else "failed", here, expected)


def network_checks(
    lm: LM, known: Checkpoint | None, recorded: Sequence[float] | None
) -> tuple[list[Check], tuple[float, ...]]:
    """Return the checks of a network, and its fingerprint.

    recorded: a fingerprint from elsewhere, in place of the one in the table.
    """
    texts = known.texts if known is not None and known.texts else shots()
    if lm.info.mask_id is None:
        expected = "a model that fills in masks"
        return [Check("reading", "unknown", "it has no mask token", expected, False)], ()
    reading, here = read(lm, texts), fingerprint(lm, texts)
    control = max(reading.scrambled, reading.before, reading.after)
    checks = [
        Check(
            "reading",
            "passed" if reading.passed else "failed",
            f"{percent(reading.found, 0)} % of {number_of(reading.tokens, 'hidden token')}",
            f"twice the {percent(control, 0)} % of the controls",
            identifies=False,
        )
    ]
    there = recorded or (known.fingerprint if known is not None else ())
    if not there:
        return [*checks, Check("fingerprint", "unknown", "recorded", "none is known")], here
    off = difference(here, there)
    verdict: Verdict = "passed" if off <= NATS else "failed"
    words = f"{off:.2g} nats off" if isfinite(off) else "of other texts"
    checks.append(Check("fingerprint", verdict, words, f"at most {NATS:g}"))
    return checks, here


def score_check(score: Score, solved: int, agrees: Range) -> Check:
    """Compare the number of solved problems with those that agree with the published score.

    Where solving none agrees with it, too, nothing is known.
    """
    inside: Verdict = "passed" if agrees.low else "unknown"
    return Check(
        f"score on {score.task_name}",
        inside if agrees.low <= solved <= agrees.high else "failed",
        f"{solved} of {agrees.problems}",
        f"{agrees.low} to {agrees.high}",
    )


def agreeing(score: Score, problems: int) -> Range:
    """Return how many of so many problems agree with a published score."""
    return score_range(score.score, problems, tolerance=score.tolerance)


def range_words(score: Score, agrees: Range) -> str:
    """Say which results agree with the score, and which would be noticed."""
    wider = f", {score.tolerance:g} points wider for another harness" if score.tolerance else ""
    noticed = (
        f"a model that solves {percent(agrees.noticed, 0)} % or less is noticed in 95 of 100 runs"
        if agrees.low
        else "too few problems to notice a worse model"
    )
    return (
        f"{agrees.low} to {agrees.high} of {agrees.problems} right agree with it "
        f"({percent(LEVEL, 0)} % binomial interval{wider}); {noticed}"
    )


@dataclass(frozen=True)
class Cost:
    """What a run takes, as far as it can be told without loading the model."""

    evaluations: int  # of the network; an upper bound
    weights: int | None  # bytes
    flops: float | None  # an upper bound; None for networks whose work depends on the tokens

    @property
    def words(self) -> str:
        parts = [f"at most {self.evaluations:,} network evaluations"]
        if self.weights is not None:
            parts.insert(0, f"{self.weights / 2**30:.2f} GiB of weights")
        if self.flops is not None:
            seconds = self.flops / 1e14
            parts.append(f"{self.flops / 1e12:,.0f} TFLOP: {seconds:,.0f} s at 100 TFLOP/s")
        return ", ".join(parts)


def cost(
    model: str, loading: dict[str, Any], device: str | None, params: SampleParams, asked: Any
) -> Cost:
    """Return the cost of drawing one sample for each of the prompts; no weights are read."""
    steps, prompts = params.steps or params.length, list(asked)
    found = Cost(steps * len(prompts), None, None)
    options = {name: value for name, value in loading.items() if name != "raw"}
    known = outline_model(model, **options)
    if known is None or not isinstance(known.described, Description):
        return found
    config = known.described.config
    place = None if device in (None, "auto") else device
    dtype = chosen_dtype(loading.get("dtype"), chosen_device(place))
    weights = footprint(config, loading.get("quantize"), dtype).total
    if config.experts is not None:
        return Cost(found.evaluations, weights, None)
    encoded = encode_prompts(
        known.tokenizer, prompts, params.length, context=None, raw=bool(loading.get("raw"))
    )
    flops = sum(steps * network_flops(config, 1, len(ids), params.length) for ids in encoded)
    return Cost(found.evaluations, weights, flops)

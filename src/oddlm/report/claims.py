"""Whether each claim of the paper holds on these runs: a verdict with its evidence."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from .. import metrics
from ..text import fixed, percent
from .cells import Benchmark, Cell, Results
from .intervals import best_alpha, compared, contrast, mean_gain, pairs
from .tables import escaped, signed

Verdict = Literal["holds", "fails", "open", "insufficient data"]
METHOD = "odd"
HOT = 1.5  # the lowest of the paper's high temperatures
SMALL_ALPHA = 16  # the largest of its small alphas
FLAT = 0.05  # a relative overhead that changes by less than this is flat


@dataclass(frozen=True)
class Finding:
    claim: str
    benchmark: str
    verdict: Verdict
    evidence: str


def findings(results: Results) -> list[Finding]:
    """Judge every claim on every benchmark."""
    return [
        Finding(claim, bench.name, *judge(bench))
        for claim, judge in CLAIMS.items()
        for bench in results.benchmarks
    ]


def verdict(span: metrics.Interval) -> Verdict:
    """Return the verdict on the claim that a value is above zero."""
    if not math.isfinite(span.low):
        return "insufficient data"
    return "holds" if span.low > 0 else "fails" if span.high < 0 else "open"


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on the claim that all of several claims hold."""
    for worst in ("insufficient data", "fails", "open"):
        if worst in verdicts:
            return worst
    return "holds"


def _usual(bench: Benchmark) -> tuple[float, dict[float, tuple[Cell, Cell]]] | str:
    """Return ODD's best alpha and its cells with their baselines, or why there are none."""
    if METHOD not in {cell.method for cell in bench.main}:
        return f"There are no runs of `{METHOD}`."
    alpha = best_alpha(bench, METHOD)
    if alpha is None:
        return f"`{METHOD}` and its plain baseline share no temperature."
    return alpha, pairs(bench, METHOD, alpha)


def _every_temperature(bench: Benchmark) -> tuple[Verdict, str]:
    usual = _usual(bench)
    if isinstance(usual, str):
        return "insufficient data", usual
    alpha, found = usual
    spans = {
        t: contrast([(1, cell), (-1, plain)], bench.n) for t, (cell, plain) in sorted(found.items())
    }
    by_temperature = "; ".join(f"θ = {t:g}: {signed(span[0])}" for t, span in spans.items() if span)
    gains = [
        cell.gains[bench.n]
        for a in compared(bench)[METHOD]
        for cell, _ in pairs(bench, METHOD, a).values()
    ]
    above, below = sum(gain.low > 0 for gain in gains), sum(gain.high < 0 for gain in gains)
    evidence = (
        f"α = {alpha:g} (best mean gain, picked on these runs): {by_temperature}. Over all alphas, "
        f"the intervals of {above} of {len(gains)} cells lie above plain sampling, {below} below."
    )
    return _together([verdict(span[0]) for span in spans.values() if span]), evidence


def _less_sensitive(bench: Benchmark) -> tuple[Verdict, str]:
    usual = _usual(bench)
    if isinstance(usual, str):
        return "insufficient data", usual
    alpha, found = usual
    if len(found) < 2:
        return "insufficient data", "The runs have only one temperature."
    terms: list[tuple[float, Cell]] = []
    spreads = []
    for sign, name, cells in (
        (-1, METHOD, [c for c, _ in found.values()]),
        (1, "plain", [p for _, p in found.values()]),
    ):
        ranked = sorted(cells, key=lambda cell: cell.passed[bench.n].mean)
        terms += [(sign, ranked[-1]), (-sign, ranked[0])]
        spread = ranked[-1].passed[bench.n].mean - ranked[0].passed[bench.n].mean
        worst, best = (f"{cell.temperature:g}" for cell in (ranked[0], ranked[-1]))
        spreads.append(f"{name} {percent(spread)} (θ = {worst} to {best})")
    span = contrast(terms, bench.n)
    if span is None:
        return "insufficient data", f"Pass@{bench.n} is not known for all temperatures."
    evidence = (
        f"Spread from the worst to the best temperature at α = {alpha:g}, in points: "
        f"{', '.join(spreads)}. The spread of plain sampling is larger by {signed(span[0])}."
    )
    return verdict(span[0]), evidence


def _coherent_when_hot(bench: Benchmark) -> tuple[Verdict, str]:
    usual = _usual(bench)
    if isinstance(usual, str):
        return "insufficient data", usual
    alpha, found = usual
    hot = [pair for t, pair in sorted(found.items()) if t >= HOT]
    span = mean_gain(hot, bench.n) if hot else None
    if span is None:
        return "insufficient data", f"There are no runs at temperatures of {HOT:g} or more."
    return verdict(span[0]), f"Mean gain at α = {alpha:g}: {signed(span[0])}. {_diversity(hot)}"


def _diversity(found: Sequence[tuple[Cell, Cell]]) -> str:
    name = next(
        (
            name
            for name in ("embedding_diversity", "vendi_ngram")
            if all(name in c.diversity for c, _ in found)
        ),
        None,
    )
    known = [
        (c.diversity[name].mean, p.diversity[name].mean)
        for c, p in found
        if name and name in p.diversity
    ]
    if not known:
        return "Diversity was not measured at these temperatures."
    mine, theirs = (sum(values) / len(values) for values in zip(*known, strict=True))
    return f"Diversity ({name}): {fixed(mine, 3)}, plain {fixed(theirs, 3)}."


def _pareto(bench: Benchmark) -> tuple[Verdict, str]:
    alphas = [alpha for alpha in compared(bench).get(METHOD, []) if 0 < alpha <= SMALL_ALPHA]
    if not alphas:
        missing = (
            f"There are no runs of `{METHOD}` with an alpha up to {SMALL_ALPHA} and a baseline."
        )
        return "insufficient data", missing
    gains, verdicts = [], []
    for alpha in alphas:
        found = list(pairs(bench, METHOD, alpha).values())
        many, one = mean_gain(found, bench.n), mean_gain(found, 1)
        if many is None or one is None:
            return "insufficient data", "These logs lack Pass@1 as the share of correct samples."
        gains.append(f"α = {alpha:g}: Pass@{bench.n} {signed(many[0])}, Pass@1 {signed(one[0])}")
        no_loss: Verdict = "fails" if one[0].high < 0 else "holds" if one[0].low >= 0 else "open"
        verdicts.append(_together([verdict(many[0]), no_loss]))
    ranked: tuple[Verdict, ...] = ("holds", "open", "fails")
    none: Verdict = "insufficient data"
    best = next((one for one in ranked if one in verdicts), none)
    rule = "The claim holds if Pass@n rises and Pass@1 does not fall for at least one alpha."
    return best, f"{'; '.join(gains)}. {rule}"


def overhead_by(bench: Benchmark, axis: str) -> dict[float, list[tuple[Cell, Cell]]]:
    """Return the timed cells and their baselines, by the value of `n`, `length` or `steps`.

    Empty if that setting is the same for all cells.
    """
    found: dict[float, list[tuple[Cell, Cell]]] = {}
    for cell in bench.cells:
        gain = next(iter(cell.gains.values()), None)
        if axis in cell.settings and not cell.plain and gain is not None and cell.run_seconds:
            found.setdefault(float(cell.settings[axis]), []).append(
                (cell, bench.cell(gain.baseline))
            )
    return dict(sorted(found.items()))


def log_overhead(found: Sequence[tuple[Cell, Cell]]) -> tuple[list[list[float]], list[float]]:
    """Return groups of log seconds and a weight for each group.

    The weighted sum of the group means is the mean log ratio of times.
    """
    groups = [[math.log(value) for value in cell.run_seconds] for pair in found for cell in pair]
    return groups, [1 / len(found), -1 / len(found)] * len(found)


def _flat_in_steps(bench: Benchmark) -> tuple[Verdict, str]:
    found = overhead_by(bench, "steps")
    if len(found) < 2:
        return "insufficient data", "The runs have only one number of steps."
    few, many = min(found), max(found)
    (groups, weights), (fewer, minus) = log_overhead(found[many]), log_overhead(found[few])
    span = metrics.run_interval([*groups, *fewer], [*weights, *(-w for w in minus)])
    evidence = (
        f"Relative overhead at {many:g} steps minus that at {few:g} steps: {signed(span)}. "
        f"Within {100 * FLAT:g} points counts as flat."
    )
    if not math.isfinite(span.low):
        return "insufficient data", f"{evidence} One run per cell gives no interval."
    if span.low > -FLAT and span.high < FLAT:
        return "holds", evidence
    return "fails" if span.low > FLAT or span.high < -FLAT else "open", evidence


CLAIMS: dict[str, Callable[[Benchmark], tuple[Verdict, str]]] = {
    "ODD gains at every temperature": _every_temperature,
    "ODD is less sensitive to temperature than plain sampling": _less_sensitive,
    f"ODD keeps batches coherent at temperatures of {HOT:g} and more": _coherent_when_hot,
    (
        f"A small alpha (up to {SMALL_ALPHA}) is a Pareto gain: Pass@n rises, Pass@1 does not fall"
    ): _pareto,
    "The relative overhead is flat in the number of steps": _flat_in_steps,
}


def as_markdown(found: Sequence[Finding]) -> str:
    lines = ["# The paper's claims on these runs", ""]
    lines += [
        "*Holds*, *fails*: the whole 95 % interval lies on one side. *Open*: it does not.",
        "Differences are in points. Intervals of measured runs: paired bootstrap over problems.",
        "Imported runs: Welch's t over runs, for fixed problems. The best alphas and temperatures",
        "were picked on the same runs, which biases their results upwards.",
    ]
    for claim in dict.fromkeys(one.claim for one in found):
        lines += ["", f"## {claim}", ""]
        lines += [
            f"- **{escaped(one.benchmark)}: {one.verdict}.** {one.evidence}"
            for one in found
            if one.claim == claim
        ]
    return "\n".join([*lines, ""])

"""Does each claim of the paper hold on these runs? A verdict with the interval it rests on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from .. import metrics
from ..text import fixed, percent
from .cells import Benchmark, Cell, Results
from .intervals import best_alpha, compared, contrast, mean_gain, pairs
from .tables import escaped, signed

Verdict = Literal["holds", "fails", "open", "cannot be said"]
METHOD = "odd"
HOT = 1.5  # the paper's high temperatures begin here
SMALL_ALPHA = 16  # and its small alphas end here
FLAT = 0.05  # a relative overhead that changes by less than this is flat


@dataclass(frozen=True)
class Finding:
    claim: str
    benchmark: str
    verdict: Verdict
    evidence: str


def findings(results: Results) -> list[Finding]:
    """Every claim on every benchmark."""
    return [
        Finding(claim, bench.name, *judge(bench))
        for claim, judge in CLAIMS.items()
        for bench in results.benchmarks
    ]


def verdict(span: metrics.Interval) -> Verdict:
    """Of a claim that says: above zero."""
    if not math.isfinite(span.low):
        return "cannot be said"
    return "holds" if span.low > 0 else "fails" if span.high < 0 else "open"


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim that says: all of them."""
    for worst in ("cannot be said", "fails", "open"):
        if worst in verdicts:
            return worst
    return "holds"


def _usual(bench: Benchmark) -> tuple[float, dict[float, tuple[Cell, Cell]]] | str:
    """ODD at its best alpha, or why there is none."""
    if METHOD not in {cell.method for cell in bench.main}:
        return f"there are no runs of `{METHOD}`"
    alpha = best_alpha(bench, METHOD)
    if alpha is None:
        return f"`{METHOD}` and its plain baseline share no temperature"
    return alpha, pairs(bench, METHOD, alpha)


def _every_temperature(bench: Benchmark) -> tuple[Verdict, str]:
    usual = _usual(bench)
    if isinstance(usual, str):
        return "cannot be said", usual
    alpha, found = usual
    spans = {
        t: contrast([(1, cell), (-1, plain)], bench.n) for t, (cell, plain) in sorted(found.items())
    }
    told = [f"θ = {t:g}: {signed(span[0])}" for t, span in spans.items() if span]
    gains = [
        cell.gains[bench.n]
        for a in compared(bench)[METHOD]
        for cell, _ in pairs(bench, METHOD, a).values()
    ]
    above, below = sum(gain.low > 0 for gain in gains), sum(gain.high < 0 for gain in gains)
    grid = f"Over all alphas: {above} of {len(gains)} cells lie above plain sampling, {below} below, by their intervals."
    evidence = f"α = {alpha:g} (best mean gain, picked on these runs): {'; '.join(told)}. {grid}"
    return _together([verdict(span[0]) for span in spans.values() if span]), evidence


def _less_sensitive(bench: Benchmark) -> tuple[Verdict, str]:
    usual = _usual(bench)
    if isinstance(usual, str):
        return "cannot be said", usual
    alpha, found = usual
    if len(found) < 2:
        return "cannot be said", "the runs have one temperature"
    terms: list[tuple[float, Cell]] = []
    told = []
    for sign, name, cells in (
        (-1, METHOD, [c for c, _ in found.values()]),
        (1, "plain", [p for _, p in found.values()]),
    ):
        ranked = sorted(cells, key=lambda cell: cell.passed[bench.n].mean)
        terms += [(sign, ranked[-1]), (-sign, ranked[0])]
        spread = ranked[-1].passed[bench.n].mean - ranked[0].passed[bench.n].mean
        told.append(
            f"{name} {percent(spread)} (θ = {ranked[0].temperature:g} to {ranked[-1].temperature:g})"
        )
    span = contrast(terms, bench.n)
    if span is None:
        return "cannot be said", f"Pass@{bench.n} is not known for all temperatures"
    evidence = f"Worst to best temperature at α = {alpha:g}, in points: {', '.join(told)}; plain spreads by {signed(span[0])} more."
    return verdict(span[0]), evidence


def _coherent_when_hot(bench: Benchmark) -> tuple[Verdict, str]:
    usual = _usual(bench)
    if isinstance(usual, str):
        return "cannot be said", usual
    alpha, found = usual
    hot = [pair for t, pair in sorted(found.items()) if t >= HOT]
    span = mean_gain(hot, bench.n) if hot else None
    if span is None:
        return "cannot be said", f"no temperature of {HOT:g} or more was run"
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
        return "Diversity was not measured there."
    mine, theirs = (sum(values) / len(values) for values in zip(*known, strict=True))
    return f"Diversity ({name}) there: {fixed(mine, 3)}, plain {fixed(theirs, 3)}."


def _pareto(bench: Benchmark) -> tuple[Verdict, str]:
    alphas = [alpha for alpha in compared(bench).get(METHOD, []) if 0 < alpha <= SMALL_ALPHA]
    if not alphas:
        return (
            "cannot be said",
            f"there are no runs of `{METHOD}` with an alpha up to {SMALL_ALPHA} and their baseline",
        )
    told, verdicts = [], []
    for alpha in alphas:
        found = list(pairs(bench, METHOD, alpha).values())
        many, one = mean_gain(found, bench.n), mean_gain(found, 1)
        if many is None or one is None:
            return "cannot be said", "Pass@1 as the share of right samples is not in these logs"
        told.append(f"α = {alpha:g}: Pass@{bench.n} {signed(many[0])}, Pass@1 {signed(one[0])}")
        no_loss: Verdict = "fails" if one[0].high < 0 else "holds" if one[0].low >= 0 else "open"
        verdicts.append(_together([verdict(many[0]), no_loss]))
    best = next((v for v in ("holds", "open", "fails") if v in verdicts), "cannot be said")
    return best, "; ".join(
        told
    ) + ". It holds if for one alpha Pass@n rises and Pass@1 does not fall."  # type: ignore[return-value]


def overhead_by(bench: Benchmark, axis: str) -> dict[float, list[tuple[Cell, Cell]]]:
    """By the value of `n`, `length` or `steps`: timed cells with their baseline, where that setting
    differs between cells.
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
    """Groups of logarithms of seconds with weights: their weighted sum is the mean log of the ratio
    of times.
    """
    groups = [[math.log(value) for value in cell.run_seconds] for pair in found for cell in pair]
    return groups, [1 / len(found), -1 / len(found)] * len(found)


def _flat_in_steps(bench: Benchmark) -> tuple[Verdict, str]:
    found = overhead_by(bench, "steps")
    if len(found) < 2:
        return "cannot be said", "the runs have one number of steps"
    few, many = min(found), max(found)
    (groups, weights), (fewer, minus) = log_overhead(found[many]), log_overhead(found[few])
    span = metrics.run_interval([*groups, *fewer], [*weights, *(-w for w in minus)])
    told = f"Relative overhead at {many:g} steps minus that at {few:g}: {signed(span)}; flat is within {100 * FLAT:g} points."
    if not math.isfinite(span.low):
        return "cannot be said", told + " One run per cell gives no interval."
    inside = span.low > -FLAT and span.high < FLAT
    return "holds" if inside else "fails" if span.low > FLAT or span.high < -FLAT else "open", told


CLAIMS: dict[str, Callable[[Benchmark], tuple[Verdict, str]]] = {
    "ODD gains at every temperature": _every_temperature,
    "ODD is less sensitive to temperature than plain sampling": _less_sensitive,
    f"ODD keeps batches coherent at temperatures of {HOT:g} and more": _coherent_when_hot,
    f"A small alpha (up to {SMALL_ALPHA}) is a Pareto gain: Pass@n rises, Pass@1 does not fall": _pareto,
    "The relative overhead is flat in the number of steps": _flat_in_steps,
}


def as_markdown(found: Sequence[Finding]) -> str:
    lines = ["# The paper's claims on these runs", ""]
    lines += [
        "*Holds*, *fails*: the whole 95 % interval lies on one side. *Open*: it does not. Differences are in points.",
        "Intervals of measured runs: paired bootstrap over problems. Imported runs: Welch's t over runs, problems held fixed.",
        "Alphas and temperatures that are called best were picked on the same runs, which flatters them.",
    ]
    for claim in dict.fromkeys(one.claim for one in found):
        lines += ["", f"## {claim}", ""]
        lines += [
            f"- **{escaped(one.benchmark)}: {one.verdict}.** {one.evidence}"
            for one in found
            if one.claim == claim
        ]
    return "\n".join([*lines, ""])

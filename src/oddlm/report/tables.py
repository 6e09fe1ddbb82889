"""The tables of a report: as data, and from there as Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import metrics, text
from ..text import fixed, number_of, one_line
from . import published
from .cells import Benchmark, Cell, Results
from .intervals import best_alpha, compared, mean_gain, pairs

MOST_RUNS = 8  # per cell in the paper; cells with fewer are listed
PASS_COLUMNS = ("task", "objective", "alpha", "temperature", "mean", "se", "runs")


@dataclass(frozen=True)
class Table:
    """A table of texts; a row with a single text is a heading inside the table.

    `bold` holds the (row, column) pairs of bold cells.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    bold: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        lines = [
            f"### {escaped(self.title)}",
            "",
            _pipes(self.columns),
            _pipes(["---", *["---:"] * (len(self.columns) - 1)]),
        ]
        for i, row in enumerate(self.rows):
            if len(row) == 1:
                lines.append(_pipes([f"*{escaped(row[0])}*", *[""] * (len(self.columns) - 1)]))
            else:
                texts = [
                    f"**{escaped(x)}**" if (i, j) in self.bold else escaped(x)
                    for j, x in enumerate(row)
                ]
                lines.append(_pipes(texts))
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])

    def latex(self) -> str:
        head = " & ".join(rf"\textbf{{{_tex(name)}}}" for name in self.columns)
        lines = [
            r"\begin{table}[t]",
            r"\centering",
            rf"\begin{{tabular}}{{l{'c' * (len(self.columns) - 1)}}}",
            r"\toprule",
        ]
        lines += [head + r" \\", r"\midrule"]
        for i, row in enumerate(self.rows):
            if len(row) == 1:
                lines += [r"\addlinespace"] * (i > 0)
                lines.append(
                    rf"\multicolumn{{{len(self.columns)}}}{{l}}{{\textit{{{_tex(row[0])}}}}} \\"
                )
            else:
                texts = [
                    rf"\textbf{{{_tex(x)}}}" if (i, j) in self.bold else _tex(x)
                    for j, x in enumerate(row)
                ]
                lines.append(" & ".join(texts) + r" \\")
        caption = " ".join(text for text in (self.title + ".", self.note) if text)
        lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_tex(caption)}}}"]
        return "\n".join([*lines, r"\end{table}", ""])


def as_csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return out.getvalue()


def _harmless(cell: object) -> object:
    """Prefix a text that a spreadsheet would take for a formula with an apostrophe."""
    formula = isinstance(cell, str) and cell[:1] in "=+-@\t\r" and not _NUMBER.match(cell)
    return f"'{cell}" if formula else cell


_NUMBER = re.compile(r"-?$|[+-][\d.]+($| %$| \[| \()")  # with the suffixes of these tables


def percent(mean: float, se: float) -> str:
    return with_error(100 * mean, 100 * se)


def with_error(mean: float, se: float, digits: int = 1) -> str:
    """Format a mean as 70.3 ± 0.8; an unknown error is left out."""
    shown = fixed(mean, digits)
    return f"{shown} ± {fixed(se, digits)}" if math.isfinite(se) else shown


def signed(span: metrics.Interval) -> str:
    """Format a difference in points as +3.1 [+0.4, +5.9]."""
    difference, low, high = (text.percent(value, sign="+") for value in span)
    return (
        f"{difference} [{low}, {high}]"
        if math.isfinite(span.low)
        else f"{difference} [no interval]"
    )


def pass_rows(bench: Benchmark) -> list[tuple[object, ...]]:
    """Return a row of PASS_COLUMNS per cell, in percent."""
    rows: list[tuple[object, ...]] = []
    for cell in bench.main:
        if bench.n in cell.passed:
            found = cell.passed[bench.n]
            objective = cell.method.replace("plain", "none", 1) if cell.plain else cell.method
            mean = round(100 * found.mean, 4)
            se = round(100 * found.se, 4) if math.isfinite(found.se) else ""
            runs = len(cell.run_passed[bench.n])
            rows.append(
                (bench.name, objective, f"{cell.alpha:g}", f"{cell.temperature:g}", mean, se, runs)
            )
    return rows


def pass_table(bench: Benchmark) -> Table:
    """Return Pass@n in the paper's layout: a column per temperature, a row per alpha.

    There is one block per method; the best value at each temperature is bold.
    """
    k = bench.n
    temperatures = sorted({cell.temperature for cell in bench.main})
    cells = {
        (cell.method, cell.alpha, cell.temperature): cell for cell in bench.main if k in cell.passed
    }
    best = {
        t: max((c.passed[k].mean for (_, _, u), c in cells.items() if u == t), default=None)
        for t in temperatures
    }
    rows: list[tuple[str, ...]] = []
    bold = set()
    for method in bench.methods:
        alphas = sorted({alpha for name, alpha, _ in cells if name == method})
        if alphas:
            rows.append((f"{bench.model}, plain" if method == "plain" else method,))
        for alpha in alphas:
            found = [cells.get((method, alpha, t)) for t in temperatures]
            bold |= {
                (len(rows), j)
                for j, c in enumerate(found, 1)
                if c and c.passed[k].mean == best[temperatures[j - 1]]
            }
            shown = (percent(c.passed[k].mean, c.passed[k].se) if c else "-" for c in found)
            rows.append((f"{alpha:g}", *shown))
    sizes = f"{number_of(bench.count, 'problem')}, {number_of(k, 'sample')} each"
    note = f"Percent, mean ± standard error over runs; {sizes}. Bold: best at each temperature."
    columns = ("alpha", *(f"θ = {t:g}" for t in temperatures))
    return Table(f"Pass@{k}, {bench.name}", columns, tuple(rows), note, frozenset(bold))


def thin_cells(bench: Benchmark) -> list[tuple[Cell, int]]:
    """Return the cells with fewer runs than the paper's, with their number of runs."""
    counted = [(cell, len(cell.run_passed.get(bench.n, ()))) for cell in bench.main]
    return [(cell, runs) for cell, runs in counted if runs < MOST_RUNS]


def published_table(bench: Benchmark) -> Table | None:
    """Compare with the published values whose task, method, alpha, temperature and n match."""
    rows = []
    gaps = []
    for cell in bench.main:
        theirs = published.pass_16(bench, cell)
        if theirs is not None and bench.n in cell.passed:
            ours = cell.passed[bench.n]
            gaps.append(100 * ours.mean - theirs[0])
            shown = (percent(ours.mean, ours.se), with_error(*theirs), fixed(gaps[-1], 2, "+"))
            rows.append((cell.label, *shown, str(len(cell.run_passed[bench.n]))))
    if not rows:
        return None
    cells, largest = number_of(len(rows), "cell"), fixed(max(gaps, key=abs), 2, "+")
    note = f"{cells}; largest difference {largest} points. Published: {published.WHOSE}."
    return Table(
        f"Comparison with the paper, {bench.name}",
        ("setting", "these runs", "published", "difference", "runs"),
        tuple(rows),
        note,
    )


def coverage_table(bench: Benchmark) -> Table | None:
    """Return the problems solved by any sample of a method and alpha, at any temperature.

    None for imported runs, which have no records.
    """
    rows = []
    for method in bench.methods:
        for alpha in sorted({cell.alpha for cell in bench.main if cell.method == method}):
            some = [
                cell
                for cell in bench.main
                if (cell.method, cell.alpha) == (method, alpha) and cell.right is not None
            ]
            if not some:
                continue
            solved = int(
                np.any([cell.right > 0 for cell in some if cell.right is not None], axis=0).sum()
            )
            theirs = published.solved(bench, method, alpha)
            tried = sum(cell.tried for cell in some)
            share = f"{text.percent(solved / bench.count)} %"
            counts = (str(len(some)), str(tried), str(solved))
            rows.append((f"{method} α{alpha:g}", *counts, share, str(theirs or "-")))
    if not rows:
        return None
    note = (
        f"Of {number_of(bench.count, 'problem')}, those with a correct sample at any temperature "
        "in any run. More samples per problem mean more chances."
    )
    columns = ("method", "temperatures", "samples per problem", "solved", "coverage", "published")
    return Table(f"Cumulative coverage, {bench.name}", columns, tuple(rows), note)


def vote_table(bench: Benchmark) -> Table | None:
    """Return Maj@n beside Pass@n; None if no run has votes."""
    n, rows = bench.n, []
    for cell in bench.main:
        if n not in cell.voted:
            continue
        voted, passed, gain = cell.voted[n], cell.passed[n], cell.vote_gains.get(n)
        span = metrics.Interval(gain.difference, gain.low, gain.high) if gain else None
        shown = (percent(one.mean, one.se) for one in (cell.passed[1], voted, passed))
        rows.append((cell.label, *shown, signed(span) if span else "-", str(len(cell.runs))))
    if not rows:
        return None
    note = (
        f"Percent, mean ± standard error over runs. Maj@{n}: the most common answer of "
        f"{number_of(n, 'sample')} is right; of several, the first to appear. Gain: in Maj@{n} "
        "over the baseline, with its 95 % interval."
    )
    columns = ("setting", "Pass@1", f"Maj@{n}", f"Pass@{n}", "gain", "runs")
    return Table(f"Majority vote, {bench.name}", columns, tuple(rows), note)


def latency_table(bench: Benchmark) -> Table | None:
    """Return seconds per batch, and the overhead over the baseline of the same settings."""
    theirs = published.latency(bench)
    rows = []
    for method in bench.methods:
        some = [cell for cell in bench.main if cell.method == method and cell.run_seconds]
        if not some:
            continue
        mean, se = metrics.mean_se([value for cell in some for value in cell.run_seconds])
        paper = {"plain": theirs.plain, "odd": theirs.odd}.get(method) if theirs else None
        nfe = [cell.nfe for cell in some if cell.nfe is not None]
        rows.append(
            (
                method,
                with_error(mean, se, digits=2),
                fixed(sum(nfe) / len(nfe)) if nfe else "-",
                _overhead(bench, some),
                str(sum(len(cell.run_seconds) for cell in some)),
                with_error(*paper) if paper else "-",
            )
        )
    if not rows:
        return None
    note = (
        "Logged wall time to draw a batch, mean ± standard error over all runs of a method. "
        "Overhead: each cell against its baseline at the same temperature, averaged. Runs that "
        "shared a machine include the slowdown."
    )
    columns = (
        "method",
        "seconds per batch",
        "network evaluations",
        "overhead",
        "runs",
        "published seconds",
    )
    return Table(f"Latency, {bench.name}", columns, tuple(rows), note)


def _overhead(bench: Benchmark, cells: Sequence[Cell]) -> str:
    ratios = [ratio for cell in cells if (ratio := overhead(bench, cell)) is not None]
    return f"{text.percent(sum(ratios) / len(ratios), sign='+')} %" if ratios else "-"


def overhead(bench: Benchmark, cell: Cell) -> float | None:
    """Return the relative extra time of a batch over its baseline; None without a baseline."""
    gain = next(iter(cell.gains.values()), None)
    plain = bench.cell(gain.baseline) if gain else None
    if plain is None or cell.seconds is None or plain.seconds is None or not plain.seconds.mean:
        return None
    return cell.seconds.mean / plain.seconds.mean - 1


def robustness_table(bench: Benchmark) -> Table | None:
    """Return the mean gain, worst gain and regret of each alpha over all temperatures."""
    k = bench.n
    rows = []
    for method, alphas in compared(bench).items():
        grid = {alpha: pairs(bench, method, alpha) for alpha in alphas}
        for alpha, found in grid.items():
            gain = mean_gain(list(found.values()), k) if found else None
            if gain is None:
                continue
            regrets = [_best(grid, t, k) - found[t][0].passed[k].mean for t in found]
            worst = min((cell.gains[k].difference, t) for t, (cell, _) in found.items())
            mean_regret, most = sum(regrets) / len(regrets), max(regrets)
            lowest = f"{text.percent(worst[0], sign='+')} (θ = {worst[1]:g})"
            shown = (lowest, text.percent(mean_regret), text.percent(most))
            rows.append((f"{method} α{alpha:g}", str(len(found)), signed(gain[0]), *shown))
    if not rows:
        return None
    note = (
        f"In points of Pass@{k}. Gain: over the baseline, averaged over temperatures, with its "
        "95 % interval. Regret: the distance to the method's best alpha at each temperature, "
        "picked on these runs."
    )
    columns = ("method", "temperatures", "mean gain", "worst gain", "mean regret", "largest regret")
    return Table(f"One alpha for all temperatures, {bench.name}", columns, tuple(rows), note)


def _best(grid: dict[float, dict[float, tuple[Cell, Cell]]], temperature: float, k: int) -> float:
    return max(
        found[temperature][0].passed[k].mean for found in grid.values() if temperature in found
    )


def transfer_table(results: Results) -> Table | None:
    """Return the gain of the best alpha of one benchmark on another."""
    rows = []
    for source in results.benchmarks:
        for target in results.benchmarks:
            for method in sorted(_tuned(source) & _tuned(target)) if source is not target else ():
                alpha, own = best_alpha(source, method), best_alpha(target, method)
                if alpha is None or own is None:
                    continue
                found, best = pairs(target, method, alpha), pairs(target, method, own)
                gain = mean_gain(list(found.values()), target.n) if found else None
                there = mean_gain(list(best.values()), target.n)
                setting = (method, source.name, f"{alpha:g}", target.name)
                if gain is None or there is None:
                    rows.append((*setting, "not run there", f"{own:g}", "-"))
                    continue
                regret = text.percent(there[0].difference - gain[0].difference)
                rows.append((*setting, signed(gain[0]), f"{own:g}", regret))
    if not rows:
        return None
    note = (
        "Mean gain in points over all temperatures, with its 95 % interval. Regret: the distance "
        "to the target's own best alpha."
    )
    columns = ("method", "tuned on", "alpha", "used on", "gain there", "best there", "regret")
    return Table("Transfer of a tuned alpha", columns, tuple(rows), note)


def _tuned(bench: Benchmark) -> set[str]:
    """Return the methods with several alphas."""
    return {method for method, alphas in compared(bench).items() if len(alphas) > 1}


def _pipes(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def escaped(text: str) -> str:
    """Escape a name for Markdown: it must not end a cell, start a link, or change the font."""
    return re.sub(r"[\\`*_\[\]<>|~!#&]", lambda sign: rf"\{sign[0]}", one_line(text))


def _tex(text: str) -> str:
    signs = {
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        "α": r"$\alpha$",
        "θ": r"$\theta$",
        "~": r"\textasciitilde{}",
    }
    signs |= {sign: rf"\{sign}" for sign in "&%$#_{}"} | {
        "^": r"\textasciicircum{}",
        "<": r"$<$",
        ">": r"$>$",
    }
    return "".join(signs.get(sign, sign) for sign in one_line(text))

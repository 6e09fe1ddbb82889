"""`report.html`: the report as a page that opens from disk, with charts, filters and samples.

The numbers are embedded in the page. Samples are in small scripts that are loaded on demand,
because a page opened from disk may not read files. The page inserts all texts as plain text.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..explorer.assets import REPORT, asset, embedded, write_static
from ..files import write_whole
from ..metrics import describe_metric
from ..store import Record
from ..text import fixed, named, number_of, percent, visible
from . import published, tables
from .cells import Benchmark, Cell, Estimate, Results
from .claims import Finding
from .plots import MEASURES

SAMPLES = "samples"
PAGE = 10  # problems per page of samples
MOST_SAMPLES = 128_000  # in the folder, divided among all cells
MOST_CHARACTERS = 2_000  # of a text
RULE = (
    "Samples of each setting's run with the lowest seed: {problems}, in the order of the task. "
    f"Texts are cut after {MOST_CHARACTERS:,} characters."
)
NO_SAMPLES = (
    "These runs were imported from a log that has only means over problems, but no samples."
)
Watch = Callable[[str], None]
Json = dict[str, Any]


def write_page(
    results: Results,
    found: Sequence[Finding],
    notes: Mapping[str, Sequence[str]],
    out: Path,
    watch: Watch = lambda _: None,
) -> Path:
    """Write report.html with its scripts, styles and samples; return its path.

    notes: by benchmark, remarks on what its runs lack.
    """
    shown = problems_shown(results)
    content = {
        "benchmarks": [
            _benchmark(bench, notes.get(bench.name, ()), shown) for bench in results.benchmarks
        ],
        "claims": [asdict(one) for one in found],
        "left_out": [asdict(one) for one in results.left_out],
        "page": PAGE,
    }
    try:
        _remove_samples(out / SAMPLES)
        for bench in results.benchmarks:
            for cell in bench.cells if bench.problems else ():
                watch(f"samples: {bench.name}, {cell.label}")
                _write_samples(results, cell, bench.problems[:shown], out / SAMPLES / cell.key)
        write_static(REPORT, out)
    except OSError as error:
        raise ValueError(
            f"cannot write the report's page to {error.filename or out}: {error.strerror}"
        ) from error
    write_whole(out / REPORT, asset(REPORT).replace(b"@DATA@", embedded(content).encode()))
    return out / REPORT


def problems_shown(results: Results) -> int:
    """Return for how many problems samples are written per cell: full pages, at least one."""
    each = sum(cell.n for bench in results.benchmarks for cell in bench.cells if bench.problems)
    return max(1, MOST_SAMPLES // max(1, each) // PAGE) * PAGE


def _benchmark(bench: Benchmark, notes: Sequence[str], shown: int) -> Json:
    some = min(shown, bench.count)
    every = number_of(bench.count, "problem")
    shown_problems = every if some == bench.count else f"the first {some} of {every}"
    measures = {name: MEASURES.get(name, name) for cell in bench.cells for name in cell.diversity}
    return {
        "name": bench.name,
        "about": _about(bench),
        "n": bench.n,
        "notes": list(notes),
        "problems": [_short(problem) for problem in bench.problems[:shown]],
        "shown": len(bench.problems[:shown]),
        "rule": RULE.format(problems=shown_problems) if bench.problems else NO_SAMPLES,
        "measures": [[name, label, describe_metric(name)] for name, label in _ranked(measures)],
        "cells": [_cell(bench, cell, shown) for cell in bench.cells],
    }


def _about(bench: Benchmark) -> str:
    runs = sum(len(cell.runs) for cell in bench.cells)
    counts = ((bench.count, "problem"), (len(bench.cells), "setting"), (runs, "run"))
    common = ", ".join(f"{name} {value}" for name, value in bench.common.items())
    whole = ", ".join([bench.model, *(number_of(*one) for one in counts)])
    return f"{whole}; {common}." if common else f"{whole}."


def _ranked(measures: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the measures of diversity, the paper's first."""
    first = list(MEASURES)
    return sorted(
        measures.items(),
        key=lambda item: (first.index(item[0]) if item[0] in first else len(first), item[0]),
    )


def _cell(bench: Benchmark, cell: Cell, shown: int) -> Json:
    axes = {name: cell.settings[name] for name in ("length", "steps") if name in cell.settings}
    return {
        "key": cell.key,
        "label": cell.label,
        "method": cell.method,
        "objective": cell.objective,
        "plain": cell.plain,
        "alpha": cell.alpha,
        "temperature": cell.temperature,
        "n": cell.n,
        **axes,
        "passed": {str(k): _share(one) for k, one in cell.passed.items()},
        "baseline": next((gain.baseline for gain in cell.gains.values()), None),
        "diversity": {
            name: {"value": one.mean, "text": fixed(one.mean, 3)}
            for name, one in cell.diversity.items()
            if math.isfinite(one.mean)
        },
        "overhead": tables.overhead(bench, cell),
        "right": None if cell.right is None else cell.right[:shown].tolist(),
        "tried": cell.tried,
        "summary": _summary(bench, cell),
    }


def _share(one: Estimate) -> Json:
    """Return an estimate in percent, with None for what is unknown.

    "value" holds mean, low and high for charts; "text" mean, standard error, low and high.
    """
    drawn = [
        100 * share if math.isfinite(share) else None for share in (one.mean, one.low, one.high)
    ]
    read = [
        percent(share) if math.isfinite(share) else None
        for share in (one.mean, one.se, one.low, one.high)
    ]
    return {"value": drawn, "text": read}


def _summary(bench: Benchmark, cell: Cell) -> str:
    """Describe the numbers of a cell in sentences."""
    n, lines = cell.n, []
    if passed := cell.passed.get(n):
        seeds = f", {named('seed', cell.seeds)}" if cell.seeds else ""
        interval = (
            f" [{percent(passed.low)}, {percent(passed.high)}]" if math.isfinite(passed.low) else ""
        )
        runs = number_of(len(cell.runs), "run")
        lines.append(f"Pass@{n} {percent(passed.mean)} %{interval}; {runs}{seeds}.")
    if voted := cell.voted.get(n):
        lines.append(
            f"Maj@{n} {percent(voted.mean)} % [{percent(voted.low)}, {percent(voted.high)}]."
        )
    if gain := cell.gains.get(n):
        label = next(one.label for one in bench.cells if one.key == gain.baseline)
        low, high = percent(gain.low, sign="+"), percent(gain.high, sign="+")
        interval = f" [{low}, {high}] (interval over {gain.by})" if math.isfinite(gain.low) else ""
        lines.append(f"Gain over {label}: {percent(gain.difference, sign='+')} points{interval}.")
    if theirs := published.pass_16(bench, cell):
        lines.append(f"Published: {fixed(theirs[0])} ± {fixed(theirs[1])} ({published.WHOSE}).")
    if cell.solved is not None:
        lines.append(f"{cell.solved} of {number_of(bench.count, 'problem')} solved by some run.")
    if cell.seconds:
        more = tables.overhead(bench, cell)
        against = "" if more is None else f", {percent(more, sign='+')} % relative to its baseline"
        lines.append(f"{fixed(cell.seconds.mean, 2)} s per batch{against}.")
    return " ".join(lines)


def _write_samples(results: Results, cell: Cell, problems: Sequence[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _, run = min(zip(cell.seeds, cell.runs, strict=True))
    for page, start in enumerate(range(0, len(problems), PAGE)):
        some = problems[start : start + PAGE]
        shown = [_problem(problem, results.record(run, problem)) for problem in some]
        content = embedded({"cell": cell.key, "page": page, "rows": shown})
        text = f"oddlm.samples.take({content});\n"
        write_whole(folder / f"{page}.js", text.encode("ascii"))


def _problem(problem: str, record: Record | None) -> Json:
    samples = [[_short(one.text), one.correct] for one in record.samples] if record else []
    return {
        "problem": _short(problem),
        "prompt": _short(record.prompt) if record else "",
        "samples": samples,
    }


def _short(text: str) -> str:
    return visible(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ...")


def _remove_samples(folder: Path) -> None:
    """Remove the samples of an earlier report, and nothing else."""
    for path in folder.glob("*/*.js"):
        if re.fullmatch(r"[0-9a-f]{12}/\d+\.js", f"{path.parent.name}/{path.name}"):
            path.unlink()
    for path in folder.glob("*"):
        if re.fullmatch(r"[0-9a-f]{12}", path.name) and not any(path.iterdir()):
            path.rmdir()

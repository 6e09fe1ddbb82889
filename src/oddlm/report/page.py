"""`report.html`: the report as a page that opens from disk, with charts, filters and the samples
behind each cell.

The numbers stand inside the page. Samples are pages of their own, small scripts that are loaded
when asked for, because a page from disk may not read files. All texts are data: the page inserts
them as text.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..metrics import describe_metric
from ..store import Record
from ..text import number_of, visible
from . import published, tables
from .cells import Benchmark, Cell, Estimate, Results
from .claims import Finding
from .plots import MEASURES

STATIC = "page"
SAMPLES = "samples"
PAGE = 10  # problems of a page of samples
MOST_SAMPLES = 128_000  # in the folder, shared out among all cells
MOST_SIGNS = 2_000  # of a text
RULE = (
    "Samples of the run with the lowest seed of each setting; {problems}, in the order of the task. Texts end after "
    f"{MOST_SIGNS:,} signs."
)
NO_SAMPLES = (
    "These runs were imported as means over problems: the log that they come from holds no samples."
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
    """report.html with its script, its style and its samples; `notes` by benchmark: what its runs
    cannot tell.
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
        (out / STATIC).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write the page of a report to {error.filename or out}: {error.strerror}"
        ) from error
    static = files(__package__) / "static"
    for file in static.iterdir():
        if file.name.endswith((".css", ".js")):
            write_whole(out / STATIC / file.name, file.read_bytes())
    html = (static / "report.html").read_text(encoding="utf-8").replace("@DATA@", embedded(content))
    write_whole(out / "report.html", html.encode())
    return out / "report.html"


def embedded(content: Json) -> str:
    """JSON that nothing inside can end: no tag, no comment, no sign beyond ASCII."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def problems_shown(results: Results) -> int:
    """How many problems of each cell have their samples in the folder: whole pages, at least one."""
    each = sum(cell.n for bench in results.benchmarks for cell in bench.cells if bench.problems)
    return max(1, MOST_SAMPLES // max(1, each) // PAGE) * PAGE


def _benchmark(bench: Benchmark, notes: Sequence[str], shown: int) -> Json:
    some = min(shown, bench.count)
    every = number_of(bench.count, "problem")
    told = every if some == bench.count else f"the first {some} of {every}"
    measures = {name: MEASURES.get(name, name) for cell in bench.cells for name in cell.diversity}
    return {
        "name": bench.name,
        "model": bench.model,
        "count": bench.count,
        "n": bench.n,
        "common": ", ".join(f"{name} {value}" for name, value in bench.common.items()),
        "notes": list(notes),
        "problems": [_short(problem) for problem in bench.problems[:shown]],
        "shown": len(bench.problems[:shown]),
        "rule": RULE.format(problems=told) if bench.problems else NO_SAMPLES,
        "measures": [[name, label, describe_metric(name)] for name, label in _ranked(measures)],
        "whose": published.WHOSE,
        "cells": [_cell(bench, cell, shown) for cell in bench.cells],
    }


def _ranked(measures: Mapping[str, str]) -> list[tuple[str, str]]:
    """Measures of diversity, the paper's first."""
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
        "runs": len(cell.runs),
        "seeds": list(cell.seeds),
        "passed": {str(k): _numbers(one) for k, one in cell.passed.items()},
        "gains": {
            str(k): [*_known(gain.difference, gain.low, gain.high), gain.by]
            for k, gain in cell.gains.items()
        },
        "baseline": next((gain.baseline for gain in cell.gains.values()), None),
        "diversity": {name: _numbers(one) for name, one in cell.diversity.items()},
        "seconds": _numbers(cell.seconds) if cell.seconds else None,
        "overhead": tables.overhead(bench, cell),
        "published": published.pass_16(bench, cell),
        "right": None if cell.right is None else cell.right[:shown].tolist(),
        "tried": cell.tried,
        "solved": cell.solved,
    }


def _numbers(one: Estimate) -> list[float | None]:
    return _known(one.mean, one.se, one.low, one.high)


def _known(*values: float) -> list[float | None]:
    """As they are: rounded twice, a number could differ from its twin in a table.

    What is not known is null.
    """
    return [float(value) if math.isfinite(value) else None for value in values]


def _write_samples(results: Results, cell: Cell, problems: Sequence[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _, run = min(zip(cell.seeds, cell.runs, strict=True))
    for page, start in enumerate(range(0, len(problems), PAGE)):
        rows = [_row(name, results.record(run, name)) for name in problems[start : start + PAGE]]
        text = f"showSamples({embedded({'cell': cell.key, 'page': page, 'rows': rows})});\n"
        write_whole(folder / f"{page}.js", text.encode("ascii"))


def _row(problem: str, record: Record | None) -> Json:
    samples = [[_short(one.text), one.correct] for one in record.samples] if record else []
    return {
        "problem": _short(problem),
        "prompt": _short(record.prompt) if record else "",
        "samples": samples,
    }


def _short(text: str) -> str:
    return visible(text if len(text) <= MOST_SIGNS else f"{text[:MOST_SIGNS]} ...")


def _remove_samples(folder: Path) -> None:
    """Those of an earlier report, and nothing else."""
    for path in folder.glob("*/*.js"):
        if re.fullmatch(r"[0-9a-f]{12}/\d+\.js", f"{path.parent.name}/{path.name}"):
            path.unlink()
    for path in folder.glob("*"):
        if re.fullmatch(r"[0-9a-f]{12}", path.name) and not any(path.iterdir()):
            path.rmdir()

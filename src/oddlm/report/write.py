"""Writes a report: tables, figures, claims and examples, and `report.md` with all of them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..text import fixed, number_of
from . import claims, examples, page, plots, published, tables
from .cells import Benchmark, Cell, Results
from .plots import NothingToDrawError
from .tables import Table, escaped

FIGURES = "figures"
LONGEST = 120  # characters of a figure's file name; the end of a long one is more specific
INTERVALS = (
    "Standard errors (±) are over runs, as in the paper. Intervals are at 95 %. For measured runs, "
    "they come from a paired bootstrap over problems and show the variation between problems. For "
    "imported runs, they come from Welch's t over runs and show the variation between seeds on the "
    "same problems."
)
Watch = Callable[[str], None]


def write_report(results: Results, out: Path, watch: Watch = lambda _: None) -> list[Path]:
    """Write all files of the report; return their paths.

    If the runs lack the data for a table or figure, a message takes its place.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"cannot write a report to {out}: it is not a folder")
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    watch("tables")
    for k in sorted({bench.n for bench in results.benchmarks}):
        files |= _pass_files([bench for bench in results.benchmarks if bench.n == k], k)
    for name, make, why in TABLES:
        files |= _table_files(
            name, [make(bench) or f"{escaped(bench.name)}: {why}" for bench in results.benchmarks]
        )
    files |= _table_files("transfer", [tables.transfer_table(results) or NO_TRANSFER])
    watch("claims")
    found = claims.findings(results)
    files["claims.md"] = claims.as_markdown(found)
    watch("examples")
    files["examples.md"] = examples.as_markdown(
        [e for bench in results.benchmarks for e in examples.pick_examples(results, bench)]
    )
    pictures = _figures(results.benchmarks, out / FIGURES, watch)
    files["report.md"] = _page(results, files, pictures)
    for path in out.iterdir():
        if OWN.fullmatch(path.name) and path.name not in files:  # left from an earlier report
            path.unlink()
    for name, text in files.items():
        write_whole(out / name, text.encode())
    notes = {bench.name: [*unknowns(bench), *_beyond(bench)] for bench in results.benchmarks}
    html = page.write_page(results, found, notes, out, watch)
    drawn = [path for some in pictures.values() for one in some for path in one.files]
    return [*(out / name for name in files), *(out / FIGURES / name for name in drawn), html]


NO_RECORDS = "not available, because the runs were imported and have no records."
NO_VOTES = "not available, because the runs were imported or scored before they were counted."
NO_BASE = (
    "not available, because no method has runs of plain sampling with the same other settings."
)
NO_TRANSFER = (
    "Transfer of an alpha is not available: it takes two benchmarks with two alphas of one method."
)
TABLES: tuple[tuple[str, Callable[[Benchmark], Table | None], str], ...] = (
    ("votes", tables.vote_table, "majority votes are " + NO_VOTES),
    ("coverage", tables.coverage_table, "coverage is " + NO_RECORDS),
    ("latency", tables.latency_table, "latency is not available, because the runs were not timed."),
    ("robustness", tables.robustness_table, "gains and regret are " + NO_BASE),
)
OWN = re.compile(rf"(pass\d+|transfer|{'|'.join(name for name, _, _ in TABLES)})\.(md|tex|csv)")


def _pass_files(benchmarks: Sequence[Benchmark], k: int) -> dict[str, str]:
    found = [tables.pass_table(bench) for bench in benchmarks]
    rows = [row for bench in benchmarks for row in tables.pass_rows(bench)]
    beside = [table for bench in benchmarks if (table := tables.published_table(bench))]
    thin = [line for bench in benchmarks for line in _thin(bench)]
    text = "\n".join(
        [*(table.markdown() for table in found), *thin, "", *(table.markdown() for table in beside)]
    )
    return {
        f"pass{k}.md": text,
        f"pass{k}.tex": "\n".join(table.latex() for table in [*found, *beside]),
        f"pass{k}.csv": tables.as_csv(tables.PASS_COLUMNS, rows),
    }


def _thin(bench: Benchmark) -> list[str]:
    """List the cells with fewer runs than the paper's, in one sentence if all have as few."""
    thin = tables.thin_cells(bench)
    counts = {runs for _, runs in thin}
    if len(thin) == len(bench.main) and len(counts) == 1:
        has = f"every cell has {number_of(counts.pop(), 'run')} (the paper: {tables.MOST_RUNS})"
        return [f"{escaped(bench.name)}: {has}."]
    listed = ", ".join(f"{escaped(cell.label)} ({runs})" for cell, runs in thin) or "none"
    return [f"{escaped(bench.name)}: cells with fewer than {tables.MOST_RUNS} runs: {listed}."]


def _table_files(name: str, found: Sequence[Table | str]) -> dict[str, str]:
    made = [table for table in found if isinstance(table, Table)]
    files = {
        f"{name}.md": "\n".join(
            one.markdown() if isinstance(one, Table) else f"{one}\n" for one in found
        )
    }
    if made:
        files[f"{name}.tex"] = "\n".join(table.latex() for table in made)
        rows = [(table.title, *row) for table in made for row in table.rows]
        files[f"{name}.csv"] = tables.as_csv(("table", *made[0].columns), rows)
    return files


@dataclass(frozen=True)
class Picture:
    """A figure of the report; if it has no files, the caption says why."""

    caption: str
    files: tuple[str, ...] = ()


Wanted = tuple[str, str, Callable[[], Any]]  # caption, name, figure


def _figures(
    benchmarks: Sequence[Benchmark], folder: Path, watch: Watch
) -> dict[str, list[Picture]]:
    """Draw all figures; return them by benchmark."""
    wanted = [(bench.name, one) for bench in benchmarks for one in _wanted(bench)]
    stems = _unique([slug(f"{bench}-{name}") for bench, (_, name, _) in wanted])
    found: dict[str, list[Picture]] = {bench.name: [] for bench in benchmarks}
    for stem, (bench, (caption, name, figure_of)) in zip(stems, wanted, strict=True):
        watch(f"figure: {name}")
        try:
            plots.draw(figure_of, folder / stem)
            found[bench].append(Picture(caption, (f"{stem}.png", f"{stem}.pdf")))
        except NothingToDrawError as error:
            found[bench].append(Picture(f"{caption}: {error}"))
    return found


def _wanted(bench: Benchmark) -> list[Wanted]:
    alphas = {
        method: {c.alpha for c in bench.main if c.method == method and not c.plain}
        for method in bench.methods
    }
    wanted: list[Wanted] = [
        (f"Pass@{bench.n} by method", "methods", partial(plots.methods, bench)),
        (
            f"Pass@1 against Pass@{bench.n} by method",
            "pareto",
            partial(plots.pareto_of_methods, bench),
        ),
        ("Overhead", "overhead", partial(plots.overhead, bench)),
    ]
    # Methods with one alpha are only in the figures by method.
    for method in [method for method, some in alphas.items() if len(some) > 1]:
        wanted += [
            (f"Pass@k of {method}", f"passk-{method}", partial(plots.pass_k, bench, method)),
            (
                f"Pass@1 against Pass@{bench.n} of {method}",
                f"pareto-{method}",
                partial(plots.pareto, bench, method),
            ),
            (
                f"Diversity against alpha of {method}",
                f"diversity-{method}",
                partial(plots.diversity, bench, method),
            ),
        ]
    return wanted


def slug(text: str) -> str:
    """Turn a text into a file name, which need not be unique."""
    return re.sub(r"[^a-z0-9=]+", "-", text.lower())[-LONGEST:].strip("-")


def _unique(names: Sequence[str]) -> list[str]:
    """Make names unique by adding a number to repeated ones."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}-{i}" for i in count(2))
        found.append(
            name
            if name not in found
            else next(one for one in numbered if one not in {*found, *names})
        )
    return found


def unknowns(bench: Benchmark) -> list[str]:
    """Return remarks on what the runs of a benchmark lack."""
    if bench.imported is None:
        return [] if all(len(cell.runs) > 1 for cell in bench.cells) else [ONE_RUN]
    sizes = f"{number_of(bench.count, 'problem')} of {number_of(bench.n, 'sample')}"
    found = [
        f"Its runs come from {bench.imported}; their tables hold {sizes}.",
        *IMPORTED,
    ]
    theirs = published.latency(bench)
    plain, odd = (_seconds(bench, method) for method in ("plain", "odd"))
    if theirs and plain and odd:
        found.append(
            f"They do not measure latency: the logs have {fixed(plain)} s per batch for plain "
            f"sampling and {fixed(odd)} s for ODD, the paper {fixed(theirs.plain[0])} s and "
            f"{fixed(theirs.odd[0])} s ({fixed(theirs.overhead_percent, sign='+')} %). The runs "
            "were not timed side by side."
        )
    return found


IMPORTED = (
    (
        "They are means over problems, so coverage, correct samples per problem, examples and "
        "pairing by problem are not available."
    ),
    (
        "Their Pass@1 is that of the first sample, which repulsion never moves; the share of "
        "correct samples, c/n, is not available."
    ),
    "So there is no Pareto figure, and curves begin at k = 2.",
    (
        "Their seeds are not known. At temperature 0, plain runs repeat each other, so a standard "
        "error of 0 is meaningless there."
    ),
)
ONE_RUN = "Some cells have only one run, and so no standard error."


def _seconds(bench: Benchmark, method: str) -> float | None:
    values = [value for cell in bench.main if cell.method == method for value in cell.run_seconds]
    return sum(values) / len(values) if values else None


def _page(results: Results, files: dict[str, str], pictures: dict[str, list[Picture]]) -> str:
    lines = ["# Report", "", INTERVALS, ""]
    for bench in results.benchmarks:
        settings = ", ".join(f"{name} {value}" for name, value in bench.common.items())
        runs = sum(len(cell.runs) for cell in bench.cells)
        sizes = ((bench.count, "problem"), (len(bench.cells), "setting"), (runs, "run"))
        counts = ", ".join(number_of(count, name) for count, name in sizes)
        lines.append(
            f"- **{escaped(bench.name)}**: {escaped(bench.model)}, {counts}; {escaped(settings)}."
        )
        lines += [f"    - {escaped(one)}" for one in unknowns(bench)]
        lines += [f"    - {one}" for one in _beyond(bench)]
    if results.left_out:
        lines += ["", f"Left out: {number_of(len(results.left_out), 'run')}.", ""]
        lines += [f"- {escaped(one.run)}: {escaped(one.why)}" for one in results.left_out]
    order = [
        *(name for name in files if re.fullmatch(r"pass\d+\.md", name)),
        *(f"{name}.md" for name, _, _ in TABLES),
        "transfer.md",
    ]
    for name in order:
        title = re.sub(r"^pass(\d+)$", r"Pass@\1", name.removesuffix(".md")).capitalize()
        lines += ["", f"## {title}", "", files[name]]
    lines += ["", "## Figures", ""]
    for bench_name, found in pictures.items():
        lines += [f"### {escaped(bench_name)}", ""]
        for one in found:
            caption = escaped(one.caption)
            picture = f"![{caption}]({FIGURES}/{one.files[0]})" if one.files else caption
            lines.append(f"{picture}\n")
    lines += ["", re.sub(r"^#", "##", files["claims.md"], flags=re.MULTILINE)]
    return "\n".join([*lines, "", "Examples: [examples.md](examples.md).", ""])


def _beyond(bench: Benchmark) -> list[str]:
    other: list[Cell] = [cell for cell in bench.cells if cell.n != bench.n]
    settings = number_of(len(other), "setting")
    return (
        [f"Only in the overhead figure: {settings} with n other than {bench.n}."] if other else []
    )

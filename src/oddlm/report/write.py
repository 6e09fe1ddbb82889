"""A folder with everything: tables, figures, claims, examples, and `report.md` that holds them
together.
"""

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
LONGEST = 120  # signs of a figure's file name; of a long one the end tells more
INTERVALS = (
    "Standard errors (±) are over runs, as in the paper. Intervals are at 95 %: of measured runs by paired bootstrap over "
    "problems (what other problems would give), of imported runs by Welch's t over runs (what other seeds would give on the "
    "same problems)."
)
Watch = Callable[[str], None]


def write_report(results: Results, out: Path, watch: Watch = lambda _: None) -> list[Path]:
    """All files of the report; what cannot be had is a message in the place where it would stand."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"cannot write a report to {out}: it is a file")
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
        if (
            OWN.fullmatch(path.name) and path.name not in files
        ):  # an earlier report's, which this one would contradict
            path.unlink()
    for name, text in files.items():
        write_whole(out / name, text.encode())
    notes = {bench.name: [*unknowns(bench), *_beyond(bench)] for bench in results.benchmarks}
    html = page.write_page(results, found, notes, out, watch)
    drawn = [path for some in pictures.values() for one in some for path in one.files]
    return [*(out / name for name in files), *(out / FIGURES / name for name in drawn), html]


NO_ROWS = "cannot be had, the runs were imported and have no rows."
NO_BASE = "cannot be had, no method has runs of plain sampling beside it that are otherwise alike."
NO_TRANSFER = (
    "Transfer of an alpha cannot be had: it takes two benchmarks with two alphas of one method."
)
TABLES: tuple[tuple[str, Callable[[Benchmark], Table | None], str], ...] = (
    ("coverage", tables.coverage_table, "coverage " + NO_ROWS),
    ("latency", tables.latency_table, "latency cannot be had, the runs were not timed."),
    ("robustness", tables.robustness_table, "gains and regret " + NO_BASE),
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
    """Cells with fewer runs than the paper's; where all have the same few, one sentence."""
    thin = tables.thin_cells(bench)
    counts = {runs for _, runs in thin}
    if len(thin) == len(bench.main) and len(counts) == 1:
        return [
            f"{escaped(bench.name)}: every cell rests on {counts.pop()} of the paper's {tables.MOST_RUNS} runs."
        ]
    told = ", ".join(f"{escaped(cell.label)} ({runs})" for cell, runs in thin)
    return [
        f"{escaped(bench.name)}: cells that rest on fewer than {tables.MOST_RUNS} runs: {told or 'none'}."
    ]


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
    """A figure of the report; without files, the caption says why there is none."""

    caption: str
    files: tuple[str, ...] = ()


Wanted = tuple[str, str, Callable[[], Any]]  # caption, name, figure


def _figures(
    benchmarks: Sequence[Benchmark], folder: Path, watch: Watch
) -> dict[str, list[Picture]]:
    """By benchmark, what was drawn."""
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
    for method in [
        method for method, some in alphas.items() if len(some) > 1
    ]:  # one alpha: the figures by method say it
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
    """Fit for a file name; different texts may have the same one."""
    return re.sub(r"[^a-z0-9=]+", "-", text.lower())[-LONGEST:].strip("-")


def _unique(names: Sequence[str]) -> list[str]:
    """The same names, those that come again with a number that none has."""
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
    """What the runs of a benchmark cannot tell."""
    if bench.imported is None:
        return [] if all(len(cell.runs) > 1 for cell in bench.cells) else [ONE_RUN]
    sizes = f"{number_of(bench.count, 'problem')} of {number_of(bench.n, 'sample')}"
    found = [
        f"Its runs come from {bench.imported}; their tables hold {sizes}.",
        "They are means over problems: coverage, right samples per problem, examples and pairing by problem cannot be had.",
        "Their Pass@1 is the first sample's, which repulsion never moves: the share of right samples, c/n, cannot be had.",
        "So the Pareto figure cannot be drawn, and curves begin at k = 2.",
        "Their seeds are not known. At temperature 0 plain runs repeat each other: a standard error of 0 there says nothing.",
    ]
    theirs = published.latency(bench)
    plain, odd = (_seconds(bench, method) for method in ("plain", "odd"))
    if theirs and plain and odd:
        found.append(
            f"Latency does not follow from them: the logs say {fixed(plain)} s per batch for plain sampling and "
            f"{fixed(odd)} s for ODD, the paper {fixed(theirs.plain[0])} and {fixed(theirs.odd[0])} s "
            f"({fixed(theirs.overhead_percent, sign='+')} %). The runs were not timed side by side."
        )
    return found


ONE_RUN = "Some cells rest on one run: they have no standard error."


def _seconds(bench: Benchmark, method: str) -> float | None:
    values = [value for cell in bench.main if cell.method == method for value in cell.run_seconds]
    return sum(values) / len(values) if values else None


def _page(results: Results, files: dict[str, str], pictures: dict[str, list[Picture]]) -> str:
    lines = ["# Report", "", INTERVALS, ""]
    for bench in results.benchmarks:
        settings = ", ".join(f"{name} {value}" for name, value in bench.common.items())
        runs = sum(len(cell.runs) for cell in bench.cells)
        lines.append(
            f"- **{escaped(bench.name)}**: {escaped(bench.model)}, {number_of(bench.count, 'problem')}, "
            f"{number_of(len(bench.cells), 'setting')}, {number_of(runs, 'run')}; {escaped(settings)}."
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
            told = escaped(one.caption)
            lines.append(f"![{told}]({FIGURES}/{one.files[0]})\n" if one.files else f"{told}\n")
    lines += ["", re.sub(r"^#", "##", files["claims.md"], flags=re.MULTILINE)]
    return "\n".join([*lines, "", "Examples: [examples.md](examples.md).", ""])


def _beyond(bench: Benchmark) -> list[str]:
    other: list[Cell] = [cell for cell in bench.cells if cell.n != bench.n]
    settings = number_of(len(other), "setting")
    return (
        [f"In the overhead figure alone: {settings} with another n than {bench.n}."]
        if other
        else []
    )

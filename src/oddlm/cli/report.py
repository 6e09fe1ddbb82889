"""`oddlm report` and `oddlm import-released`."""

from pathlib import Path
from typing import Annotated

import typer

from .app import RESULTS, app, complain
from .options import FOLDER, StoreFolder


@app.command(rich_help_panel=RESULTS)
def report(
    runs: Annotated[
        Path, typer.Argument(help="The folder that holds the runs (--store of `oddlm eval`).")
    ] = FOLDER,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder of the report; files of an earlier report are replaced.",
        ),
    ] = Path("report"),
    novelty: Annotated[
        bool,
        typer.Option(
            "--novelty",
            help="Measure novelty relative to plain sampling, too, in report.html (slower).",
        ),
    ] = False,
) -> None:
    """Write tables, figures, claims and examples from a folder of runs.

    The report is report.html, which opens from disk with charts, filters and the samples behind
    each cell, and report.md. Next to them are tables (.md, .tex, .csv) of Pass@n in the paper's
    layout, coverage, latency, robustness and transfer of alpha, claims.md, examples.md and figures/
    (.png, .pdf). Runs that differ in other settings than objective, alpha and temperature count as
    different methods. If the runs do not allow a table, the report says why in its place.

    Example: oddlm report runs --out report
    """
    from ..report.cells import read_results
    from ..report.write import write_report
    from ..text import number_of
    from .bar import status_line

    with status_line("reading runs") as update:
        count = 0

        def read(problems: int) -> None:
            nonlocal count
            count += problems
            if count % 1000 == 0:
                update(f"reading runs: {count} problems")

        results = read_results(runs, read, beside=novelty)
        files = write_report(results, out, update)
    for one in results.left_out:
        complain(f"left out run {one.run}: {one.why}")
    settings = sum(len(bench.cells) for bench in results.benchmarks)
    typer.echo(
        f"{number_of(settings, 'setting')}, {number_of(len(files), 'file')}: "
        f"{out / 'report.html'}, {out / 'report.md'}"
    )


@app.command("import-released", rich_help_panel=RESULTS)
def import_released(
    file: Annotated[Path, typer.Argument(help="The authors' run log, a CSV with one row per run.")],
    store: StoreFolder = FOLDER,
    task: Annotated[
        str, typer.Option(help="The task of the runs, which the file does not name.")
    ] = "gsm8k",
) -> None:
    """Import the paper's published run logs into a store, for `oddlm report`.

    The whole file is read and checked before anything is written. Runs that the store already has
    are skipped.

    Example: oddlm import-released released_runs_gsm8k.csv --store released
    """
    from ..report.released_runs import import_released as take
    from ..store import Store
    from ..text import number_of

    done = take(file, Store(store), task)
    typer.echo(f"{number_of(done.new, 'run')} imported into {store}, {done.known} there already")
    if done.empty:
        rows = number_of(len(done.empty), "row")
        complain(f"left out {rows} without a result: {', '.join(done.empty)}")

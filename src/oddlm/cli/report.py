"""`oddlm report` and `oddlm import-released`."""

from pathlib import Path
from typing import Annotated

import typer

from .app import app, complain
from .options import FOLDER, StoreFolder


@app.command()
def report(
    runs: Annotated[
        Path, typer.Argument(help="The folder of runs (the --store of `oddlm eval`).")
    ] = FOLDER,
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="The folder of the report; files of an earlier one are replaced."
        ),
    ] = Path("report"),
    novelty: Annotated[
        bool,
        typer.Option(
            "--novelty",
            help="Novelty beside plain sampling, too: another measure in report.html; slower.",
        ),
    ] = False,
) -> None:
    """Tables, figures, claims and examples from a folder of runs.

    Writes report.html, which opens from disk with charts, filters and the samples behind each cell,
    and report.md; beside them Pass@n in the paper's layout, coverage, latency, robustness and
    transfer of alpha (.md, .tex, .csv), claims.md, examples.md and figures/ (.png, .pdf). Settings
    other than objective, alpha and temperature become methods of their own. What cannot be had from
    these runs is said where it would stand.

    Example: oddlm report runs --out report
    """
    from ..report.cells import read_results
    from ..report.write import write_report
    from ..text import number_of
    from .bar import status_line

    with status_line("reading runs") as tell:
        count = 0

        def read(problems: int) -> None:
            nonlocal count
            count += problems
            if count % 1000 == 0:
                tell(f"reading runs: {count} problems")

        results = read_results(runs, read, beside=novelty)
        files = write_report(results, out, tell)
    for one in results.left_out:
        complain(f"left out run {one.run}: {one.why}")
    settings = sum(len(bench.cells) for bench in results.benchmarks)
    typer.echo(
        f"{number_of(settings, 'setting')}, {number_of(len(files), 'file')}: {out / 'report.html'}, {out / 'report.md'}"
    )


@app.command("import-released")
def import_released(
    file: Annotated[Path, typer.Argument(help="The authors' run log: a CSV with one row per run.")],
    store: StoreFolder = FOLDER,
    task: Annotated[
        str, typer.Option(help="The task that the log is of: the file does not say.")
    ] = "gsm8k",
) -> None:
    """Take the published run logs into a store, so that `oddlm report` draws the authors' own
    results.

    The file is understood whole before anything is written; runs that are there already are not
    taken twice.

    Example: oddlm import-released released_runs_gsm8k.csv --store released
    """
    from ..report.released_runs import import_released as take
    from ..store import Store
    from ..text import number_of

    done = take(file, Store(store), task)
    typer.echo(f"{number_of(done.new, 'run')} imported into {store}, {done.known} there already")
    if done.empty:
        complain(
            f"left out {number_of(len(done.empty), 'row')} without a result: {', '.join(done.empty)}"
        )

"""`oddlm runs`: list, show, score, export and query stored runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .app import RESULTS, App, app, complain
from .options import FOLDER, PROBLEMS, WORK, StoreFolder, Unsafe, Workers, grouped

runs_app = App(invoke_without_command=True)
app.add_typer(runs_app, name="runs", rich_help_panel=RESULTS)
Folder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="The folder that holds the runs.",
        show_default="runs",
        rich_help_panel=WORK,
    ),
]
RunIds = Annotated[list[str] | None, typer.Argument(help="Ids of runs, or their beginnings.")]


@runs_app.callback()
def runs(context: typer.Context, store: StoreFolder = FOLDER) -> None:
    """List, show, score, export and query stored runs.

    Without a command the runs are listed with their settings, Pass@1 and Pass@n.

    Example: oddlm runs --store runs
    """
    context.obj = store
    if context.invoked_subcommand is not None:
        return
    from ..store import Head, Store, StoreError
    from .views import open_console, runs_table

    found: list[Head] = []
    broken: list[str] = []
    for name in Store(store).ids():
        try:
            found.append(Store(store).exact_head(name))
        except StoreError as error:
            broken.append(str(error))
    console = open_console()
    table = runs_table(found, whole=not console.is_terminal)
    if found or not broken:
        console.print(table if found else f"no runs in {store} yet: `oddlm eval` makes some")
    for message in broken:
        complain(message)
    if broken:
        raise typer.Exit(2)


@runs_app.command()
def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="The id of a run, or its beginning.")],
    samples: Annotated[
        int,
        typer.Option(metavar="N", help="Show the samples of the first N problems, too.", min=0),
    ] = 0,
    store: Folder = None,
) -> None:
    """Show one run: its settings, the machine it ran on, and its results.

    Example: oddlm runs show 3fa91c2b --samples 2
    """
    from ..store import Store
    from .views import label, open_console, run_details, side_by_side

    found = Store(store or context.obj).read(run)
    console = open_console()
    console.print(run_details(found))
    for record in found.records[:samples]:
        console.print(side_by_side([(label(found.spec.params), record)], console.width))


@runs_app.command()
@grouped
def score(
    context: typer.Context,
    work: Workers,
    runs: RunIds = None,
    every: Annotated[
        bool, typer.Option("--all", help="Score all runs of the store that have a task.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Where the file of the problems is now, if it was moved.",
            rich_help_panel=PROBLEMS,
        ),
    ] = None,
    unsafe: Unsafe = False,
    store: Folder = None,
) -> None:
    """Score samples that were drawn earlier, here or elsewhere. No model is loaded.

    The scorer's version is part of a run. If it has changed since the run was made, the scores go
    into a new run with the same samples, and the old run stays as it is.

    Example: oddlm runs score 3fa91c2b

    Example: oddlm runs score --all --workers 2
    """
    from ..experiments.plan import Asked, Plan, drawn_problems, merged
    from ..experiments.run import Result
    from ..store import DamagedRunError, Store
    from .carry_out import report_trouble
    from .carry_out import run as carry_out

    folder = store or context.obj
    opened, undrawn = Store(folder), 0
    wanted: list[Asked] = []
    damaged: list[str] = []
    for name in opened.ids() if every else dict.fromkeys(opened.find(one) for one in runs or ()):
        try:
            head = opened.exact_head(name)
            if every and (head.spec.task is None or head.imported or not head.drawn):
                continue
            run = drawn_problems(head, data=data, unsafe=unsafe)
        except ValueError as error:
            if not every and not isinstance(error, DamagedRunError):
                raise
            damaged.append(str(error))  # the other runs are scored all the same
            continue
        wanted.append(run)
        undrawn += max(0, head.problems - head.drawn)
        if head.id != run.spec.id:
            complain(
                f"{head.folder / 'spec.json'} has scorer {head.spec.scorer_version}, this is "
                f"{run.spec.scorer_version}: the scores go into run {run.spec.id}"
            )
    if not wanted and not damaged:
        raise ValueError("there is nothing to score: name runs, or give --all")
    plan, result = Plan(merged(wanted)), Result()
    if wanted:
        result = carry_out(plan, folder, work.find(), 16, ("score",), work.track)
    for name in result.done:
        typer.echo(name)
    result.damaged += damaged
    result.undrawn += undrawn
    report_trouble(plan, result, folder)


@runs_app.command()
def export(
    context: typer.Context,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="Folder of the model's results, such as results/mini."
        ),
    ],
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of runs, or their beginnings.", show_default="all"),
    ] = None,
    store: Folder = None,
) -> None:
    """Write the scores of complete runs, without texts, into files to keep in a repository.

    There is one file per task, with a line per run. Runs that a file already holds are replaced;
    other runs in it stay. results/README.md documents the format.

    Example: oddlm runs export --store runs --out results/mini
    """
    from ..report.result_files import export as write
    from ..store import Store
    from ..text import number_of

    opened = Store(store or context.obj)
    done = write(opened, out, None if runs is None else {opened.find(one) for one in runs})
    for path, count in done.files.items():
        typer.echo(f"{path}: {number_of(count, 'run')}")
    for one in done.left_out:
        complain(f"left out run {one.run}: {one.why}")
    if not done.runs:
        raise ValueError(f"{opened.folder} holds no complete run to export")


@runs_app.command()
def sql(
    context: typer.Context,
    query: Annotated[str, typer.Argument(help="SQL over the tables runs, problems and samples.")],
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per row instead of a table."),
    ] = False,
    store: Folder = None,
) -> None:
    """Query the store in SQL (DuckDB).

    The tables are runs, problems and samples; `describe samples` lists the columns of one. This
    needs the extra 'store'.

    Example: oddlm runs sql "select run, avg(correct::int) from samples group by run"
    """
    from ..store import Store
    from ..store.query import sql as ask
    from .views import answer_table, open_console

    answer = ask(Store(store or context.obj), query)
    if as_json:
        for row in answer.rows:
            typer.echo(json.dumps(dict(zip(answer.columns, row, strict=True)), default=str))
    else:
        open_console().print(answer_table(answer))

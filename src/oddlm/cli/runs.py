"""`oddlm runs`: what the store holds."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .app import app, complain
from .options import StoreFolder

runs_app = typer.Typer(help="Look at stored runs; without a command, list them.", invoke_without_command=True)
app.add_typer(runs_app, name="runs")
FOLDER = Path("runs")


@runs_app.callback()
def runs(context: typer.Context, store: StoreFolder = FOLDER) -> None:
    """Look at stored runs; without a command, list them."""
    context.obj = store
    if context.invoked_subcommand is not None:
        return
    from ..store import Head, Store, StoreError
    from ..views import open_console, runs_table

    found: list[Head] = []
    broken: list[str] = []
    for name in Store(store).ids():
        try:
            found.append(Store(store).exact_head(name))
        except StoreError as error:
            broken.append(str(error))
    console = open_console()
    table = runs_table(found, whole=not console.is_terminal)
    console.print(table if found else f"no runs in {store} yet: `oddlm eval` makes some")
    for message in broken:
        complain(message)
    if broken:
        raise typer.Exit(2)


@runs_app.command()
def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run's id, or the beginning of it.")],
    samples: Annotated[int, typer.Option(help="Show the samples of so many problems too.", min=0)] = 0,
    store: Annotated[Path | None, typer.Option("--store", help="The folder of runs.  [default: runs]")] = None,
) -> None:
    """One run: what was asked, what ran it and what came out."""
    from ..store import Store
    from ..views import label, open_console, run_details, side_by_side

    found = Store(store or context.obj).read(run)
    console = open_console()
    console.print(run_details(found))
    for row in found.rows[:samples]:
        console.print(side_by_side([(label(found.spec.params), row)], console.width))


@runs_app.command()
def sql(
    context: typer.Context,
    query: Annotated[str, typer.Argument(help="SQL over the tables runs, problems and samples.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per row, in full, instead of a table.")] = False,
    store: Annotated[Path | None, typer.Option("--store", help="The folder of runs.  [default: runs]")] = None,
) -> None:
    """Ask anything, in DuckDB's SQL: `describe samples` lists the columns of a table.

    Example: oddlm runs sql "select run, avg(correct::int) from samples group by run"
    """
    from ..query import sql as ask
    from ..store import Store
    from ..views import answer_table, open_console

    answer = ask(Store(store or context.obj), query)
    if as_json:
        for row in answer.rows:
            typer.echo(json.dumps(dict(zip(answer.columns, row, strict=True)), default=str))
    else:
        open_console().print(answer_table(answer))

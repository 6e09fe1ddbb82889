"""`oddlm runs`: what the store holds."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .app import App, app, complain
from .options import FOLDER, StoreFolder, Unsafe, Workers, grouped

runs_app = App(
    help="Look at stored runs; without a command, list them.", invoke_without_command=True
)
app.add_typer(runs_app, name="runs")
Folder = Annotated[
    Path | None, typer.Option("--store", help="The folder of runs.", show_default="runs")
]


@runs_app.callback()
def runs(context: typer.Context, store: StoreFolder = FOLDER) -> None:
    """Look at stored runs; without a command, list them."""
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
    run: Annotated[str, typer.Argument(help="A run's id, or the beginning of it.")],
    samples: Annotated[
        int, typer.Option(help="Show the samples of so many problems too.", min=0)
    ] = 0,
    store: Folder = None,
) -> None:
    """One run: what was asked, what ran it and what came out."""
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
    runs: Annotated[
        list[str] | None, typer.Argument(help="Ids of runs, or the beginnings of them.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All runs of the store that have a task.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Where the file of the problems is now, if it was moved.")
    ] = None,
    unsafe: Unsafe = False,
    store: Folder = None,
) -> None:
    """Score what was drawn: here, elsewhere, or by a scorer that was mended. Nothing is drawn, and
    no model loaded.

    A run is known by its scorer too: where that is another one now, the verdicts go into a run of
    their own beside the old one, with the same samples.

    Example: oddlm runs score 3fa91c2b
    """
    from ..experiments.run import Asked, Plan, Result, drawn_problems, merged
    from ..store import DamagedRunError, Store
    from .carry_out import run as carry_out
    from .carry_out import tell_trouble

    folder = store or context.obj
    where, undrawn = Store(folder), 0
    asked: list[Asked] = []
    damaged: list[str] = []
    for name in where.ids() if every else dict.fromkeys(where.find(one) for one in runs or ()):
        try:
            head = where.exact_head(name)
            if every and (head.spec.task is None or head.imported or not head.drawn):
                continue
            run = drawn_problems(head, data=data, unsafe=unsafe)
        except ValueError as error:
            if not every and not isinstance(error, DamagedRunError):
                raise
            damaged.append(str(error))  # the others can be scored
            continue
        asked.append(run)
        undrawn += max(0, head.problems - head.drawn)
        if head.id != run.spec.id:
            versions = f"scorer {head.spec.scorer_version}, and here is {run.spec.scorer_version}"
            complain(
                f"{head.folder / 'spec.json'} is of {versions}: the verdicts go into run {run.spec.id}"
            )
    if not asked and not damaged:
        raise ValueError("there is nothing to score: name runs, or give --all")
    plan = Plan(merged(asked))
    result = carry_out(plan, folder, work.find(), 16, ("score",), work.track) if asked else Result()
    for name in result.done:
        typer.echo(name)
    result.damaged += damaged
    result.undrawn += undrawn
    tell_trouble(plan, result, folder)


@runs_app.command()
def export(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option("--out", help="The folder of the model's results, such as results/mini.")
    ],
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of runs, or the beginnings of them; default: all."),
    ] = None,
    store: Folder = None,
) -> None:
    """Write the verdicts of complete runs into files that a repository can keep: a file per task, a line per run, no texts.

    A run that a file holds already is replaced, the others stay. results/README.md documents the files.

    Example: oddlm runs export --store runs --out results/mini
    """
    from ..report.result_files import export as write
    from ..store import Store
    from ..text import number_of

    where = Store(store or context.obj)
    done = write(where, out, None if runs is None else {where.find(one) for one in runs})
    for path, count in done.files.items():
        typer.echo(f"{path}: {number_of(count, 'run')}")
    for one in done.left_out:
        complain(f"left out run {one.run}: {one.why}")
    if not done.runs:
        raise ValueError(f"{where.folder} holds no complete run to export")


@runs_app.command()
def sql(
    context: typer.Context,
    query: Annotated[str, typer.Argument(help="SQL over the tables runs, problems and samples.")],
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON object per row, in full, instead of a table."),
    ] = False,
    store: Folder = None,
) -> None:
    """Ask anything, in DuckDB's SQL: `describe samples` lists the columns of a table.

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

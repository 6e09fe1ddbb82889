"""The command line: one small function per command. Importing this does not import torch."""

from typing import Annotated

import typer

app = typer.Typer(
    name="oddlm",
    help="Many different good answers out of diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; a ValueError is the user's to mend, so it is shown in one line, without a traceback."""
    try:
        app()
    except ValueError as error:
        typer.echo(f"oddlm: {error}", err=True)
        raise SystemExit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"oddlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None: ...


@app.command()
def demo(
    n: Annotated[int, typer.Option(help="Samples per setting.")] = 16,
    length: Annotated[int, typer.Option(help="Tokens per sample.")] = 24,
    steps: Annotated[int, typer.Option(help="Network evaluations.")] = 12,
    alpha: Annotated[float, typer.Option(help="Force of the repulsion.")] = 16.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0,
) -> None:
    """Plain, DPP and ODD sampling side by side, on an untrained toy network."""
    from .demo import run_demo

    run_demo(n=n, length=length, steps=steps, alpha=alpha, seed=seed)


@app.command()
def names() -> None:
    """List the objectives, features, policies and schedules, with their options and defaults."""
    from rich.console import Console
    from rich.table import Table

    from .diversity.features import FEATURES
    from .diversity.guide import SCHEDULES
    from .diversity.objectives import OBJECTIVES
    from .policies import POLICIES

    table = Table("kind", "name", "options", "what it does", show_lines=False, pad_edge=False)
    for registry in (OBJECTIVES, FEATURES, POLICIES, SCHEDULES):
        for name in registry.names:
            options = ", ".join(f"{k}={v!r}" for k, v in registry.options(name).items())
            table.add_row(registry.kind, name, options, (registry.find(name).__doc__ or "").split("\n")[0])
        table.add_section()
    Console().print(table)

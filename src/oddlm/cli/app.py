"""The command itself: what all its parts share."""

import warnings
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
    """Run the command line; what the user has to mend is shown in one line, without a traceback."""
    from ..sandbox import SandboxError

    warnings.showwarning = lambda message, *_: typer.echo(f"oddlm: {message}", err=True)
    try:
        app()
    except (ValueError, SandboxError) as error:
        typer.echo(f"oddlm: {error}", err=True)
        raise SystemExit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"oddlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None: ...

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

    warnings.showwarning = lambda message, *_: complain(message)
    try:
        app()
    except (ValueError, SandboxError) as error:
        complain(error)
        raise SystemExit(2) from None


def complain(message: object) -> None:
    """One line for the user; what it quotes of files cannot steer the terminal."""
    from ..views import visible

    typer.echo(f"oddlm: {visible(str(message))}", err=True)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"oddlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None: ...

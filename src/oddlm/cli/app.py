"""The command itself: what all its parts share."""

import os
import sys
import warnings
from contextlib import redirect_stdout
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

    _share_cores()
    warnings.showwarning = lambda message, *_: complain(message)
    try:
        with redirect_stdout(sys.stdout):  # whatever a command puts in its place, see `check_out`
            app()
    except (ValueError, SandboxError) as error:
        complain(error)
        raise SystemExit(2) from None


def _share_cores() -> None:
    """Have torch's threads sleep soon when they wait for each other, unless somebody decided otherwise.

    By default libgomp has them spin for milliseconds, and on a machine that others use as well they then keep the core from
    the one they wait for: with three busy programs on two cores a batch of the mini model took three times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


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

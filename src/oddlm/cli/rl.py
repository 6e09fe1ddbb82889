"""`oddlm rl`: reinforcement learning on a task."""

from pathlib import Path
from typing import Annotated

import typer

from .app import PIECES, app
from .options import Device


@app.command(rich_help_panel=PIECES)
def rl(
    config: Annotated[Path, typer.Argument(help="A recipe, such as recipes/rl/config.toml.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for checkpoint, log and weights. A killed run resumes from it.",
        ),
    ],
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Instead of the recipe's, with dots for tables. Repeatable.",
        ),
    ] = None,
    device: Device = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="Report to wandb, mlflow, tensorboard (extras) or a dotted path. Repeatable.",
        ),
    ] = None,
) -> None:
    """Train a model on the rewards of a task (GRPO).

    Each update draws groups of samples (`rollouts`), scores them with the task, and makes the
    better ones of every group likelier. The samples may be pushed apart like any others:
    --set rollouts.settings.alpha=8. Every few updates the model is measured on problems that it
    does not learn from; the log has one line of JSON for each update and measurement.

    Ctrl-C saves; the same command resumes. For N devices start it with `torchrun
    --nproc-per-node N -m oddlm rl ...`. The command prints the folder of the finished model;
    other commands take it as --model.

    Example: oddlm rl recipes/rl/config.toml --out runs/rl --set steps=20
    """
    from ..rl.config import read_rl_config
    from ..rl.trainer import train as run

    recipe = read_rl_config(config, change or ())
    typer.echo(f"finished: {run(recipe, out, device=device, track=track or ())}")

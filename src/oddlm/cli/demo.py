"""`oddlm demo`: plain and diverse sampling side by side."""

from pathlib import Path
from typing import Annotated

import typer

from ..presets import PRESETS
from .app import DRAWING, app
from .options import MODEL

MINI, TOY = "Options of --model mini", "Options of --model toy"


@app.command(rich_help_panel=DRAWING)
def demo(
    model: Annotated[
        str,
        typer.Option(help="The trained model mini, or toy, an untrained network (in seconds)."),
    ] = MODEL,
    alpha: Annotated[
        float,
        typer.Option(help="Strength of the push of DPP and the paper's ODD; auto sets its own."),
    ] = PRESETS["paper"]["alpha"],
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Time to spend; no problem is begun that would end later.",
            show_default="140, and longer until ten problems of each task are done",
            rich_help_panel=MINI,
        ),
    ] = None,
    picture: Annotated[
        Path, typer.Option(help="File for the Pass@k curves.", rich_help_panel=MINI)
    ] = Path("demo.png"),
    n: Annotated[int, typer.Option(help="Samples per setting.", min=1, rich_help_panel=TOY)] = 16,
    length: Annotated[int, typer.Option(help="Tokens per sample.", rich_help_panel=TOY)] = 24,
    steps: Annotated[
        int, typer.Option(help="Network evaluations per sample.", rich_help_panel=TOY)
    ] = 12,
) -> None:
    """Compare plain and diverse sampling in three minutes, on the model in the package.

    The mini model solves countdown and minicode problems; the tables show Pass@16 of plain
    sampling, DPP, ODD and the package's default. The toy network shows what happens to a batch.

    Example: oddlm demo

    Example: oddlm demo --model toy --n 8
    """
    from .demo_runs import run_demo, run_toy

    if model == "mini":
        run_demo(alpha=alpha, seed=seed, seconds=seconds, picture=picture)
    elif model == "toy":
        run_toy(n=n, length=length, steps=steps, alpha=alpha, seed=seed)
    else:
        raise ValueError(f"no demo for model {model!r}; known: mini, toy")

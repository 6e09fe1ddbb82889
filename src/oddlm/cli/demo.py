"""`oddlm demo`: plain and diverse sampling side by side."""

from pathlib import Path
from typing import Annotated

import typer

from ..presets import PRESETS
from .app import app
from .options import MODEL


@app.command()
def demo(
    model: Annotated[
        str, typer.Option(help="mini, or toy (an untrained network, in seconds).")
    ] = MODEL,
    alpha: Annotated[
        float,
        typer.Option(help="Force of the push by the paper's ODD and by DPP; auto has its own."),
    ] = PRESETS["paper"]["alpha"],
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="mini: begin no problem that would end later.",
            show_default="140, or until ten problems of each task are done",
        ),
    ] = None,
    picture: Annotated[Path, typer.Option(help="mini: where the Pass@k curves go.")] = Path(
        "demo.png"
    ),
    n: Annotated[int, typer.Option(help="toy: samples per setting.", min=1)] = 16,
    length: Annotated[int, typer.Option(help="toy: tokens per sample.")] = 24,
    steps: Annotated[int, typer.Option(help="toy: network evaluations.")] = 12,
) -> None:
    """Plain and ODD sampling side by side: Pass@16 on the mini model, or what happens to a batch of
    a toy network.
    """
    from .demo_runs import run_demo, run_toy

    if model == "mini":
        run_demo(alpha=alpha, seed=seed, seconds=seconds, picture=picture)
    elif model == "toy":
        run_toy(n=n, length=length, steps=steps, alpha=alpha, seed=seed)
    else:
        raise ValueError(f"no demo for model {model!r}; known: mini, toy")

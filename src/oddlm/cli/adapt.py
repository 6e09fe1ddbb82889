"""`oddlm adapt`: turn a causal checkpoint into a masked diffusion model."""

from pathlib import Path
from typing import Annotated

import typer

from .app import PIECES, app
from .options import Device

RECIPE = "Instead of the recipe's"


@app.command(rich_help_panel=PIECES)
def adapt(
    config: Annotated[Path, typer.Argument(help="A recipe, such as recipes/smol/config.toml.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for checkpoint, log, weights and card. A killed run resumes from it.",
        ),
    ],
    base: Annotated[
        Path | None,
        typer.Option(
            help="A causal checkpoint with the layout of Llama, Qwen2 or Qwen3: a folder with "
            "safetensors, or a GGUF file.",
            show_default="the recipe's",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help='JSONL to train on: {"prompt": ..., "answer": ...}.',
            show_default="the recipe's",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="JSONL like --data to measure on.",
            show_default="the recipe's",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Number of training steps.",
            min=1,
            show_default="the recipe's",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Turn a causal language model into a masked diffusion model.

    Attention becomes bidirectional, a special token becomes the mask, and the network learns to
    fill in answers to prompts. For N devices start it with `torchrun --nproc-per-node N -m oddlm
    adapt ...`. The command prints the folder of the finished model; other commands take it as
    --model.

    Example: oddlm adapt recipes/smol/config.toml --base SmolLM2.gguf --data train.jsonl
    --held-out held_out.jsonl --out runs/smol
    """
    from ..train.adapt import adapt as run
    from ..train.adapt import read_adapt_config

    changes = {"base": base, "data": data, "held_out": held_out, "steps": steps}
    typer.echo(f"finished: {run(read_adapt_config(config, **changes), out, device=device)}")

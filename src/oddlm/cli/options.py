"""Options that several commands share, and what is made of their values."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

TaskName = Annotated[str, typer.Argument(help="A task (see `oddlm tasks`), a dotted path, or your own .jsonl file.")]
Protocol = Annotated[str | None, typer.Option(help="A named variant of the task, such as 'paper'.")]
Data = Annotated[Path | None, typer.Option(help="Read the problems from this JSONL file.")]
Limit = Annotated[int | None, typer.Option(help="The first so many problems.")]
ExcludeTrain = Annotated[bool, typer.Option("--exclude-train", help="Leave out problems of the training side (countdown).")]
Split = Annotated[
    str | None, typer.Option(help="A part of the problems, such as tune or test; default: what the task reports on.")
]
ScorerName = Annotated[str | None, typer.Option(help="How your own .jsonl is scored: exact, number or python.")]
Unsafe = Annotated[bool, typer.Option("--unsafe-no-sandbox", help="Run model-written code WITHOUT protection.")]
ModelName = Annotated[str, typer.Option("--model", help="A model's name, or the dotted path of a class or function.")]
StoreFolder = Annotated[Path, typer.Option("--store", help="The folder of runs.")]
Length = Annotated[int | None, typer.Option(help="Tokens per sample; default: what the task says, or 64.", min=1)]
Steps = Annotated[int | None, typer.Option(help="Network evaluations per sample; default: one per token.", min=1)]
Alpha = Annotated[float, typer.Option(help="Force of the push; 0 is plain sampling.")]
Temperature = Annotated[float, typer.Option(help="Of the choice of tokens; 0 is the argmax.")]
Objective = Annotated[str, typer.Option(help="What pushes samples apart (see `oddlm names`); 'none' is plain sampling.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same samples.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of the sampler, such as policy=margin. Repeatable."),
]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="Tell wandb, mlflow or tensorboard how runs go (extras). Repeatable.")
]
KeepTokens = Annotated[bool, typer.Option("--keep-tokens", help="Store token ids beside the texts.")]
Together = Annotated[int, typer.Option(help="Prompts denoised at a time: as many are lost where the process is killed.", min=1)]

T = TypeVar("T")


def listed(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """`0,8,16` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    try:
        return [kind(part) for part in parts if part] if all(parts) else [kind("")]
    except ValueError:
        what = {int: "whole numbers", float: "numbers"}.get(kind, "names")  # type: ignore[call-overload]
        raise ValueError(f"--{option} takes {what} parted by commas, not {text!r}") from None


def settings(given: Sequence[str] | None, taken: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs; a value is JSON or else text. `taken`: what has an option of its own."""
    from ..params import json_or_text

    found: dict[str, Any] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set takes NAME=VALUE, not {pair!r}")
        if name in taken:
            raise ValueError(f"{name} has an option of its own: --{name.replace('_', '-')}")
        found[name] = json_or_text(value)
    return found


def present(**values: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in values.items() if value is not None}


def file_fields(task: str, data: Path | None) -> dict[str, str | None]:
    """What a run's spec says of the file that its problems come from."""
    from ..evaluate import digest

    source = data or (Path(task) if task.endswith(".jsonl") else None)
    return {"data": None if data is None else str(data), "data_digest": None if source is None else digest(source)}


def check_out(path: Path | None) -> None:
    """Can the file be written? Asked before anything is computed."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")

"""The command line: one small function per command. Importing this does not import torch."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="oddlm",
    help="Many different good answers out of diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


TaskName = Annotated[str, typer.Argument(help="A task (see `oddlm tasks`), a dotted path, or your own .jsonl file.")]
Protocol = Annotated[str | None, typer.Option(help="A named variant of the task, such as 'paper'.")]
Data = Annotated[Path | None, typer.Option(help="Read the problems from this JSONL file.")]
Limit = Annotated[int | None, typer.Option(help="The first so many problems.")]
ExcludeTrain = Annotated[bool, typer.Option("--exclude-train", help="Leave out problems of the training side (countdown).")]
ScorerName = Annotated[str | None, typer.Option(help="How your own .jsonl is scored: exact, number or python.")]
Unsafe = Annotated[bool, typer.Option("--unsafe-no-sandbox", help="Run model-written code WITHOUT protection.")]


def main() -> None:
    """Run the command line; what the user has to mend is shown in one line, without a traceback."""
    from .sandbox import SandboxError

    warnings.showwarning = lambda message, *_: typer.echo(f"oddlm: {message}", err=True)
    try:
        app()
    except (ValueError, SandboxError) as error:
        typer.echo(f"oddlm: {error}", err=True)
        raise SystemExit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"oddlm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None: ...


@app.command()
def demo(
    model: Annotated[str, typer.Option(help="mini, or toy (an untrained network, in seconds).")] = "mini",
    alpha: Annotated[float, typer.Option(help="Force of the repulsion.")] = 8.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0,
    seconds: Annotated[float, typer.Option(help="mini: begin no problem that would end later.")] = 150.0,
    picture: Annotated[Path, typer.Option(help="mini: where the Pass@k curves go.")] = Path("demo.png"),
    n: Annotated[int, typer.Option(help="toy: samples per setting.")] = 16,
    length: Annotated[int, typer.Option(help="toy: tokens per sample.")] = 24,
    steps: Annotated[int, typer.Option(help="toy: network evaluations.")] = 12,
) -> None:
    """Plain and ODD sampling side by side: Pass@16 on the mini model, or what happens to a batch of a toy network."""
    from .demo import run_demo, run_toy

    if model == "mini":
        run_demo(alpha=alpha, seed=seed, seconds=seconds, picture=picture)
    elif model == "toy":
        run_toy(n=n, length=length, steps=steps, alpha=alpha, seed=seed)
    else:
        raise ValueError(f"no demo for model {model!r}; known: mini, toy")


@app.command()
def names() -> None:
    """List the objectives, features, policies and schedules, with their options and defaults."""
    from rich.console import Console
    from rich.table import Table

    from .diversity.features import FEATURES
    from .diversity.guide import SCHEDULES
    from .diversity.objectives import OBJECTIVES
    from .policies import POLICIES

    table = Table("kind", "name", "options", "what it does", show_lines=False, pad_edge=False)
    for registry in (OBJECTIVES, FEATURES, POLICIES, SCHEDULES):
        for name in registry.names:
            options = ", ".join(f"{k}={v!r}" for k, v in registry.options(name).items())
            table.add_row(registry.kind, name, options, (registry.find(name).__doc__ or "").split("\n")[0])
        table.add_section()
    Console().print(table)


@app.command()
def tasks() -> None:
    """List the tasks, with their protocols."""
    from rich.console import Console
    from rich.table import Table

    from .tasks.base import KNOWN, describe, find_task

    table = Table("task", "protocols", "answer tokens", "what it asks", pad_edge=False)
    for name in KNOWN:
        task = find_task(name)
        table.add_row(name, ", ".join(task.protocols), str(task.length), describe(name))
    Console().print(table)


@app.command()
def problems(
    task: TaskName,
    protocol: Protocol = None,
    data: Data = None,
    limit: Limit = 3,
    exclude_train: ExcludeTrain = False,
    scorer: ScorerName = None,
    unsafe: Unsafe = False,
) -> None:
    """Show problems as a model sees them, with what they are scored against."""
    from rich.console import Console
    from rich.text import Text

    from .tasks import find_task

    chosen = find_task(task, scorer=scorer, unsafe=unsafe).under(protocol)
    console = Console()
    for problem in chosen.problems(data=data, limit=limit, exclude_train=exclude_train, unsafe=unsafe):
        console.rule(Text(problem.id))
        console.print(Text(chosen.prompt(problem)))
        console.print(Text(f"target: {problem.target}", style="dim"))


@app.command()
def score(
    task: TaskName,
    texts: Annotated[Path, typer.Option("--in", help='JSONL of answers: {"id": problem, "text": answer}.')],
    out: Annotated[Path | None, typer.Option(help="Write the answers with their scores to this JSONL.")] = None,
    protocol: Protocol = None,
    data: Data = None,
    limit: Limit = None,
    exclude_train: ExcludeTrain = False,
    scorer: ScorerName = None,
    unsafe: Unsafe = False,
    workers: Annotated[int, typer.Option(help="Answers scored at a time.", min=1)] = 2,
) -> None:
    """Score answers that you have; a problem may have any number of them."""
    from .tasks import find_task
    from .tasks.files import score_file

    chosen = find_task(task, scorer=scorer, unsafe=unsafe).under(protocol)
    known = chosen.problems(data=data, limit=limit, exclude_train=exclude_train, unsafe=unsafe)
    result = score_file(chosen, known, texts, out, workers)
    typer.echo(
        f"{result.correct} of {result.texts} answers right ({result.correct / result.texts:.1%}); "
        f"{result.solved} of {result.problems} problems with a right answer ({result.solved / result.problems:.1%})"
    )


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A recipe, such as recipes/mini/config.toml.")],
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, log and weights; a killed run goes on there.")],
    steps: Annotated[int | None, typer.Option(help="Instead of the recipe's.", min=1)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: a GPU where there is one.")] = None,
) -> None:
    """Train a model from a recipe, on one device, or on several with `torchrun --nproc-per-node N -m oddlm train ...`."""
    from .train import read_config
    from .train import train as run

    typer.echo(f"finished: {run(read_config(config, steps=steps), out, device=device)}")

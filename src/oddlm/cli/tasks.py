"""`oddlm tasks`, `oddlm problems` and `oddlm score`."""

from pathlib import Path
from typing import Annotated

import typer

from .app import MEASURING, app
from .options import WORK, Problems, Unsafe, check_out, grouped


@app.command(rich_help_panel=MEASURING)
def tasks(
    family: Annotated[
        str | None, typer.Argument(help="List the members of this task, such as reasoning_gym.")
    ] = None,
) -> None:
    """List the tasks, with their protocols and answer lengths.

    A protocol is a named variant of a task, such as the paper's prompt.

    Example: oddlm tasks

    Example: oddlm tasks reasoning_gym
    """
    from rich.table import Table

    from ..tasks.base import describe, find_task, task_names
    from .views import open_console

    if family is not None:
        members = find_task(family).family
        if members is None:
            raise ValueError(f"task {family!r} has no members; `oddlm tasks` lists its protocols")
        typer.echo("\n".join(f"{family}:{name}" for name in members.names()))
        return
    table = Table("task", "protocols", "answer tokens", "description", pad_edge=False)
    for name in task_names():
        task = find_task(name)
        table.add_row(name, ", ".join(task.protocols), str(task.length), describe(name))
    open_console().print(table)


@app.command(rich_help_panel=MEASURING)
@grouped
def problems(problems: Problems, unsafe: Unsafe = False) -> None:
    """Show problems as a model sees them, with the targets that answers are scored against.

    Without --limit the first three are shown.

    Example: oddlm problems countdown --limit 2
    """
    from rich.rule import Rule
    from rich.text import Text

    from ..text import one_line, visible
    from .views import open_console

    chosen, console = problems.find(), open_console()
    for problem in problems.load(unsafe=unsafe, limit=3):
        console.print(Rule(Text(one_line(problem.id))), width=min(console.width, 80))
        console.print(Text(visible(chosen.prompt(problem))))
        console.print(Text(visible(f"target: {problem.target}"), style="dim"))


@app.command(rich_help_panel=MEASURING)
@grouped
def score(
    problems: Problems,
    texts: Annotated[
        Path,
        typer.Option(
            "--in",
            metavar="FILE",
            help='JSONL file of answers: {"id": PROBLEM, "text": ANSWER}.',
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the answers with their scores to this file."),
    ] = None,
    unsafe: Unsafe = False,
    workers: Annotated[
        int, typer.Option(help="Answers scored at a time.", min=1, rich_help_panel=WORK)
    ] = 2,
) -> None:
    """Score answers from a file, wherever they come from.

    A problem may have any number of answers. The file that `oddlm generate` writes can be read as
    it is.

    Example: oddlm score own.jsonl --scorer number --in samples.jsonl --out scored.jsonl
    """
    from ..tasks import check_scoring
    from ..tasks.answers import score_file

    check_out(out)
    chosen = problems.find()
    check_scoring(chosen, unsafe=unsafe)
    result = score_file(chosen, problems.load(unsafe=unsafe), texts, out, workers)
    right, solved = result.correct / result.texts, result.solved / result.problems
    typer.echo(
        f"{result.correct} of {result.texts} answers right ({right:.1%}); {result.solved} of "
        f"{result.problems} problems with a right answer ({solved:.1%})"
    )

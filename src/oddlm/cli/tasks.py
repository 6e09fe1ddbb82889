"""`oddlm tasks`, `oddlm problems` and `oddlm score`."""

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .options import Problems, Unsafe, check_out, grouped


@app.command()
def tasks() -> None:
    """List the tasks, with their protocols."""
    from rich.table import Table

    from ..tasks.base import describe, find_task, task_names
    from .views import open_console

    table = Table("task", "protocols", "answer tokens", "what it asks", pad_edge=False)
    for name in task_names():
        task = find_task(name)
        table.add_row(name, ", ".join(task.protocols), str(task.length), describe(name))
    open_console().print(table)


@app.command()
@grouped
def problems(problems: Problems, unsafe: Unsafe = False) -> None:
    """Show problems as a model sees them, with what they are scored against; without --limit the
    first three.
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


@app.command()
@grouped
def score(
    problems: Problems,
    texts: Annotated[
        Path, typer.Option("--in", help='JSONL of answers: {"id": problem, "text": answer}.')
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write the answers with their scores to this JSONL.")
    ] = None,
    unsafe: Unsafe = False,
    workers: Annotated[int, typer.Option(help="Answers scored at a time.", min=1)] = 2,
) -> None:
    """Score answers that you have; a problem may have any number of them."""
    from ..tasks import check_scoring
    from ..tasks.answers import score_file

    check_out(out)
    chosen = problems.find()
    check_scoring(chosen, unsafe=unsafe)
    result = score_file(chosen, problems.load(unsafe=unsafe), texts, out, workers)
    typer.echo(
        f"{result.correct} of {result.texts} answers right ({result.correct / result.texts:.1%}); "
        f"{result.solved} of {result.problems} problems with a right answer ({result.solved / result.problems:.1%})"
    )

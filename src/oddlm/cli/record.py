"""`oddlm record`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import app
from .bar import problem_bar
from .options import MODEL, ModelName, ModelOptions, Protocol, Settings, Unsafe, grouped

if TYPE_CHECKING:
    from ..tasks import Problem, Task


@app.command()
@grouped
def record(
    setting: Settings,
    task: Annotated[
        str | None,
        typer.Argument(help="A task (see `oddlm tasks`) or a dotted path; or give --prompt."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="The folder to write; files of an earlier copy are replaced."),
    ] = Path("explorer"),
    prompt: Annotated[
        str | None, typer.Option(help="A prompt of your own; nothing scores its samples.")
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(help="The id of a problem (see `oddlm problems`). Repeatable."),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Without --problem: the first so many problems.", min=1)
    ] = 1,
    contrast: Annotated[
        int | None,
        typer.Option(
            help="Of those, only the first so many that plain sampling does not solve, with at most half as many different "
            "texts as samples, and that diverse sampling solves.",
            min=1,
        ),
    ] = None,
    protocol: Protocol = None,
    model: ModelName = MODEL,
    n: Annotated[int, typer.Option(help="Samples.", min=1)] = 8,
    unsafe: Unsafe = False,
    *,
    options: ModelOptions,
) -> None:
    """Record plain and diverse sampling of a problem, and write an explorer that shows it without a
    server.

    The folder holds a page to open from disk (index.html) or to put on any web server, and every
    recording as JSON, which the explorer of `oddlm serve` opens too.

    Example: oddlm record countdown --limit 40 --contrast 2 --temperature 0 --length 24 --steps 12
    --eos late --out explorer
    """
    from ..config import checked
    from ..params import SampleParams
    from ..text import number_of

    if (task is None) == (prompt is None):
        raise ValueError("give a task or --prompt TEXT, one of them")
    if prompt is not None and (problem or contrast or protocol):
        raise ValueError("--problem, --contrast and --protocol go with a task, not with --prompt")
    if (out.exists() and not out.is_dir()) or not out.absolute().parent.is_dir():
        raise ValueError(
            f"cannot write {out}: {'it is a file' if out.exists() else 'its parent folder does not exist'}"
        )
    chosen, problems = (
        (None, [None]) if task is None else _problems(task, protocol, problem, limit, unsafe)
    )
    usual = {"length": chosen.length} if chosen else {}
    params = checked(SampleParams, {**setting.params(**usual), "seed": setting.seed})
    prompts = (
        [prompt or ""]
        if chosen is None
        else [chosen.prompt(one) for one in problems if one is not None]
    )
    from ..explorer.recording import Recording, write_copy
    from ..explorer.recording import record as make
    from ..lm import load

    options.check(model, prompts, params.length)
    lm = load(model, **options.loading, **options.place)
    kept: list[Recording] = []
    stopped = False
    try:
        with problem_bar(len(prompts)) as tick:
            for text, one in zip(prompts, problems, strict=True):
                found = make(lm, model, text, n, params, chosen, one)
                if contrast is None or found.contrast:
                    kept.append(found)
                tick("recording", True)
                if len(kept) == contrast:
                    break
    except KeyboardInterrupt:
        stopped = True
        if not kept:
            raise
    if not kept:
        raise ValueError(
            f"none of {number_of(len(prompts), 'problem')} shows such a contrast: give a larger --limit or another --seed"
        )
    page = write_copy(out, kept)
    typer.echo(f"{'stopped; ' if stopped else ''}{number_of(len(kept), 'recording')}: {page}")
    if stopped:
        raise typer.Exit(130)


def _problems(
    name: str, protocol: str | None, ids: list[str] | None, limit: int, unsafe: bool
) -> "tuple[Task, list[Problem | None]]":
    from ..tasks import check_scoring, find_task

    task = find_task(name).under(protocol)
    check_scoring(task, unsafe=unsafe)
    if not ids:
        return task, [*task.problems(limit=limit, unsafe=unsafe)]
    known = {problem.id: problem for problem in task.problems(unsafe=unsafe)}
    for unknown in [one for one in ids if one not in known]:
        raise ValueError(
            f"task {task.name!r} has no problem {unknown!r}; `oddlm problems {name} --limit 10` shows some"
        )
    return task, [known[one] for one in ids]

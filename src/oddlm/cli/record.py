"""`oddlm record`: an explorer of recorded samples that needs no server."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from .app import DRAWING, app
from .bar import problem_bar
from .options import (
    MODEL,
    OUTPUT,
    PROBLEMS,
    SAMPLING,
    ModelName,
    ModelOptions,
    Protocol,
    Settings,
    Unsafe,
    grouped,
)

if TYPE_CHECKING:
    from ..tasks import Problem, Task


class RecordSettings(Settings):
    """One value for each setting; the length depends on whether there is a task."""

    usual: ClassVar[Mapping[str, str]] = {**Settings.usual, "length": "the task's, or 64"}


@app.command(rich_help_panel=DRAWING)
@grouped
def record(
    task: Annotated[
        str | None,
        typer.Argument(help="A task (see `oddlm tasks`) or a dotted path. Or give --prompt."),
    ] = None,
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder to write; files of an earlier recording are replaced.",
            rich_help_panel=OUTPUT,
        ),
    ] = Path("explorer"),
    prompt: Annotated[
        str | None,
        typer.Option(help="Your own prompt; its samples are not scored.", rich_help_panel=PROBLEMS),
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Id of a problem (see `oddlm problems`). Repeatable.",
            rich_help_panel=PROBLEMS,
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Without --problem: use the first N problems.",
            min=1,
            rich_help_panel=PROBLEMS,
        ),
    ] = 1,
    contrast: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Keep only the first N problems that diverse sampling solves and plain sampling "
            "does not, with at most half of the plain samples different.",
            min=1,
            rich_help_panel=PROBLEMS,
        ),
    ] = None,
    protocol: Protocol = None,
    n: Annotated[int, typer.Option(help="Samples to draw.", min=1, rich_help_panel=SAMPLING)] = 8,
    setting: RecordSettings,
    model: ModelName = MODEL,
    unsafe: Unsafe = False,
    options: ModelOptions,
) -> None:
    """Record plain and diverse sampling step by step, as a page that needs no server.

    The folder holds a page to open from disk (index.html) or to put on any web server, and every
    recording as JSON, which the explorer of `oddlm serve` opens, too.

    Example: oddlm record --prompt "73,32,7,19,28" --length 24 --steps 12 --eos late

    Example: oddlm record countdown --limit 40 --contrast 2 --temperature 0 --length 24 --eos late
    """
    from ..config import checked
    from ..params import SampleParams
    from ..text import number_of

    if (task is None) == (prompt is None):
        raise ValueError("give either a task or --prompt TEXT")
    if prompt is not None and (problem or contrast or protocol):
        raise ValueError("--problem, --contrast and --protocol go with a task, not with --prompt")
    if (out.exists() and not out.is_dir()) or not out.absolute().parent.is_dir():
        reason = "it is a file" if out.exists() else "its parent folder does not exist"
        raise ValueError(f"cannot write {out}: {reason}")
    chosen, problems = (
        (None, [None]) if task is None else _problems(task, protocol, problem, limit, unsafe)
    )
    usual = chosen.defaults if chosen else {}
    params = checked(SampleParams, {**setting.params(**usual), "seed": setting.seed})
    prompts = (
        [prompt or ""]
        if chosen is None
        else [chosen.prompt(given) for given in problems if given is not None]
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
            for text, given in zip(prompts, problems, strict=True):
                found = make(lm, model, text, n, params, chosen, given)
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
            f"none of {number_of(len(prompts), 'problem')} shows such a contrast: "
            "give a larger --limit or another --seed"
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
            f"task {task.name!r} has no problem {unknown!r}; "
            f"`oddlm problems {name} --limit 10` shows some"
        )
    return task, [known[one] for one in ids]

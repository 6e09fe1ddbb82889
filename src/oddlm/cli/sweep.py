"""`oddlm sweep`: all the runs of a file."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..text import number_of
from .app import app, complain
from .bar import status_line
from .carry_out import run, tell_trouble
from .options import MaxBatch, Unsafe, Work, grouped

if TYPE_CHECKING:
    from ..experiments.run import Plan
    from ..experiments.work import Options
    from ..store import Stage, Store


@app.command()
@grouped
def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML of grids, such as grids/mini.toml.")],
    work: Work,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where models that have a choice are put: cuda (local workers take GPUs in turn), or auto: over all GPUs."
        ),
    ] = None,
    max_batch: MaxBatch = None,
    compiled: Annotated[
        str | None,
        typer.Option(
            help="Compile models that can be: fixed (for each shape) or any (one for all shapes)."
        ),
    ] = None,
    only: Annotated[
        Literal["draw", "score"] | None,
        typer.Option(
            help="One stage alone: draw the samples here, and score them later or on another machine."
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Only every N-th run, from the I-th: machines with 1/N ... N/N share a sweep without Ray. "
            "Their stores are merged by copying the folders of the runs into one.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK=FILE", help="Read the problems of a task from this file. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what there is to do and how long it will take, and run nothing."
        ),
    ] = False,
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration/--no-calibration",
            help="With --dry-run: load the model and time some problems.",
        ),
    ] = True,
    unsafe: Unsafe = False,
) -> None:
    """Run every setting of a grid on its tasks: on one core, on GPUs, or on a Ray cluster, with the
    same records.

    Records are stored problem by problem, and the same command resumes where it was stopped. A
    problem that fails does not stop the sweep: it is noted with its traceback in the run's
    failures.jsonl, listed at the end (exit status 1), and tried again next time. Workers that die,
    or hang (--executor local:timeout=SECONDS), are replaced.

    Example: oddlm sweep grids/smoke.toml --workers 2
    """
    from ..experiments.grid import read_grid
    from ..experiments.grid import shard as part_of
    from ..experiments.run import BOTH, make_plan
    from ..experiments.work import Options
    from ..store import Store

    runs = read_grid(file, _files(data or ()))
    part = _shard(shard)
    stages: Sequence[Stage] = (only,) if only else BOTH
    with status_line("looking for the models"):
        plan = make_plan(
            part_of(runs, *part) if part else runs, unsafe=unsafe, only_look=dry_run, stages=stages
        )
    place: dict[str, Any] = {"device": device, "max_batch": max_batch, "compiled": compiled}
    if dry_run:
        _foretell(plan, Store(work.store), Options(**place) if calibration else None, work, stages)
        return
    executor = work.find("local", **place, keep_tokens=work.keep_tokens)
    result = run(plan, work.store, executor, work.together, stages, work.track)
    kind = {"draw": "drawn", "score": "scored"}[only] if only else "complete"
    count = f"{result.complete} of {len(plan.runs)} runs are {kind}"
    typer.echo(f"{count} in {work.store}: `oddlm runs --store {work.store}` lists them")
    tell_trouble(plan, result, work.store)


def _files(given: Sequence[str]) -> Mapping[str, Path]:
    pairs = [text.partition("=") for text in given]
    for (task, _, file), text in zip(pairs, given, strict=True):
        if not task or not file:
            raise ValueError(f"--data takes TASK=FILE, not {text!r}")
    return {task: Path(file) for task, _, file in pairs}


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    part, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part <= parts:
        raise ValueError(f"--shard takes I/N with I from 1 to N, such as 2/5, not {text!r}")
    return part, parts


def _foretell(
    plan: "Plan", store: "Store", options: "Options | None", work: Work, stages: "Sequence[Stage]"
) -> None:
    found = plan.survey(store, stages)
    for message in found.damaged:
        complain(message)
    problems = sum({id(run.problems): len(run.problems) for run in plan.runs}.values())
    tasks = ", ".join(dict.fromkeys(str(run.spec.task) for run in plan.runs))
    typer.echo(
        f"{number_of(len(plan.runs), 'run')} on {number_of(problems, 'problem')} ({tasks}): "
        f"{number_of(plan.units, 'group')}, {number_of(plan.samples, 'sample')}"
    )
    typer.echo(
        f"in {store.folder}: {number_of(found.complete, 'run')} complete, {number_of(found.units, 'group')} done, "
        f"{plan.units - found.units} to do"
    )
    for why in plan.unknown:
        complain(f"runs that the store may hold of this model are not counted: {why}")
    if options is not None and found.units < plan.units:
        from ..experiments.calibrate import estimate

        workers = work.workers or 1
        seconds, timed = estimate(plan, store, options, work.together)
        told = f"about {timedelta(seconds=round(seconds / workers))} (h:mm:ss) with {number_of(workers, 'worker')}"
        typer.echo(
            f"{told}, from {number_of(timed, 'group')} timed here with {work.together} at a time"
        )

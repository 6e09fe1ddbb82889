"""`oddlm sweep`: all runs of a grid file."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..text import number_of
from .app import MEASURING, app, complain
from .bar import status_line
from .carry_out import busy_line, report_trouble, run
from .options import NETWORK, PROBLEMS, WORK, FailFast, MaxBatch, Unsafe, Work, grouped

if TYPE_CHECKING:
    from ..experiments.plan import Plan
    from ..experiments.work import Options
    from ..store import Stage, Store

DRY_RUN = "Dry-run options"


@app.command(rich_help_panel=MEASURING)
@grouped
def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file of grids, such as grids/mini.toml.")],
    *,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print how much there is to do and how long it will take; run nothing.",
            rich_help_panel=DRY_RUN,
        ),
    ] = False,
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration/--no-calibration",
            help="With --dry-run: load the model and time some problems.",
            show_default="--calibration",
            rich_help_panel=DRY_RUN,
        ),
    ] = True,
    only: Annotated[
        Literal["draw", "score"] | None,
        typer.Option(
            metavar="draw|score",
            help="Run one stage only: draw the samples here, and score them later or on another "
            "machine.",
            rich_help_panel=WORK,
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Run only every N-th run, from the I-th. Machines with 1/N to N/N share a sweep; "
            "copy the folders of their runs into one store to merge them.",
            rich_help_panel=WORK,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK=FILE",
            help="Read the problems of a task from this file. Repeatable.",
            rich_help_panel=PROBLEMS,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where to put models: cpu, cuda (local workers take GPUs in turn), or auto "
            "(spread over all GPUs).",
            show_default="a GPU, if there is one",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    max_batch: MaxBatch = None,
    compiled: Annotated[
        str | None,
        typer.Option(
            metavar="fixed|any",
            help="Compile models that support it: once per shape (fixed) or once for all (any).",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    work: Work,
    fail_fast: FailFast = False,
    unsafe: Unsafe = False,
) -> None:
    """Run every setting of a grid on its tasks: on one core, several GPUs or a Ray cluster.

    Records are the same wherever they are made. They are stored problem by problem, and the same
    command resumes where it was stopped. A problem that fails does not stop the sweep: it is
    written with its traceback to the run's failures.jsonl, listed at the end (exit status 1), and
    tried again next time. Workers that die, or hang (--executor local:timeout=SECONDS), are
    replaced.

    Example: oddlm sweep grids/smoke.toml --dry-run

    Example: oddlm sweep grids/smoke.toml --workers 2
    """
    from ..experiments.grid import read_grid
    from ..experiments.grid import shard as part_of
    from ..experiments.plan import BOTH, make_plan
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
        _print_estimate(
            plan, Store(work.store), Options(**place) if calibration else None, work, stages
        )
        return
    executor = work.find("local", **place, keep_tokens=work.keep_tokens)
    result = run(plan, work.store, executor, work.together, stages, work.track, fail_fast=fail_fast)
    kind = {"draw": "drawn", "score": "scored"}[only] if only else "complete"
    count = f"{result.complete} of {len(plan.runs)} runs are {kind}"
    typer.echo(f"{count} in {work.store}: `oddlm runs --store {work.store}` lists them")
    if busy := busy_line(result):
        typer.echo(busy)
    report_trouble(plan, result, work.store)


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


def _print_estimate(
    plan: "Plan", store: "Store", options: "Options | None", work: Work, stages: "Sequence[Stage]"
) -> None:
    """Print how much there is to do and, if options are given, how long it will take."""
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
        f"in {store.folder}: {number_of(found.complete, 'run')} complete, "
        f"{number_of(found.units, 'group')} done, {plan.units - found.units} to do"
    )
    for why in plan.unknown:
        complain(f"stored runs of this model are not counted: {why}")
    if options is not None and found.units < plan.units:
        from ..experiments.calibrate import estimate

        workers = work.workers or 1
        seconds, timed = estimate(plan, store, options, work.together)
        duration = timedelta(seconds=round(seconds / workers))
        typer.echo(
            f"about {duration} (h:mm:ss) with {number_of(workers, 'worker')}, from "
            f"{number_of(timed, 'group')} timed here with {work.together} at a time"
        )

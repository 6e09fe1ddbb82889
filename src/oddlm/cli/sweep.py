"""`oddlm sweep`: all the runs of a file."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .app import app, complain
from .bar import Tick, problem_bar, status_line
from .options import KeepTokens, MaxBatch, StoreFolder, Track, Unsafe
from .runs import FOLDER

if TYPE_CHECKING:
    from ..experiments.sweep import Plan, Result
    from ..experiments.work import Executor, Options
    from ..params import RunSpec
    from ..store import Store

SHOWN = 20  # failures


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML of grids, such as experiments/mini.toml.")],
    store: StoreFolder = FOLDER,
    executor: Annotated[Literal["local", "ray"], typer.Option(help="Processes here, or actors of a Ray cluster.")] = "local",
    workers: Annotated[
        int | None,
        typer.Option(help="Copies of the model. Default: 1 here; on Ray one per GPU, or per CPU without GPUs.", min=1),
    ] = None,
    address: Annotated[str, typer.Option(help="Ray: HOST:PORT of the cluster; 'auto' is the one this machine is in.")] = "auto",
    device: Annotated[
        str | None,
        typer.Option(
            help="Where models that have a choice are put: cuda (local workers take GPUs in turn), or auto: over all GPUs."
        ),
    ] = None,
    together: Annotated[
        int,
        typer.Option(help="Problems denoised at a time by a worker: many on a GPU. As many are lost with a killed one.", min=1),
    ] = 1,
    max_batch: MaxBatch = None,
    scorers: Annotated[int, typer.Option(help="Answers scored at a time by each worker, while it draws others.", min=1)] = 2,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Kill and replace a worker that needs longer for a batch, as one that died; loading the model counts.  "
            "[default: none]",
            min=0.001,
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
        typer.Option(metavar="TASK=FILE", help="Read the problems of a task from this file. Repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is to do and how long it will take, and run nothing.")
    ] = False,
    calibration: Annotated[
        bool, typer.Option("--calibration/--no-calibration", help="With --dry-run: load the model and time some problems.")
    ] = True,
    keep_tokens: KeepTokens = False,
    track: Track = None,
    unsafe: Unsafe = False,
) -> None:
    """Run every setting of a grid on its tasks: on one core, on GPUs, or on a Ray cluster, with the same rows.

    Rows are stored problem by problem, and the same command goes on where it was stopped. A problem that fails does not stop
    the sweep: it is noted with its traceback in the run's failures.jsonl, listed at the end (exit status 1), and tried again
    next time. Workers that die, or hang (--timeout), are replaced.

    Example: oddlm sweep experiments/smoke.toml --workers 2
    """
    from ..experiments.grid import read_grid
    from ..experiments.grid import shard as part_of
    from ..experiments.sweep import make_plan, run_sweep
    from ..experiments.work import Options
    from ..store import Store
    from ..trackers import tracking

    specs = read_grid(file, _files(data or ()))
    part = _shard(shard)
    with status_line("looking for the models"):
        plan = make_plan(part_of(specs, *part) if part else specs, unsafe=unsafe, only_look=dry_run)
    options = Options(device=device, max_batch=max_batch, scorers=scorers, keep_tokens=keep_tokens)
    if dry_run:
        _foretell(plan, Store(store), options if calibration else None, workers or 1, together)
        return
    Store(store).check()
    chosen = _executor(executor, options, workers, address, timeout)
    try:
        with tracking(track or (), store) as tracker, problem_bar(plan.units) as tick:
            result = run_sweep(plan, Store(store), chosen, together=together, tracker=tracker, watch=_watch(tick))
    except KeyboardInterrupt:
        done = plan.survey(Store(store)).units
        typer.echo(
            f"oddlm: stopped; {done} of {plan.units} problems are in {store}. The same command goes on from there.", err=True
        )
        raise typer.Exit(130) from None
    _tell(plan, result, store)


def _executor(name: str, options: "Options", workers: int | None, address: str, timeout_s: float | None) -> "Executor":
    if name == "ray":
        from ..experiments.ray import RayExecutor

        return RayExecutor(options, workers, address, timeout_s)
    from ..experiments.local import LocalExecutor

    return LocalExecutor(options, workers or 1, timeout_s)


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


def _watch(tick: Tick) -> "Callable[[RunSpec, int, bool], None]":
    from ..views import label

    return lambda spec, count, fresh: tick(f"{spec.task}, {label(spec.params)}, seed {spec.seed}", fresh, count)


def _foretell(plan: "Plan", store: "Store", options: "Options | None", workers: int, together: int) -> None:
    from ..wording import number_of

    found = plan.survey(store)
    for message in found.damaged:
        complain(message)
    problems = sum(len(some) for some in plan.problems.values())
    tasks = ", ".join(dict.fromkeys(str(spec.task) for spec in plan.specs))
    typer.echo(
        f"{number_of(len(plan.specs), 'run')} on {number_of(problems, 'problem')} ({tasks}): "
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

        seconds, timed = estimate(plan, store, options, together)
        told = f"about {timedelta(seconds=round(seconds / workers))} (h:mm:ss) with {number_of(workers, 'worker')}"
        typer.echo(f"{told}, from {number_of(timed, 'group')} timed here with {together} at a time")


def _tell(plan: "Plan", result: "Result", store: Path) -> None:
    typer.echo(f"{result.complete} of {len(plan.specs)} runs are complete in {store}: `oddlm runs --store {store}` lists them")
    for message in result.damaged:
        complain(message)
    if result.failures:
        _tell_failures(plan, result, store)
    if result.damaged or result.failures:
        raise typer.Exit(1)


def _tell_failures(plan: "Plan", result: "Result", store: Path) -> None:
    typer.echo(f"oddlm: {len(result.failures)} of {plan.units} problems failed; the same command tries them again:", err=True)
    for spec, failure in result.failures[:SHOWN]:
        typer.echo(f"  {store / spec.id / 'failures.jsonl'}: {failure.problem}: {failure.error}", err=True)
    if len(result.failures) > SHOWN:
        typer.echo(f"  and {len(result.failures) - SHOWN} more", err=True)

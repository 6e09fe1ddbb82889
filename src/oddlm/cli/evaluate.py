"""`oddlm eval` and `oddlm draw`: run settings on a task, with scores or without."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import MEASURING, app
from .bar import status_line
from .carry_out import busy_line, carry_out, report_trouble
from .options import (
    MODEL,
    OUTPUT,
    FailFast,
    Grid,
    JsonFile,
    ModelName,
    ModelOptions,
    Problems,
    Split,
    Unsafe,
    Work,
    check_out,
    grouped,
    listed,
)

if TYPE_CHECKING:
    from ..experiments.plan import Plan
    from ..report.compare import Done, Embed
    from ..store import Stage
    from ..tasks import Task


@app.command("eval", rich_help_panel=MEASURING)
@grouped
def evaluate(
    problems: Problems,
    grid: Grid,
    work: Work,
    model: ModelName = MODEL,
    split: Split = None,
    metrics: Annotated[
        str,
        typer.Option(help="Diversity measures to show, comma-separated.", rich_help_panel=OUTPUT),
    ] = "distinct_texts",
    embed: Annotated[
        bool,
        typer.Option(
            "--embed",
            help="Measure diversity by sentence embeddings, too (extra 'embeddings'; slower).",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    show: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Print the samples of the first N problems side by side.",
            min=0,
            rich_help_panel=OUTPUT,
        ),
    ] = 0,
    json_out: JsonFile = None,
    fail_fast: FailFast = False,
    unsafe: Unsafe = False,
    *,
    options: ModelOptions,
) -> None:
    """Measure settings on a task, each next to plain sampling with the same noise.

    Sampling and diversity options take comma-separated values; every combination runs once per
    seed. Results are stored problem by problem: the same command resumes where it was stopped, and
    a larger --limit adds problems. Nothing is drawn twice.

    Example: oddlm eval countdown --n 8 --alpha 0,16 --limit 5

    Example: oddlm eval own.jsonl --scorer number --preset auto,paper --temperature 0,1
    """
    from ..experiments.plan import BOTH
    from ..store import Store

    shown = _metrics(metrics)
    check_out(json_out)
    chosen, plan = _plan(problems, grid, model, split, options, unsafe, BOTH)
    embedder = _embedder() if embed else None  # fails before anything is computed
    result = carry_out(plan, work, options, BOTH, fail_fast=fail_fast)
    failed = {failure.problem for _, failure in result.failures}
    if len(failed) < len(plan.runs[0].problems) and not result.damaged:
        done = [(run.spec, run.records(Store(work.store))) for run in plan.runs]
        by_run = ({record.problem for record in records} for _, records in done)
        shared = set.intersection(*by_run) - failed
        kept: list[Done] = [
            (spec, [record for record in records if record.problem in shared])
            for spec, records in done
        ]
        _report(kept, chosen, grid.n, shown, show, json_out, embedder)
        if busy := busy_line(result):
            typer.echo(busy)
    report_trouble(plan, result, work.store)


@app.command(rich_help_panel=MEASURING)
@grouped
def draw(
    problems: Problems,
    grid: Grid,
    work: Work,
    model: ModelName = MODEL,
    split: Split = None,
    *,
    options: ModelOptions,
) -> None:
    """Draw the samples of `oddlm eval` without scoring them; no sandbox is needed.

    The ids of the runs are printed. Score them later with `oddlm runs score`, here or wherever the
    store is copied to; `oddlm eval` with the same options scores and compares them.

    Example: oddlm draw countdown --n 8 --alpha 0,16 --limit 5
    """
    _, plan = _plan(problems, grid, model, split, options, False, ("draw",))
    result = carry_out(plan, work, options, ("draw",))
    for run in plan.runs:
        typer.echo(run.spec.id)
    report_trouble(plan, result, work.store)


def _plan(
    problems: Problems,
    grid: Grid,
    model: str,
    split: str | None,
    options: ModelOptions,
    unsafe: bool,
    stages: "Sequence[Stage]",
) -> "tuple[Task, Plan]":
    """Return the task and a plan of all settings; raise ValueError before the model is loaded."""
    from ..config import checked
    from ..experiments.grid import Wanted
    from ..experiments.plan import check_spec, make_plan
    from ..spec import RunSpec

    chosen = problems.find()
    shared = {**problems.spec(), "model": model, "loading": options.loading}
    shared |= {"split": split, "n": grid.n}
    specs = [
        checked(RunSpec, {**shared, "params": params, "seed": seed})
        for params in grid.combinations(chosen)
        for seed in grid.seeds
    ]
    for spec in specs:
        check_spec(spec)
    options.check(model)  # fails at once; reading data may take long
    with status_line(f"reading the problems of {problems.task}"):
        plan = make_plan(
            [Wanted(spec, problems.limit) for spec in specs], unsafe=unsafe, stages=stages
        )
    prompts = [chosen.prompt(problem) for problem in plan.runs[0].problems]
    options.check(model, prompts, specs[0].params.length)
    return chosen, plan


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _metrics(text: str) -> list[str]:
    from ..metrics import BATCH_METRICS

    names = listed("metrics", text, _name) if text else []
    for name in [name for name in names if name not in BATCH_METRICS]:
        raise ValueError(f"unknown metric {name!r}; known: {', '.join(BATCH_METRICS)}")
    return names


def _embedder() -> Any:
    from ..metrics.embedding import load_embedder

    return load_embedder()


def _report(
    done: "list[Done]",
    task: "Task",
    n: int,
    shown: Sequence[str],
    show: int,
    json_out: Path | None,
    embed: "Embed | None",
) -> None:
    from ..files import write_whole
    from ..metrics import BESIDE
    from ..report.compare import as_data, compare, covered
    from ..text import named, number_of
    from .views import label, open_console, results, side_by_side

    console = open_console()
    first = done[0][0]
    for i in range(min(show, len(done[0][1]))):
        columns = [
            (label(spec.params), records[i]) for spec, records in done if spec.seed == first.seed
        ]
        console.print(side_by_side(columns, console.width))
    beside = json_out is not None or embed is not None or not set(shown).isdisjoint(BESIDE)
    with status_line("comparing texts"):
        lines = compare(done, beside=beside, embed=embed)
    seeds = sorted({spec.seed for spec, _ in done})
    console.print(results(lines, n, shown))
    problems = number_of(len(done[0][1]), "problem")
    console.print(
        f"{task.name}, {first.model}: {problems}, {number_of(n, 'sample')} each, "
        f"{named('seed', seeds)}. Percentages; Pass@1 is the share of correct samples. "
        f"Differences are in Pass@{n}, paired by problem. "
        f"All settings and seeds together solve {number_of(covered(done), 'problem')}.",
        style="dim",
        highlight=False,
        markup=False,
    )
    if json_out is not None:
        content = {"task": task.name, "model": first.model, "n": n, "problems": len(done[0][1])}
        content |= {"seeds": seeds, "covered": covered(done)}
        content["settings"] = [as_data(line) for line in lines]
        write_whole(json_out, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")

"""`oddlm eval` and `oddlm draw`: settings of a model on a benchmark, beside plain sampling, or
their samples alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app
from .bar import status_line
from .carry_out import carry_out, tell_trouble
from .options import (
    MODEL,
    Grid,
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
    from ..experiments.run import Plan
    from ..report.compare import Done, Embed
    from ..store import Stage
    from ..tasks import Task


@app.command("eval")
@grouped
def evaluate(
    problems: Problems,
    grid: Grid,
    work: Work,
    model: ModelName = MODEL,
    split: Split = None,
    metrics: Annotated[
        str, typer.Option(help="Measures of diversity to show, comma-separated.")
    ] = "distinct_texts",
    embed: Annotated[
        bool,
        typer.Option(
            "--embed",
            help="Measure diversity by sentence embeddings too (extra 'embeddings'; slower).",
        ),
    ] = False,
    show: Annotated[
        int, typer.Option(help="Print the samples of so many problems side by side.", min=0)
    ] = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this file.")
    ] = None,
    unsafe: Unsafe = False,
    *,
    options: ModelOptions,
) -> None:
    """Measure settings of a sampler on a task, each beside plain sampling with the same noise.

    Sampling and diversity options take comma-separated values; all combinations run, once per seed. What is done is
    stored problem by problem, so that the same command resumes where it was stopped, and one with a
    larger --limit adds to it; nothing is drawn twice.

    Example: oddlm eval countdown --n 8 --alpha 0,16 --limit 5
    """
    from ..experiments.run import BOTH
    from ..store import Store

    shown = _metrics(metrics)
    check_out(json_out)
    chosen, plan = _plan(problems, grid, model, split, options, unsafe, BOTH)
    embedder = (
        _embedder() if embed else None
    )  # what cannot be had is told before anything is computed
    result = carry_out(plan, work, options, BOTH)
    failed = {failure.problem for _, failure in result.failures}
    if len(failed) < len(plan.runs[0].problems) and not result.damaged:
        done = [(run.spec, run.records(Store(work.store))) for run in plan.runs]
        everywhere = (
            set.intersection(*({record.problem for record in records} for _, records in done))
            - failed
        )
        kept: list[Done] = [
            (spec, [one for one in records if one.problem in everywhere]) for spec, records in done
        ]
        _report(kept, chosen, grid.n, shown, show, json_out, embedder)
    tell_trouble(plan, result, work.store)


@app.command()
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
    """Draw the samples of `oddlm eval` and score none: no program is run, and no sandbox needed.

    Scoring is `oddlm runs score RUN`, here or where the store was copied to; `oddlm eval` with the
    same options scores and compares them.

    Example: oddlm draw countdown --n 8 --alpha 0,16 --limit 5
    """
    _, plan = _plan(problems, grid, model, split, options, False, ("draw",))
    result = carry_out(plan, work, options, ("draw",))
    for run in plan.runs:
        typer.echo(run.spec.id)
    tell_trouble(plan, result, work.store)


def _plan(
    problems: Problems,
    grid: Grid,
    model: str,
    split: str | None,
    options: ModelOptions,
    unsafe: bool,
    stages: "Sequence[Stage]",
) -> "tuple[Task, Plan]":
    """The task and the plan of all settings; what cannot be run is refused before the model is
    loaded.
    """
    from ..config import checked
    from ..experiments.grid import Wanted
    from ..experiments.run import check_spec, make_plan
    from ..spec import RunSpec

    chosen = problems.find()
    what = {
        **problems.spec(),
        "model": model,
        "loading": options.loading,
        "split": split,
        "n": grid.n,
    }
    specs = [
        checked(RunSpec, {**what, "params": one, "seed": seed})
        for one in grid.combinations(chosen)
        for seed in grid.seeds
    ]
    for spec in specs:
        check_spec(spec)
    options.check(model)  # it fails in a moment, where data may take long
    with status_line(f"reading the problems of {problems.task}"):
        plan = make_plan(
            [Wanted(spec, problems.limit) for spec in specs], unsafe=unsafe, stages=stages
        )
    options.check(
        model, [chosen.prompt(problem) for problem in plan.runs[0].problems], specs[0].params.length
    )
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
    console.print(
        f"{task.name}, {first.model}: {number_of(len(done[0][1]), 'problem')}, {number_of(n, 'sample')} each, "
        f"{named('seed', seeds)}. "
        f"Percent; Pass@1 is the share of right samples. Difference in Pass@{n}, paired by problem. "
        f"All settings and seeds together solve {number_of(covered(done), 'problem')}.",
        style="dim",
        highlight=False,
        markup=False,
    )
    if json_out is not None:
        head = {
            "task": task.name,
            "model": first.model,
            "n": n,
            "problems": len(done[0][1]),
            "seeds": seeds,
        }
        head["covered"] = covered(done)
        content = json.dumps(
            {**head, "settings": [as_data(line) for line in lines]}, indent=2, allow_nan=False
        )
        write_whole(json_out, content.encode() + b"\n")

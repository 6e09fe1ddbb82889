"""`oddlm eval`: settings of a model on a benchmark, beside plain sampling."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..presets import ALPHA, TEMPERATURE
from .app import app
from .bar import Tick, problem_bar, status_line
from .options import (
    MODEL,
    OWN,
    Data,
    ExcludeTrain,
    KeepTokens,
    Length,
    Limit,
    ModelName,
    ModelOptions,
    Protocol,
    ScorerName,
    Settings,
    Split,
    Steps,
    StoreFolder,
    TaskName,
    Together,
    Track,
    Unsafe,
    check_out,
    listed,
    present,
    settings,
    takes_model,
)
from .runs import FOLDER

if TYPE_CHECKING:
    from ..compare import Done, Embed
    from ..params import RunSpec
    from ..store import Row
    from ..tasks import Task


@app.command("eval")
@takes_model
def evaluate(
    task: TaskName,
    model: ModelName = MODEL,
    n: Annotated[int, typer.Option(help="Samples per problem.", min=1)] = 16,
    alpha: Annotated[
        str | None,
        typer.Option(
            help=f"Forces of the push, comma-separated; plain sampling always runs.  [default: the preset's or {ALPHA:g}]"
        ),
    ] = None,
    temperature: Annotated[
        str | None,
        typer.Option(help=f"Temperatures, comma-separated; 0 is the argmax.  [default: {TEMPERATURE:g}]"),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="What pushes samples apart, comma-separated: see `oddlm names`.  [default: the preset's or auto]"),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Each setting runs once per seed.")] = "0",
    limit: Limit = None,
    data: Data = None,
    protocol: Protocol = None,
    scorer: ScorerName = None,
    exclude_train: ExcludeTrain = False,
    split: Split = None,
    length: Length = None,
    steps: Steps = None,
    set_: Settings = None,
    metrics: Annotated[str, typer.Option(help="Measures of diversity to show, comma-separated.")] = "distinct_texts",
    embed: Annotated[
        bool, typer.Option("--embed", help="Measure diversity by sentence embeddings too (extra 'embeddings'; slower).")
    ] = False,
    show: Annotated[int, typer.Option(help="Print the samples of so many problems side by side.", min=0)] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
    store: StoreFolder = FOLDER,
    workers: Annotated[int, typer.Option(help="Answers scored at a time.", min=1)] = 2,
    together: Together = 1,
    keep_tokens: KeepTokens = False,
    track: Track = None,
    unsafe: Unsafe = False,
    *,
    options: ModelOptions,
) -> None:
    """Measure settings of a sampler on a task, each beside plain sampling with the same noise.

    All combinations of --alpha, --temperature and --objective run once per seed. What is done is stored problem by problem, so
    that the same command goes on where it was stopped; settings that are complete are not run again.

    Example: oddlm eval countdown --n 8 --alpha 0,16 --limit 5
    """
    from ..evaluate import Runner, check_spec
    from ..store import Store
    from ..tasks import find_task
    from ..trackers import followed, tracking

    shown = _metrics(metrics)
    check_out(json_out)
    chosen = find_task(task, scorer=scorer).under(protocol)
    fixed = settings(set_, OWN) | present(length=length or chosen.length, steps=steps or chosen.steps)
    axes = _axes(alpha, temperature, objective)
    what = {
        "model": model,
        "loading": options.loading,
        "task": task,
        "protocol": protocol,
        "scorer": scorer,
        "exclude_train": exclude_train,
        "split": split,
    }
    specs = _specs(what | {"n": n, "limit": limit}, data, fixed, axes, listed("seeds", seeds, int))
    for spec in specs:
        check_spec(spec)
    options.check(model)  # it fails in a moment, where data may take long
    with status_line(f"reading the problems of {task}"):
        problems = chosen.problems(data=data, limit=limit, exclude_train=exclude_train, split=split, unsafe=unsafe)
    shape = ([chosen.prompt(problem) for problem in problems], specs[0].params.length)
    digest = options.digest(model, *shape)
    specs = [spec.model_copy(update={"model_digest": digest}) for spec in specs]
    runner = Runner(
        Store(store),
        options.loader(model, *shape),
        workers=workers,
        together=together,
        keep_tokens=keep_tokens,
    )
    embedder = _embedder() if embed else None  # what cannot be had is told before anything is computed
    runner.store.check()
    done: list[Done] = []
    try:
        with tracking(track or (), store) as tracker, problem_bar(len(specs) * len(problems)) as tick:
            for spec in specs:
                with followed(tracker, runner.store, spec, len(problems), _watch(spec, tick)) as watch:
                    rows = runner.run(spec, chosen, problems, watch)
                done.append((spec, rows))
    except KeyboardInterrupt:
        message = f"stopped; {len(done)} of {len(specs)} runs are complete in {store}, one may be half done"
        typer.echo(f"oddlm: {message}. The same command goes on from there.", err=True)
        raise typer.Exit(130) from None
    _report(done, chosen, n, shown, show, json_out, embedder)


def _axes(alpha: str | None, temperature: str | None, objective: str | None) -> dict[str, list[Any]]:
    """What runs in all combinations."""
    axes: dict[str, list[Any]] = {}
    if temperature is not None:
        axes["temperature"] = listed("temperature", temperature, float)
    if objective is not None:
        axes["objective"] = _objectives(objective)
    if alpha is not None:
        axes["alpha"] = listed("alpha", alpha, float)
    return axes


def _objectives(text: str) -> list[Any]:
    """Names, or one in JSON with its options."""
    from ..params import json_or_text

    return [json_or_text(text)] if text.startswith("{") else listed("objective", text, _name)


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
    from ..embedding import load_embedder

    return load_embedder()


def _specs(what: dict[str, Any], data: Path | None, fixed: Any, axes: Any, seeds: Sequence[int]) -> "list[RunSpec]":
    from ..compare import grid
    from ..params import RunSpec, checked
    from ..tasks.data import file_fields

    what |= file_fields(what["task"], data)
    return [
        checked(RunSpec, {**what, "params": params, "seed": seed})
        for params in grid(fixed, axes)
        for seed in dict.fromkeys(seeds)
    ]


def _watch(spec: "RunSpec", tick: Tick) -> "Callable[[Row, bool], None]":
    """Moves the bar on, with Pass@n as it stands."""
    from ..views import label

    solved: list[bool] = []

    def watch(row: "Row", fresh: bool) -> None:
        solved.append(any(row.correct))
        share = 100 * sum(solved) / len(solved)
        tick(f"{label(spec.params)} seed {spec.seed}: Pass@{spec.n} {share:.0f} %", fresh)

    return watch


def _report(
    done: "list[Done]", task: "Task", n: int, shown: Sequence[str], show: int, json_out: Path | None, embed: "Embed | None"
) -> None:
    from ..compare import as_data, compare, covered
    from ..files import write_whole
    from ..metrics import BESIDE
    from ..views import label, open_console, results, side_by_side
    from ..wording import named, number_of

    console = open_console()
    first = done[0][0]
    for i in range(min(show, len(done[0][1]))):
        columns = [(label(spec.params), rows[i]) for spec, rows in done if spec.seed == first.seed]
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
        head = {"task": task.name, "model": first.model, "n": n, "problems": len(done[0][1]), "seeds": seeds}
        head["covered"] = covered(done)
        content = json.dumps({**head, "settings": [as_data(line) for line in lines]}, indent=2, allow_nan=False)
        write_whole(json_out, content.encode() + b"\n")

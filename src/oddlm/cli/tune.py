"""`oddlm tune`: the best settings of a sampler for a task and a model."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .app import app
from .bar import Tick, problem_bar, status_line
from .options import (
    MODEL,
    FixedSettings,
    ModelName,
    ModelOptions,
    Problems,
    Unsafe,
    Work,
    check_out,
    grouped,
    listed,
    present,
)

if TYPE_CHECKING:
    import optuna

    from ..experiments.run import Progress
    from ..experiments.tune.search import Plan

SPACE_HELP = (
    "What to search, instead of the default: NAME=LOW..HIGH, NAME=LOW..HIGH:log, NAME=A,B,C, or values and a range "
    "(alpha=0,1..64:log), over any setting of the sampler; or a .toml with a table called space. Repeatable."
)


@app.command()
@grouped
def tune(
    problems: Problems,
    work: Work,
    settings: FixedSettings,
    model: ModelName = MODEL,
    trials: Annotated[
        int, typer.Option(help="Of the whole study, over all processes and starts.", min=1)
    ] = 30,
    metric: Annotated[
        str | None, typer.Option(help="What to make large: pass@k.", show_default="pass@n")
    ] = None,
    floor: Annotated[
        list[str] | None,
        typer.Option(help="What must not be lost, such as pass@1=0.3. Repeatable."),
    ] = None,
    space: Annotated[list[str] | None, typer.Option(help=SPACE_HELP)] = None,
    search: Annotated[
        Literal["tpe", "random"],
        typer.Option(
            help="tpe learns from what it has tried; random is known beforehand (--dry-run) and may run anywhere."
        ),
    ] = "tpe",
    first: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTINGS",
            help='Try this before the search: alpha=8,temperature=1 or {"alpha": 8}; what it leaves open is drawn. Repeatable.',
        ),
    ] = None,
    n: Annotated[int, typer.Option(help="Samples per problem.", min=1)] = 16,
    seeds: Annotated[str, typer.Option(help="Each trial runs once per seed.")] = "0",
    split: Annotated[
        str, typer.Option(help="The problems to tune on; never those to report on.")
    ] = "tune",
    storage: Annotated[
        str | None,
        typer.Option(
            help="sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
            show_default="tune.db in the store",
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(help="Its name in the storage; default: one that says what it is about."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Of the search: the same seed tries the same settings, in one process."),
    ] = 0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="With --search random: print the trials as lines of JSON, and run none.",
        ),
    ] = False,
    top: Annotated[int, typer.Option(help="Show so many settings.", min=1)] = 5,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this file.")
    ] = None,
    unsafe: Unsafe = False,
    *,
    options: ModelOptions,
) -> None:
    """Search the settings of the sampler for the largest Pass@k, on problems that are not those to
    report on.

    Optuna's TPE, or chance (--search random), proposes settings; each is a run in the store like
    any other. The same command goes on where it was stopped, by Ctrl-C or kill -9, and settings
    that have run already cost nothing. With a PostgreSQL storage many machines share a study.

    Example: oddlm tune countdown --model mini --trials 20 --limit 50 --floor pass@1=0.2
    """
    from ..config import checked
    from ..experiments.executors.inline import InlineExecutor
    from ..experiments.run import identified
    from ..experiments.trackers import tracking
    from ..experiments.tune.search import (
        REPORTED,
        Plan,
        counted,
        foreseen,
        open_study,
        parse_floor,
        parse_metric,
        tuning_problems,
    )
    from ..experiments.tune.search import tune as run
    from ..experiments.tune.space import DEFAULT, read_settings, read_space
    from ..presets import expanded
    from ..spec import RunSpec
    from ..store import Store
    from ..tasks import check_scoring

    check_out(json_out)
    chosen, store = problems.find(), work.store
    given = settings.params()
    axes = read_space(DEFAULT if space is None else space, given)
    usual = present(length=chosen.length, steps=chosen.steps) | expanded(given)
    fixed = {
        name: value for name, value in usual.items() if name not in {axis.name for axis in axes}
    }
    base = checked(
        RunSpec,
        {**problems.spec(), "model": model, "loading": options.loading, "split": split, "n": n},
    )
    floors = dict(map(parse_floor, floor or ()))
    numbers = tuple(dict.fromkeys(listed("seeds", seeds, int)))
    begin = tuple(expanded(read_settings(text)) for text in first or ())
    plan = Plan(
        base,
        problems.limit,
        fixed,
        axes,
        numbers,
        parse_metric(metric or f"pass@{n}"),
        floors,
        seed,
        search,
        begin,
    )
    plan.check()
    if dry_run:
        options.check(model)
        _foretell(plan.about(identified(base)), trials)
        return
    options.check(model)  # it fails in a moment, where data may take long
    reading = {"data": problems.data, "exclude_train": problems.exclude_train, "unsafe": unsafe}
    with status_line(f"reading the problems of {problems.task}"):
        found = tuning_problems(chosen, split, limit=problems.limit, **reading)
    shape = ([chosen.prompt(problem) for problem in found], plan.longest)
    options.check(model, *shape)
    check_scoring(chosen, unsafe=unsafe)
    plan = plan.about(identified(base))
    where = work.find(**options.place, keep_tokens=work.keep_tokens)
    if isinstance(where, InlineExecutor) and not foreseen(plan, trials, Store(store)):
        where.bench.lm(plan.base)  # a model that does not load leaves no study behind
    Store(store).check()
    opened = open_study(storage or f"sqlite:///{store / 'tune.db'}", study or plan.name, plan)
    stopped = False
    left = max(0, trials - counted(opened)) * len(numbers) * len(found)
    try:
        with (
            closing(where),
            tracking(work.track or (), store) as tracker,
            problem_bar(left) as tick,
        ):
            say, tell = partial(_say, [axis.name for axis in axes]), partial(_tell, tick)
            run(
                plan,
                opened,
                trials,
                Store(store),
                where,
                found,
                tracker,
                tell,
                say,
                together=work.together,
            )
    except KeyboardInterrupt:
        stopped = True
    apart = not {p.id for p in chosen.problems(**reading)} & {p.id for p in found}
    best = _report(plan, opened, len(found), None if apart else REPORTED, top, json_out)
    if stopped:
        typer.echo("oddlm: stopped. The same command resumes from there.", err=True)
        raise typer.Exit(130)
    raise typer.Exit(0 if best else 1)


def _foretell(plan: "Plan", trials: int) -> None:
    from ..experiments.tune.search import planned

    for number, specs in enumerate(planned(plan, trials)):
        params = (
            specs[0].params.model_dump(mode="json", exclude={"seed"}) if specs else None
        )  # None: they do not go together
        typer.echo(
            json.dumps({"trial": number, "runs": [spec.id for spec in specs], "params": params})
        )


def _tell(tick: "Tick", progress: "Progress") -> None:
    """Moves the bar on."""
    from .views import label

    tick(
        f"{label(progress.spec.params)} seed {progress.spec.seed}",
        progress.fresh,
        progress.problems,
    )


def _say(names: Sequence[str], study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:
    """A line per trial, where no bar is drawn."""
    from ..config import checked
    from ..experiments.tune.search import REASON, RESULT
    from ..params import SampleParams
    from ..text import percent
    from .views import searched

    if not sys.stderr.isatty():
        result = trial.user_attrs.get(RESULT)
        told = (
            searched(checked(SampleParams, result["params"]), names)
            if result
            else trial.user_attrs.get(REASON, "")
        )
        value = "-" if trial.value is None else f"{percent(trial.value)} %"
        typer.echo(f"trial {trial.number}: {value}, {told}", err=True)


def _report(
    plan: "Plan",
    study: "optuna.Study",
    problems: int,
    split: str | None,
    top: int,
    json_out: Path | None,
) -> bool:
    """The best settings, and how to report on the first, on that split; False where none keeps the
    floors.
    """
    from ..experiments.tune.search import as_data, commands, interval, outcomes, tally
    from ..files import write_whole
    from ..text import named, number_of
    from .views import open_console, tuned

    console = open_console()
    found = outcomes(study)[:top]
    best = found[0] if found and not found[0].short else None
    if found:
        rows = [(o.params, interval(o), interval(o, found[0]), o.passed["pass@1"]) for o in found]
        console.print(tuned(rows, [axis.name for axis in plan.space], f"pass@{plan.k}"))
    trials = tally(study)
    said = (
        f"{plan.base.task}, {plan.base.model}: {number_of(problems, 'problem')} of split {plan.base.split}, "
        f"{number_of(plan.base.n, 'sample')} each, {named('seed', plan.seeds)}. "
        f"Study {study.study_name}: {number_of(trials['complete'], 'trial')} complete, "
        f"{trials['pruned']} with settings that do not go together, {trials['fail']} failed, {trials['running']} running. "
    )
    said += "The best of many is partly luck: report on other problems, with" if best else ""
    said += "No setting keeps the floor; these come nearest." if found and not best else ""
    console.print(said, style="dim", highlight=False, markup=False)
    lines = commands(plan, best.params, split) if best else (None, None)
    for line in filter(None, lines):
        typer.echo(line)
    if json_out is not None:
        content = {
            **as_data(plan, study, found),
            "problems": problems,
            **dict(zip(("command", "python"), lines, strict=True)),
        }
        write_whole(json_out, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")
    return best is not None

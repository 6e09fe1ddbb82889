"""`oddlm tune`: search the settings of the sampler for a task and a model."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .app import MEASURING, app
from .bar import Tick, problem_bar, status_line
from .options import (
    MODEL,
    OUTPUT,
    PROBLEMS,
    SAMPLING,
    JsonFile,
    ModelName,
    ModelOptions,
    Problems,
    TaskSettings,
    Unsafe,
    Work,
    check_out,
    grouped,
    listed,
)

if TYPE_CHECKING:
    import optuna

    from ..experiments.run import Progress
    from ..experiments.tune.search import Plan

SEARCH, STUDY = "Search options", "Study options"


@dataclass(frozen=True)
class Search:
    """What to search for, where, and how."""

    trials: Annotated[
        int,
        typer.Option(
            help="Trials of the whole study, over all processes and restarts.",
            min=1,
            rich_help_panel=SEARCH,
        ),
    ] = 30
    metric: Annotated[
        str | None,
        typer.Option(
            help="What to maximise: pass@k.", show_default="pass@n", rich_help_panel=SEARCH
        ),
    ] = None
    floor: Annotated[
        list[str] | None,
        typer.Option(
            help="What must not fall below a value, such as pass@1=0.3. Repeatable.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="Settings to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log, NAME=A,B,C, or values "
            "and a range (alpha=0,1..64:log); or a .toml file with a table named space. "
            "Repeatable.",
            show_default="alpha, temperature, objective and alpha_schedule",
            rich_help_panel=SEARCH,
        ),
    ] = None
    search: Annotated[
        Literal["tpe", "random"],
        typer.Option(
            metavar="tpe|random",
            help="How to propose settings: tpe learns from earlier trials; random is known "
            "beforehand (--dry-run), so that its runs can be made anywhere.",
            rich_help_panel=SEARCH,
        ),
    ] = "tpe"
    first: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTINGS",
            help='Settings to try first: alpha=8,temperature=1 or {"alpha": 8}; the others are '
            "drawn. Repeatable.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the search: in one process, the same seed tries the same settings.",
            rich_help_panel=SEARCH,
        ),
    ] = 0


@app.command(rich_help_panel=MEASURING)
@grouped
def tune(
    problems: Problems,
    *,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="With --search random: print the trials as lines of JSON; run nothing.",
        ),
    ] = False,
    split: Annotated[
        str,
        typer.Option(
            help="The problems to tune on, never those to report on.", rich_help_panel=PROBLEMS
        ),
    ] = "tune",
    search: Search,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database of the study: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
            show_default="tune.db in the store",
            rich_help_panel=STUDY,
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="Name of the study in the database.",
            show_default="derived from what is tuned",
            rich_help_panel=STUDY,
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option(metavar="N", help="Show the best N settings.", min=1, rich_help_panel=OUTPUT),
    ] = 5,
    json_out: JsonFile = None,
    n: Annotated[
        int, typer.Option(help="Samples per problem.", min=1, rich_help_panel=SAMPLING)
    ] = 16,
    seeds: Annotated[
        str,
        typer.Option(
            help="Comma-separated seeds; each trial runs once per seed.", rich_help_panel=SAMPLING
        ),
    ] = "0",
    settings: TaskSettings,
    model: ModelName = MODEL,
    options: ModelOptions,
    work: Work,
    unsafe: Unsafe = False,
) -> None:
    """Search the settings of the sampler for the largest Pass@k.

    Tuning uses other problems than those that results are reported on. Optuna's TPE or random
    search proposes settings; each trial is a run in the store like any other. The same command
    resumes where it was stopped, after Ctrl-C or kill -9, and settings that have already run cost
    nothing. Many machines can share a study in a PostgreSQL database. Sampling and diversity
    options fix settings that are not searched.

    Example: oddlm tune countdown --trials 20 --limit 50 --floor pass@1=0.2

    Example: oddlm tune countdown --space alpha=2,4,8 --space temperature=0..1.5 --limit 50
    """
    from ..config import checked
    from ..experiments.executors.inline import InlineExecutor
    from ..experiments.identity import identified
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
    axes = read_space(DEFAULT if search.space is None else search.space, given)
    usual = chosen.defaults | expanded(given)
    fixed = {
        name: value for name, value in usual.items() if name not in {axis.name for axis in axes}
    }
    base = checked(
        RunSpec,
        {**problems.spec(), "model": model, "loading": options.loading, "split": split, "n": n},
    )
    floors = dict(map(parse_floor, search.floor or ()))
    numbers = tuple(dict.fromkeys(listed("seeds", seeds, int)))
    begin = tuple(expanded(read_settings(text)) for text in search.first or ())
    plan = Plan(
        base,
        problems.limit,
        fixed,
        axes,
        numbers,
        parse_metric(search.metric or f"pass@{n}"),
        floors,
        search.seed,
        search.search,
        begin,
    )
    plan.check()
    if dry_run:
        options.check(model)
        _print_trials(plan.about(identified(base)), search.trials)
        return
    options.check(model)  # fails at once; reading data may take long
    reading = {"data": problems.data, "exclude_train": problems.exclude_train, "unsafe": unsafe}
    with status_line(f"reading the problems of {problems.task}"):
        found = tuning_problems(chosen, split, limit=problems.limit, **reading)
    shape = ([chosen.prompt(problem) for problem in found], plan.longest)
    options.check(model, *shape)
    check_scoring(chosen, unsafe=unsafe)
    plan = plan.about(identified(base))
    executor = work.find(**options.place, keep_tokens=work.keep_tokens)
    if isinstance(executor, InlineExecutor) and not foreseen(plan, search.trials, Store(store)):
        executor.bench.lm(plan.base)  # a model that does not load leaves no study behind
    Store(store).check()
    opened = open_study(storage or f"sqlite:///{store / 'tune.db'}", study or plan.name, plan)
    stopped = False
    left = max(0, search.trials - counted(opened)) * len(numbers) * len(found)
    try:
        with (
            closing(executor),
            tracking(work.track or (), store) as tracker,
            problem_bar(left) as tick,
        ):
            run(
                plan,
                opened,
                search.trials,
                Store(store),
                executor,
                found,
                tracker,
                partial(_advance_bar, tick),
                partial(_print_trial, [axis.name for axis in axes]),
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


def _print_trials(plan: "Plan", trials: int) -> None:
    """Print each trial as a line of JSON; params is null if its settings are not compatible."""
    from ..experiments.tune.search import planned

    for number, specs in enumerate(planned(plan, trials)):
        params = specs[0].params.model_dump(mode="json", exclude={"seed"}) if specs else None
        typer.echo(
            json.dumps({"trial": number, "runs": [spec.id for spec in specs], "params": params})
        )


def _advance_bar(tick: "Tick", progress: "Progress") -> None:
    from .views import label

    tick(
        f"{label(progress.spec.params)} seed {progress.spec.seed}",
        progress.fresh,
        progress.problems,
    )


def _print_trial(
    names: Sequence[str], study: "optuna.Study", trial: "optuna.trial.FrozenTrial"
) -> None:
    """Print a line about a finished trial, if stderr shows no bar."""
    from ..config import checked
    from ..experiments.tune.search import REASON, RESULT
    from ..params import SampleParams
    from ..text import percent
    from .views import searched

    if not sys.stderr.isatty():
        result = trial.user_attrs.get(RESULT)
        about = (
            searched(checked(SampleParams, result["params"]), names)
            if result
            else trial.user_attrs.get(REASON, "")
        )
        value = "-" if trial.value is None else f"{percent(trial.value)} %"
        typer.echo(f"trial {trial.number}: {value}, {about}", err=True)


def _report(
    plan: "Plan",
    study: "optuna.Study",
    problems: int,
    split: str | None,
    top: int,
    json_out: Path | None,
) -> bool:
    """Print the best settings, and the command that reports on the first one, on `split`.

    Return False if no setting keeps the floors.
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
    base = plan.base
    summary = (
        f"{base.task}, {base.model}: {number_of(problems, 'problem')} of split {base.split}, "
        f"{number_of(base.n, 'sample')} each, {named('seed', plan.seeds)}. "
        f"Study {study.study_name}: {number_of(trials['complete'], 'trial')} complete, "
        f"{trials['pruned']} with incompatible settings, {trials['fail']} failed, "
        f"{trials['running']} running. "
    )
    if best:
        summary += "The best of many is partly luck: report on other problems, with"
    elif found:
        summary += "No setting keeps the floor; these come nearest."
    console.print(summary, style="dim", highlight=False, markup=False)
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

"""`oddlm verify`: whether a model here is the published one."""

import gc
import json
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import PIECES, app, complain
from .bar import status_line
from .carry_out import report_trouble, run
from .options import (
    FOLDER,
    NETWORK,
    PROBLEMS,
    WORK,
    JsonFile,
    ModelOptions,
    StoreFolder,
    Unsafe,
    check_out,
    grouped,
)

if TYPE_CHECKING:
    from ..experiments.plan import Asked, Plan
    from ..verify.checks import Check, Verdict
    from ..verify.published import Checkpoint, Score


@app.command(rich_help_panel=PIECES)
@grouped
def verify(
    model: Annotated[
        str,
        typer.Argument(help="A model: on the hub (organisation/model), a folder, mini or smol."),
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="The published checkpoint that a folder should be, such as "
            "GSAI-ML/LLaDA-8B-Instruct.",
            show_default="the model's own name",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Which of its published scores to check, such as gsm8k or humaneval.",
            show_default="the first",
            rich_help_panel=PROBLEMS,
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Solve the first N problems; more of them notice smaller differences.",
            min=1,
            rich_help_panel=PROBLEMS,
        ),
    ] = 50,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Read the task's problems from this JSONL file.", rich_help_panel=PROBLEMS
        ),
    ] = None,
    fingerprint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare with the fingerprint in this file, which --json wrote elsewhere.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what will be run, what it takes and which results would agree; load "
            "nothing.",
            rich_help_panel=WORK,
        ),
    ] = False,
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration",
            help="With --dry-run: load the model after all, and time one problem.",
            rich_help_panel=WORK,
        ),
    ] = False,
    together: Annotated[
        int,
        typer.Option(
            help="Problems denoised at a time; use many on a GPU.", min=1, rich_help_panel=WORK
        ),
    ] = 1,
    store: StoreFolder = FOLDER,
    json_file: JsonFile = None,
    unsafe: Unsafe = False,
    options: ModelOptions,
) -> None:
    """Check that a model here is the published one: its weights, its logits, its score.

    First the network alone, in seconds: the digest of the weights where it is known, whether it
    finds tokens hidden from worked answers, and a fingerprint of its logits. Then its published
    score: it solves the first 50 problems with the published settings, one sample each, and the
    number it solves must lie in the 99 % binomial interval around the published score. The plan
    says what that takes. A run that was stopped resumes.

    The exit status is 0 if something that identifies the model agrees and nothing disagrees, and 1
    otherwise. A model without a published score is told so; the network is checked all the same.

    Example: oddlm verify mini --limit 12

    Example: oddlm verify GSAI-ML/LLaDA-8B-Instruct --dry-run

    Example: oddlm verify ./llada --as GSAI-ML/LLaDA-8B-Instruct --task humaneval --together 8
    """
    from ..models import model_digest
    from ..verify.checks import digest_check, overall
    from ..verify.published import find_published, published

    if calibration and not dry_run:
        raise ValueError("--calibration times a problem for --dry-run: give both, or neither")
    check_out(json_file)
    known = find_published(name or model)
    if name is not None and known is None:
        every = [one.names[0] for one in published()]
        close = get_close_matches(name, every, 3, 0.4) or every
        raise ValueError(f"--as: nothing is known about {name!r}, but about {', '.join(close)}")
    recorded = None if fingerprint is None else _recorded(fingerprint)
    score = _score(known, task)
    loading = {} if score is None else score.loading.options()
    loading |= options.loading
    plan = None
    try:
        if score is None:
            options.check(model)
        else:
            plan = _plan(model, score, loading, limit, data, unsafe)
    except ValueError as error:
        if not dry_run:
            raise
        complain(error)
    _tell(model, known, score)
    if score is not None:
        _tell_plan(model, score, loading, limit, plan, options)
    if dry_run:
        if calibration and plan is not None:
            _time(plan, options, store, together)
        return
    digest = model_digest(model, revision=loading.get("revision"))
    network, printed = _network(model, loading, options, known, recorded)
    checks = [digest_check(digest, known), *network]
    if plan is not None and score is not None and overall(network) != "failed":
        checks.append(_solve(plan, score, options, store, together))
    verdict = overall(checks)
    _report(checks, verdict)
    if json_file is not None:
        from ..files import write_whole

        content: dict[str, Any] = {"model": model, "as": name or (known and model)}
        content |= {"verdict": verdict, "checks": [one.as_data() for one in checks]}
        content |= {"digest": digest, "fingerprint": list(printed)}
        write_whole(json_file, f"{json.dumps(content, indent=2)}\n".encode())
    if verdict != "passed":
        raise typer.Exit(1)


def _score(known: "Checkpoint | None", task: str | None) -> "Score | None":
    if known is not None and known.scores:
        return known.score(task)
    if task is not None:
        raise ValueError(f"no published score on {task!r} is known here: leave --task out")
    return None


def _recorded(path: Path) -> list[float]:
    from ..config import parse_json

    try:
        content = parse_json(path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        content = None
    found = content.get("fingerprint") if isinstance(content, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, int | float) for one in found):
        raise ValueError(f"{path} has no fingerprint: `oddlm verify MODEL --json FILE` writes one")
    return found


def _plan(
    model: str,
    score: "Score",
    loading: dict[str, Any],
    limit: int,
    data: Path | None,
    unsafe: bool,
) -> "Plan":
    from ..config import checked
    from ..experiments.grid import Wanted
    from ..experiments.plan import make_plan
    from ..spec import RunSpec

    spec = checked(
        RunSpec,
        {
            "model": model,
            "loading": loading,
            "task": score.task,
            "protocol": score.protocol,
            "data": None if data is None else str(data),
            "n": 1,
            "params": score.params,
        },
    )
    with status_line(f"reading the problems of {score.task}"):
        return make_plan([Wanted(spec, limit)], unsafe=unsafe)


def _tell(model: str, known: "Checkpoint | None", score: "Score | None") -> None:
    """Print what is published."""
    from ..verify.page import settings_words

    if score is None:
        why = "no published score is known here" if known is None else known.missing
        typer.echo(f"{model}: {why}")
        if known is not None and known.source is not None:
            typer.echo(f"{'source:':<11}{known.source}")
        typer.echo("The network can be checked, and a fingerprint of its logits (--fingerprint).")
        return
    figures = ", ".join(f"{one:g}" for one in score.score)
    typer.echo(
        f"published: {score.task_name} {figures} % of {score.problems} problems, "
        f"measured by {score.measured_by}"
    )
    typer.echo(f"source:    {score.source}")
    typer.echo(f"settings:  {settings_words(score)}")
    if score.differs is not None:
        typer.echo(f"differs:   {score.differs}")


def _tell_plan(
    model: str,
    score: "Score",
    loading: dict[str, Any],
    limit: int,
    plan: "Plan | None",
    options: ModelOptions,
) -> None:
    """Print which results would agree, and what they cost."""
    from ..experiments.stages import prompt_of, task_of
    from ..verify.checks import agreeing, cost, range_words

    if plan is None:
        typer.echo(f"range:     {range_words(score, agreeing(score, limit))}")
        return
    [asked] = plan.runs
    task = task_of(asked.spec)
    prompts = [prompt_of(task, problem) for problem in asked.problems]
    typer.echo(f"range:     {range_words(score, agreeing(score, len(prompts)))}")
    takes = cost(model, loading, options.place.get("device"), score.params, prompts)
    typer.echo(f"takes:     {takes.words}")


def _time(plan: "Plan", options: ModelOptions, store: Path, together: int) -> None:
    from datetime import timedelta

    from ..experiments.calibrate import estimate
    from ..experiments.work import Options
    from ..store import Store

    seconds, _ = estimate(plan, Store(store), Options(**options.place), together)
    typer.echo(f"{'time:':<11}about {timedelta(seconds=round(seconds))} (h:mm:ss) here")


def _network(
    model: str,
    loading: dict[str, Any],
    options: ModelOptions,
    known: "Checkpoint | None",
    recorded: list[float] | None,
) -> "tuple[list[Check], tuple[float, ...]]":
    from ..lm import load
    from ..verify.checks import network_checks

    with status_line(f"loading {model}"):
        lm = load(model, **loading, **options.place)
        found = network_checks(lm, known, recorded)
    del lm
    gc.collect()  # the run loads the model anew, and both may not fit
    return found


def _solve(
    plan: "Plan", score: "Score", options: ModelOptions, store: Path, together: int
) -> "Check":
    """Draw and score the problems, and compare the number solved with the published score."""
    from ..experiments.executors import find_executor
    from ..experiments.plan import BOTH
    from ..experiments.work import Options
    from ..store import Store
    from ..verify.checks import agreeing, score_check

    executor = find_executor("inline", Options(**options.place))
    result = run(plan, store, executor, together, BOTH, None)
    report_trouble(plan, result, store)
    [asked] = plan.runs
    return score_check(score, _solved(asked, Store(store)), agreeing(score, len(asked.problems)))


def _solved(asked: "Asked", store: Any) -> int:
    return sum(bool(record.correct[0]) for record in asked.records(store))


def _report(checks: "list[Check]", verdict: "Verdict") -> None:
    from rich.table import Table
    from rich.text import Text

    from .views import open_console

    table = Table("check", "found", "expected", "result", pad_edge=False)
    for one in checks:
        table.add_row(one.name, Text(one.found), Text(one.expected), one.verdict)
    open_console().print(table)
    words = {
        "passed": "verified: what was compared agrees with what is published",
        "failed": "not the published model, or it does not compute here as it should",
        "unknown": "not verified: too little could be compared to identify the model",
    }
    typer.echo(words[verdict])

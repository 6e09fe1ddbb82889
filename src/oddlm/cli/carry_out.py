"""Run a plan behind a progress bar, with trackers, and report interruptions and failures."""

from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..text import percent
from .app import complain
from .bar import problem_bar
from .options import ModelOptions, Work

if TYPE_CHECKING:
    from ..experiments.plan import Plan
    from ..experiments.run import Progress, Result
    from ..experiments.work import Executor
    from ..store import Stage

SHOWN = 20  # the most failures that are printed


def carry_out(
    plan: "Plan",
    work: Work,
    model: ModelOptions,
    stages: "Sequence[Stage]",
    *,
    fail_fast: bool = False,
) -> "Result":
    """Run a plan with the executor that the options name; see `run`."""
    executor = work.find(**model.place, keep_tokens=work.keep_tokens)
    return run(plan, work.store, executor, work.together, stages, work.track, fail_fast=fail_fast)


def run(
    plan: "Plan",
    store: Path,
    executor: "Executor",
    together: int,
    stages: "Sequence[Stage]",
    track: Sequence[str] | None,
    *,
    fail_fast: bool = False,
) -> "Result":
    """Run a plan behind a bar; failures are printed at once.

    After Ctrl-C the command prints how much is done and ends with status 130; with `fail_fast` the
    first failure ends it with status 1.
    """
    from ..experiments.run import ProblemError, run_plan
    from ..experiments.trackers import tracking
    from ..store import Store
    from .views import label

    solved: dict[str, list[bool]] = {}  # by run: does a problem have a correct sample?
    failed = count()

    def watch(progress: "Progress") -> None:
        for failure in () if fail_fast else progress.failures:
            if next(failed) < SHOWN:
                complain(f"problem {failure.problem} failed: {failure.error}")
        spec, seen = progress.spec, solved.setdefault(progress.spec.id, [])
        seen += [any(scored.correct) for scored in progress.scores if None not in scored.correct]
        share = f": Pass@{spec.n} {100 * sum(seen) / len(seen):.0f} %" if seen else ""
        task = f"{spec.task}, " if spec.task else ""
        tick(
            f"{task}{label(spec.params)}, seed {spec.seed}{share}",
            progress.fresh,
            progress.problems,
        )

    target = Store(store)
    target.check()
    try:
        with (
            closing(executor),
            tracking(track or (), store) as tracker,
            problem_bar(plan.units) as tick,
        ):
            return run_plan(
                plan,
                target,
                executor,
                stages=stages,
                together=together,
                fail_fast=fail_fast,
                tracker=tracker,
                watch=watch,
            )
    except ProblemError as error:
        complain(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        heads = [
            target.exact_head(run.spec.id)
            for run in plan.runs
            if (store / run.spec.id / "spec.json").exists()
        ]
        drawn, scored = sum(head.drawn for head in heads), sum(head.scored for head in heads)
        typer.echo(
            f"oddlm: stopped; of {plan.units} problems {drawn} are drawn and {scored} scored "
            f"in {store}. The same command resumes from there.",
            err=True,
        )
        raise typer.Exit(130) from None


def busy_line(result: "Result") -> str:
    """Return how busy the network was, as a sentence; empty if nothing was drawn."""
    network = result.network
    if network is None:
        return ""
    return f"The network was busy {percent(network.busy)} % of {network.seconds:.3g} s."


def report_trouble(plan: "Plan", result: "Result", store: Path) -> None:
    """Report damaged runs and problems that failed or were not drawn; exit with 1 if any."""
    for message in result.damaged:
        complain(message)
    if result.failures:
        count = f"{len(result.failures)} of {plan.units} problems failed"
        typer.echo(f"oddlm: {count}; the same command tries them again:", err=True)
        for spec, failure in result.failures[:SHOWN]:
            typer.echo(
                f"  {store / spec.id / 'failures.jsonl'}: {failure.problem}: {failure.error}",
                err=True,
            )
        if len(result.failures) > SHOWN:
            typer.echo(f"  and {len(result.failures) - SHOWN} more", err=True)
    if result.undrawn:
        typer.echo(
            f"oddlm: {result.undrawn} problems have no samples yet and were not scored: "
            "`oddlm draw` or `oddlm eval` draws them",
            err=True,
        )
    if result.damaged or result.failures or result.undrawn:
        raise typer.Exit(1)

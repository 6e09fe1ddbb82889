"""The two comparisons of `oddlm demo`: Pass@16 of the mini model, and a batch of a toy network."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..config import checked
from ..experiments.executors.inline import InlineExecutor
from ..experiments.identity import identified
from ..experiments.plan import Asked, Plan
from ..experiments.run import run_plan
from ..experiments.work import Executor, Options
from ..files import save_figure
from ..metrics import METRICS, pass_at_k
from ..params import SampleParams
from ..report.compare import Done, compare
from ..sandbox import SandboxError
from ..spec import RunSpec
from ..store import Store
from ..tasks import Problem, check_scoring, find_task
from ..text import number_of
from .views import label, open_console, results, side_by_side

N = 16
SECONDS = 140.0  # so that `make demo` ends within three minutes on two idle cores
LEAST = 10  # with fewer problems nothing is concluded
COUNTDOWN = {"length": 24, "steps": 12, "eos": "late"}
MINICODE = {"length": 64, "steps": 16, "eos": "free"}
SHOWN = ("distinct_texts", "vendi_ngram", "self_bleu")
COLORS = {"none": "C0", "dpp": "C2", "odd": "C1"}


@dataclass(frozen=True)
class Trial:
    """Settings that run on the problems of a task, one problem at a time."""

    title: str
    task: str
    problems: Sequence[Problem]
    specs: Sequence[RunSpec]

    def run(
        self, console: Console, store: Store, executor: Executor, seconds: float, least: int
    ) -> list[Done]:
        """Run until the time is up and `least` problems are done, and print the results.

        After Ctrl-C the results so far are printed.
        """
        began, count = time.monotonic(), 0
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        try:
            with Progress(*columns, console=console, transient=True) as progress:
                bar = progress.add_task(self.task)
                for problem in self.problems:
                    plan = Plan(tuple(Asked(spec, (problem,)) for spec in self.specs))
                    result = run_plan(plan, store, executor)
                    for _, failure in result.failures:
                        raise ValueError(f"problem {failure.problem}: {failure.error}")
                    count += 1
                    wanted = f" of at least {least}" if count < least else ""
                    words = f"{self.task}: {number_of(count, 'problem')}{wanted}"
                    progress.update(bar, description=words)
                    spent = time.monotonic() - began
                    if count >= least and spent + spent / count > seconds:
                        break
        finally:
            done = self.done(store, count)
            self.report(console, done)
        return done

    def done(self, store: Store, count: int) -> list[Done]:
        """Return each setting with its records of the first `count` problems."""
        if not count:
            return []
        first = tuple(self.problems[:count])
        return [(spec, Asked(spec, first).records(store)) for spec in self.specs]

    def report(self, console: Console, done: Sequence[Done]) -> None:
        """Print the results as a table."""
        if not done:
            return
        count = number_of(len(done[0][1]), "problem")
        console.print(Text(f"{self.title}: {count}", style="bold"))
        console.print(results(compare(done), N, ["distinct_texts"]))
        if len(done[0][1]) < LEAST:
            console.print(f"No conclusion from {count}: at least {LEAST} are needed (--seconds).\n")
        else:
            console.print(
                "Percentages; vs plain: difference in points with its 95 % interval, paired by "
                "problem.\n"
            )


def trial(
    title: str,
    task: str,
    shape: dict[str, Any],
    methods: Sequence[dict[str, Any]],
    seed: int,
    **spec: Any,
) -> Trial:
    """Return a trial of several methods, each with the settings of `shape`."""
    own = find_task(task).under(spec.get("protocol"))
    shared = {"model": "mini", "task": task, "n": N, "seed": seed, **spec}
    specs = [
        identified(checked(RunSpec, {**shared, "params": {**shape, **method}}))
        for method in methods
    ]
    return Trial(title, task, own.problems(), specs)


def run_demo(*, alpha: float, seed: int, seconds: float | None, picture: Path) -> None:
    """Compare plain sampling, DPP, ODD and the package's default for the given time.

    If seconds is None, that is SECONDS, and longer until LEAST problems of each task are done.
    """
    seconds, least = (SECONDS, LEAST) if seconds is None else (seconds, 1)
    if seconds <= 0:
        raise ValueError(f"seconds must be more than 0, not {seconds:g}")
    console = open_console()
    auto = checked(SampleParams, {"preset": "auto"})
    console.print(
        f"The mini model, {N} samples per problem; all methods use the same number of network "
        f"evaluations. Pass@1 is the share of correct samples, Pass@{N} the share of problems with "
        f"a correct one among {N}. None of the problems is in the training data. The package's "
        f"default is {auto.method} with alpha {auto.alpha:g}.\n"
    )
    with TemporaryDirectory() as folder, closing(InlineExecutor(Options())) as executor:
        store = Store(Path(folder))
        forced: list[dict[str, Any]] = [
            {"objective": name, "alpha": alpha, "fork": False} for name in ("none", "dpp", "odd")
        ]
        methods = [
            {**method, "temperature": t}
            for t in (0.0, 1.0)
            for method in (*forced, {"preset": "auto"})
        ]
        done = trial("countdown, 4 numbers", "countdown", COUNTDOWN, methods, seed).run(
            console, store, executor, 0.6 * seconds, least
        )
        _show(console, done)
        _draw(console, done, picture)
        try:
            check_scoring(find_task("minicode"), unsafe=False)
        except SandboxError as error:
            console.print(Text(f"minicode is left out: {error}"))
            return
        methods = [
            {**method, "temperature": 1.0} for method in ({"objective": "none"}, {"preset": "auto"})
        ]
        title = "minicode, held-out compositions of 3 operations"
        code = trial(title, "minicode", MINICODE, methods, seed, protocol="3_operations")
        code.run(console, store, executor, 0.4 * seconds, least)


def _show(console: Console, done: Sequence[Done]) -> None:
    """Print the samples of the problem on which plain sampling and the default differ most.

    It is the first such problem at temperature 0.
    """
    cold = [one for one in done if one[0].params.temperature == 0]
    plain, auto = cold[0], cold[-1]
    gains = [
        any(new.correct) - any(old.correct) for old, new in zip(plain[1], auto[1], strict=True)
    ]
    i = gains.index(max(gains))
    console.print("The first problem with the largest difference, plain sampling and the default:")
    columns = [(label(spec.params), records[i]) for spec, records in (plain, auto)]
    console.print(side_by_side(columns, console.width))


def _curves(done: Sequence[Done]) -> Iterator[tuple[SampleParams, list[float]]]:
    """Yield each setting with its Pass@k for k from 1 to N."""
    for spec, records in done:
        correct = [record.correct for record in records]
        yield spec.params, [float(pass_at_k(correct, k).mean()) for k in range(1, N + 1)]


def _draw(console: Console, done: Sequence[Done], path: Path) -> None:
    """Save a picture of Pass@k over k, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        console.print("No picture: it needs matplotlib, pip install 'oddlm\\[plot]'")
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for params, curve in _curves(done):
        color = "C3" if params.forks else COLORS[params.objective_name]
        axes.plot(
            range(1, N + 1),
            curve,
            label=label(params),
            color=color,
            linestyle="-" if params.temperature else "--",
        )
    axes.set(xlabel="k", ylabel="Pass@k", ylim=(0, 1), title="countdown, 4 numbers")
    axes.legend()
    save_figure(figure, path, dpi=120)
    console.print(Text(f"Pass@k curves: {path}\n"))


def run_toy(*, n: int, length: int, steps: int, alpha: float, seed: int) -> None:
    """Compare plain sampling, DPP and ODD on one batch of an untrained network."""
    shape: dict[str, Any] = {"length": length, "steps": steps, "fork": False}
    methods = [
        {"objective": name, "alpha": alpha, "temperature": t}
        for t in (0.0, 0.5)
        for name in ("none", "dpp", "odd")
    ]
    shared = {"model": "toy", "n": n, "seed": seed}
    specs = [
        identified(checked(RunSpec, {**shared, "params": {**shape, **method}}))
        for method in methods
    ]
    console = open_console()
    console.print(
        "An untrained toy network ([bold]random weights: it knows nothing[/bold]). "
        f"{n} samples of {length} tokens in {steps} steps; every setting uses the same number of "
        "network evaluations.\n"
    )
    plan = Plan(tuple(Asked(spec, (Problem("prompt", "t5 t6 t7", None),)) for spec in specs))
    with TemporaryDirectory() as folder, closing(InlineExecutor(Options())) as executor:
        store = Store(Path(folder))
        for _, failure in run_plan(plan, store, executor).failures:
            raise ValueError(failure.error)
        records = [run.records(store)[0] for run in plan.runs]
    table = Table("setting", *SHOWN, "log p", "seconds")
    for spec, record in zip(specs, records, strict=True):
        written = max(1, sum(sample.length for sample in record.samples))
        logprob = sum(sample.logprob or 0.0 for sample in record.samples) / written
        measures = [
            f"{record.diversity[name]:.3g}" if name in record.diversity else "-" for name in SHOWN
        ]
        table.add_row(label(spec.params), *measures, f"{logprob:.2f}", f"{record.seconds:.2f}")
    console.print(table)
    measures_shown = ". ".join(f"{name}: {METRICS[name]}" for name in SHOWN)
    logprob_shown = "log p: mean per token of the texts, under the network before the push"
    console.print(Text(f"{measures_shown}. {logprob_shown}.\n"))
    columns = [(label(specs[i].params), records[i]) for i in (0, 2)]
    console.print(side_by_side(columns, console.width))

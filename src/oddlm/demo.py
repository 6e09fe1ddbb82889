"""`oddlm demo`: what diversity does to Pass@16, on the model in the package; or to a batch, on an untrained toy network."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

from .compare import Done, compare
from .core.step import StepEvent
from .diversity.repulsion import Repulsion
from .experiments.executors.inline import InlineExecutor
from .experiments.run import Asked, Plan, identified, run_plan
from .experiments.work import Executor, Options
from .files import save_figure
from .metrics import pass_at_k
from .models.toy import Toy
from .params import RunSpec, SampleParams, checked
from .sampler import denoise
from .sandbox import SandboxError
from .store import Store
from .tasks import Problem, check_scoring, find_task
from .views import label, open_console, results, side_by_side
from .wording import number_of

N = 16
SECONDS = 140.0  # so that `make demo` ends within three minutes on two idle cores
LEAST = 10  # problems, below which nothing is concluded
COUNTDOWN = {"length": 24, "steps": 12, "eos": "late"}
MINICODE = {"length": 64, "steps": 16, "eos": "free"}
COLORS = {"none": "C0", "dpp": "C2", "odd": "C1"}


@dataclass(frozen=True)
class Trial:
    """Settings on one problem of a task after another, in a store that is thrown away."""

    title: str
    task: str
    problems: Sequence[Problem]
    specs: Sequence[RunSpec]

    def run(self, console: Console, store: Store, executor: Executor, seconds: float, least: int) -> list[Done]:
        """Until the time is up and `least` problems are done; what came of it is shown, also of what was done before Ctrl-C."""
        began, count = time.monotonic(), 0
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        try:
            with Progress(*columns, console=console, transient=True) as progress:
                bar = progress.add_task(self.task)
                for problem in self.problems:
                    result = run_plan(Plan(tuple(Asked(spec, (problem,)) for spec in self.specs)), store, executor)
                    for _, failure in result.failures:
                        raise ValueError(f"problem {failure.problem}: {failure.error}")
                    count += 1
                    told = f" of at least {least}" if count < least else ""
                    progress.update(bar, description=f"{self.task}: {number_of(count, 'problem')}{told}")
                    if count >= least and (spent := time.monotonic() - began) + spent / count > seconds:
                        break
        finally:
            done = self.done(store, count)
            self.report(console, done)
        return done

    def done(self, store: Store, count: int) -> list[Done]:
        return [(spec, Asked(spec, tuple(self.problems[:count])).records(store)) for spec in self.specs] if count else []

    def report(self, console: Console, done: Sequence[Done]) -> None:
        if not done:
            return
        count = number_of(len(done[0][1]), "problem")
        console.print(Text(f"{self.title}: {count}", style="bold"))
        console.print(results(compare(done), N, ["distinct_texts"]))
        if len(done[0][1]) < LEAST:
            console.print(f"No conclusion from {count}: {LEAST} at least are needed (--seconds).\n")
        else:
            console.print("Per cent; vs plain: difference in points with a 95 % interval, paired by problem.\n")


def trial(title: str, task: str, shape: dict[str, Any], methods: Sequence[dict[str, Any]], seed: int, **spec: Any) -> Trial:
    own = find_task(task).under(spec.get("protocol"))
    asked = {"model": "mini", "task": task, "n": N, "seed": seed, **spec}
    specs = [identified(checked(RunSpec, asked | {"params": {**shape, **method}})) for method in methods]
    return Trial(title, task, own.problems(), specs)


def run_demo(*, alpha: float, seed: int, seconds: float | None, picture: Path) -> None:
    """Plain sampling, DPP, ODD and the package's default, on as many problems as the time allows.

    seconds None: as many as SECONDS allow, and LEAST of each task however slow the machine is.
    """
    seconds, least = (SECONDS, LEAST) if seconds is None else (seconds, 1)
    if seconds <= 0:
        raise ValueError(f"seconds must be more than 0, not {seconds:g}")
    console = open_console()
    auto = checked(SampleParams, {"objective": "auto"})
    console.print(
        f"The mini model, {N} samples per problem; all methods spend the same network evaluations. Pass@1 is the share of "
        f"right samples, Pass@{N} the share of problems with a right one among {N}. The training data hold none "
        f"of the problems. The package's default is {auto.method} with alpha {auto.alpha:g}.\n"
    )
    with TemporaryDirectory() as folder, closing(InlineExecutor(Options())) as executor:
        store = Store(Path(folder))
        forced: list[dict[str, Any]] = [{"objective": name, "alpha": alpha, "fork": False} for name in ("none", "dpp", "odd")]
        methods = [{**method, "temperature": t} for t in (0.0, 1.0) for method in (*forced, {"objective": "auto"})]
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
        methods = [{"objective": name, "temperature": 1.0} for name in ("none", "auto")]
        title = "minicode, held-out compositions of 3 operations"
        code = trial(title, "minicode", MINICODE, methods, seed, protocol="3_operations")
        code.run(console, store, executor, 0.4 * seconds, least)


def _show(console: Console, done: Sequence[Done]) -> None:
    """The first problem on which plain sampling and the default differ most at temperature 0, side by side."""
    cold = [one for one in done if one[0].params.temperature == 0]
    plain, auto = cold[0], cold[-1]
    gains = [any(new.correct) - any(old.correct) for old, new in zip(plain[1], auto[1], strict=True)]
    i = gains.index(max(gains))
    console.print("The first problem with the largest difference, plain sampling and the default:")
    console.print(side_by_side([(label(spec.params), records[i]) for spec, records in (plain, auto)], console.width))


def _curves(done: Sequence[Done]) -> Iterator[tuple[SampleParams, list[float]]]:
    for spec, records in done:
        correct = [record.correct for record in records]
        yield spec.params, [float(pass_at_k(correct, k).mean()) for k in range(1, N + 1)]


def _draw(console: Console, done: Sequence[Done], path: Path) -> None:
    """Pass@k over k, as a picture."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        console.print("No picture: it needs matplotlib, pip install 'oddlm\\[plot]'")
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for params, curve in _curves(done):
        color = "C3" if params.forks else COLORS[params.objective_name]
        axes.plot(range(1, N + 1), curve, label=label(params), color=color, linestyle="-" if params.temperature else "--")
    axes.set(xlabel="k", ylabel="Pass@k", ylim=(0, 1), title="countdown, 4 numbers")
    axes.legend()
    save_figure(figure, path, dpi=120)
    console.print(Text(f"Pass@k curves: {path}\n"))


def run_toy(*, n: int, length: int, steps: int, alpha: float, seed: int) -> None:
    console = open_console()
    model = Toy()
    console.print(
        "An untrained toy network ([bold]random weights: it knows nothing[/bold]). "
        f"{n} samples of {length} tokens in {steps} steps; every setting spends the same network evaluations.\n"
    )
    table = Table("objective", "temp.", "distinct", "differing", "log p", "changed", "seconds")
    batches: dict[str, Tensor] = {}
    for temperature in (0.0, 0.5):
        for objective in ("none", "dpp", "odd"):
            watch = _Watch()
            began = time.perf_counter()
            guide = None if objective == "none" else Repulsion(objective, alpha=alpha)
            done = denoise(
                model,
                [[5, 6, 7]],
                n=n,
                length=length,
                steps=steps,
                temperature=temperature,
                guide=guide,
                seed=seed,
                observe=watch,
            )
            seconds = time.perf_counter() - began
            batches.setdefault(objective, done.tokens)
            table.add_row(
                "plain" if objective == "none" else objective,
                f"{temperature:g}",
                f"{len({tuple(row) for row in done.tokens.tolist()})} / {n}",
                f"{_difference(done.tokens):.0%}",
                f"{watch.log_probability / done.tokens.numel():.2f}",
                f"{watch.changed / done.tokens.numel():.0%}",
                f"{seconds:.2f}",
            )
        table.add_section()
    console.print(table)
    console.print(
        "differing: share of positions in which two samples differ, over all pairs. log p: mean over the written tokens, "
        "under the network before guidance. changed: share of tokens that plain sampling would not have written there "
        "and then.\n"
    )
    side_by_side = Table("sample", "plain, temperature 0", "odd, temperature 0", title="The first samples, token ids")
    for i in range(min(n, 8)):
        side_by_side.add_row(str(i), *(" ".join(map(str, batches[k][i, :10].tolist())) + " ..." for k in ("none", "odd")))
    console.print(side_by_side)


class _Watch:
    """An observer that adds up what guidance changed and what it cost."""

    def __init__(self) -> None:
        self.changed = 0
        self.log_probability = 0.0

    def __call__(self, event: StepEvent) -> None:
        chosen, plain = event.chosen, event.plain
        same = plain.commit & (plain.tokens == chosen.tokens)
        self.changed += int((event.commit & ~same).sum())
        self.log_probability += float(chosen.base_probability[event.commit].log().sum())


def _difference(tokens: Tensor) -> float:
    pairs = list(combinations(range(len(tokens)), 2))
    return sum(float((tokens[i] != tokens[j]).double().mean()) for i, j in pairs) / max(len(pairs), 1)

"""`oddlm demo`: what diversity does to Pass@16, on the model in the package; or to a batch, on an untrained toy network."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

from .diversity.guide import Repulsion
from .generate import LM, load
from .metrics import paired_interval
from .models.toy import Toy
from .sampler import denoise
from .sandbox import SandboxError
from .tasks import find_task
from .tasks.base import Problem, Task
from .types import StepEvent

N = 16
TEMPERATURES = (0.0, 1.0)
COUNTDOWN = {"length": 24, "steps": 12, "eos": "late"}
MINICODE = {"length": 64, "steps": 16, "eos": "free"}
COLORS = {"none": "C0", "dpp": "C2", "odd": "C1"}


@dataclass
class Tally:
    """What one setting did, problem by problem."""

    right: list[int] = field(default_factory=list)
    distinct: list[int] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    seconds: float = 0.0

    def pass_at(self, k: int) -> float:
        """Share of problems that k of the N samples would solve, over all choices of k."""
        return float(np.mean([1 - math.comb(N - c, k) / math.comb(N, k) for c in self.right]))


Tallies = dict[tuple[str, float], Tally]


def run_demo(*, alpha: float, seed: int, seconds: float, picture: Path) -> None:
    """Plain, DPP (countdown alone) and ODD sampling at two temperatures, on as many problems as the time allows."""
    if seconds <= 0:
        raise ValueError(f"seconds must be more than 0, not {seconds:g}")
    console = Console()
    lm = load("mini")
    console.print(
        f"The mini model, {N} samples per problem; all methods spend the same network evaluations. Pass@1 is the share of "
        f"right samples, Pass@{N} the share of problems with a right one among {N}. The training data hold none "
        "of the problems.\n"
    )
    countdown = find_task("countdown")
    compare = partial(_compare, console, lm, alpha=alpha, seed=seed)
    problems = countdown.problems(count=200)
    tallies, shown = compare(countdown, problems, COUNTDOWN, ("none", "dpp", "odd"), seconds=0.6 * seconds)
    _report(console, "countdown, 4 numbers", tallies)
    _side_by_side(console, shown, tallies)
    _draw(console, tallies, picture)
    code = find_task("minicode")
    try:
        problems = code.problems(operations=3, count=30)
    except SandboxError as error:
        console.print(Text(f"minicode is left out: {error}"))
        return
    tallies, _ = compare(code, problems, MINICODE, ("none", "odd"), seconds=0.4 * seconds)
    _report(console, "minicode, held-out compositions of 3 operations", tallies)


def _compare(
    console: Console,
    lm: LM,
    task: Task,
    problems: Sequence[Problem],
    settings: dict[str, Any],
    methods: Sequence[str],
    *,
    alpha: float,
    seed: int,
    seconds: float,
) -> tuple[Tallies, list[Problem]]:
    """Every setting on one problem after another, until the time is up; at least one problem."""
    tallies: Tallies = {(method, t): Tally() for t in TEMPERATURES for method in methods}
    began = time.monotonic()
    done: list[Problem] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(task.name)
        for problem in problems:
            for (method, temperature), tally in tallies.items():
                start = time.monotonic()
                how = {**settings, "objective": method, "alpha": alpha, "temperature": temperature, "seed": seed + len(done)}
                (samples,) = lm.generate(task.prompt(problem), N, progress=False, **how)
                tally.seconds += time.monotonic() - start
                texts = [sample.text for sample in samples]
                verdicts = {text: task.score(problem, text).correct for text in set(texts)}
                tally.texts.append(texts)
                tally.right.append(sum(verdicts[text] for text in texts))
                tally.distinct.append(len(verdicts))
            done.append(problem)
            progress.update(bar, description=f"{task.name}: {len(done)} problems")
            if (spent := time.monotonic() - began) + spent / len(done) > seconds:
                break
    return tallies, done


def _report(console: Console, title: str, tallies: Tallies) -> None:
    count = len(next(iter(tallies.values())).right)
    table = Table(
        "method",
        "temp.",
        "Pass@1",
        f"Pass@{N}",
        "distinct",
        "seconds",
        "minus plain",
        title=f"{title}: {count} problem{'' if count == 1 else 's'}",
    )
    for (method, temperature), tally in tallies.items():
        difference = "" if method == "none" else _interval(tally, tallies["none", temperature])
        scores = f"{tally.pass_at(1):.1%}", f"{tally.pass_at(N):.1%}", f"{np.mean(tally.distinct):.1f}"
        table.add_row(_label(method), f"{temperature:g}", *scores, f"{tally.seconds:.1f}", difference)
    console.print(table)
    console.print(f"minus plain: difference of Pass@{N} in points, with a 95 % bootstrap interval, paired by problem.\n")


def _label(method: str) -> str:
    return "plain" if method == "none" else method


def _interval(own: Tally, plain: Tally) -> str:
    gain = paired_interval([100.0 * (r > 0) for r in own.right], [100.0 * (r > 0) for r in plain.right])
    if math.isnan(gain.low):  # one problem has no spread
        return f"{gain.difference:+.0f}"
    return f"{gain.difference:+.0f} [{gain.low:+.0f}, {gain.high:+.0f}]"


def _side_by_side(console: Console, problems: Sequence[Problem], tallies: Tallies) -> None:
    """The problem on which the two differ most at temperature 0."""
    plain, odd = tallies["none", 0.0], tallies["odd", 0.0]
    gains = [(o > 0) - (p > 0) for o, p in zip(odd.right, plain.right, strict=True)]
    i = gains.index(max(gains))
    *numbers, target = problems[i].prompt.split(",")
    table = Table(
        "plain, temperature 0", "odd, temperature 0", title=f"{target} out of {', '.join(numbers)}; right ones are green"
    )
    task = find_task("countdown")
    for pair in zip(plain.texts[i], odd.texts[i], strict=True):
        table.add_row(*(Text(x, style="green" if task.score(problems[i], x).correct else "") for x in _readable(pair)))
    console.print(table)


def _readable(texts: Sequence[str]) -> Iterator[str]:
    return ("".join(c if c.isprintable() else "?" for c in text) for text in texts)


def _draw(console: Console, tallies: Tallies, path: Path) -> None:
    """Pass@k over k, as a picture."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        console.print("No picture: it needs matplotlib, pip install 'oddlm\\[plot]'")
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    k = range(1, N + 1)
    for (method, temperature), tally in tallies.items():
        curve = [tally.pass_at(i) for i in k]
        label = f"{_label(method)}, temperature {temperature:g}"
        axes.plot(k, curve, label=label, color=COLORS[method], linestyle="-" if temperature else "--")
    axes.set(xlabel="k", ylabel="Pass@k", ylim=(0, 1), title="countdown, 4 numbers")
    axes.legend()
    figure.savefig(path, dpi=120)
    console.print(Text(f"Pass@k curves: {path}\n"))


def run_toy(*, n: int, length: int, steps: int, alpha: float, seed: int) -> None:
    console = Console()
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

"""`oddlm demo`: what diversity does to Pass@16, on the model in the package; or to a batch, on an untrained toy network."""

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

from .core.step import StepEvent
from .diversity.repulsion import Repulsion
from .files import save_figure
from .generate import LM, load
from .metrics import paired_interval, pass_at_k
from .models.toy import Toy
from .params import SampleParams, checked
from .sampler import denoise
from .sandbox import SandboxError
from .tasks import find_task
from .tasks.base import Problem, Task
from .views import open_console
from .wording import fixed, number_of, percent

N = 16
SECONDS = 140.0  # so that `make demo` ends within three minutes on two idle cores
LEAST = 10  # problems, below which nothing is concluded
COUNTDOWN = {"length": 24, "steps": 12, "eos": "late"}
MINICODE = {"length": 64, "steps": 16, "eos": "free"}
COLORS = {"none": "C0", "dpp": "C2", "odd": "C1", "auto": "C3"}


@dataclass
class Tally:
    """What one setting did, problem by problem."""

    correct: list[list[bool]] = field(default_factory=list)  # [problems][N], in the order of the samples
    texts: list[list[str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, lm: LM, task: Task, problem: Problem, how: dict[str, Any]) -> None:
        """Answer a problem, and score what was answered."""
        start = time.monotonic()
        (samples,) = lm.generate(task.prompt(problem), N, progress=False, **how)
        self.seconds += time.monotonic() - start
        texts = [sample.text for sample in samples]
        verdicts = {text: task.score(problem, text).correct for text in set(texts)}
        self.texts.append(texts)
        self.correct.append([verdicts[text] for text in texts])

    def keep(self, count: int) -> None:
        """The first `count` problems alone."""
        del self.texts[count:], self.correct[count:]

    def pass_at(self, k: int) -> float:
        return float(pass_at_k(self.correct, k).mean())

    @property
    def distinct(self) -> float:
        return float(np.mean([len(set(texts)) for texts in self.texts]))


Tallies = dict[tuple[str, float], Tally]


def run_demo(*, alpha: float, seed: int, seconds: float | None, picture: Path) -> None:
    """Plain sampling, DPP, ODD and the package's default, on as many problems as the time allows.

    seconds None: as many as SECONDS allow, and LEAST of each task however slow the machine is.
    """
    seconds, least = (SECONDS, LEAST) if seconds is None else (seconds, 1)
    if seconds <= 0:
        raise ValueError(f"seconds must be more than 0, not {seconds:g}")
    console = open_console()
    lm = load("mini")
    console.print(
        f"The mini model, {N} samples per problem; all methods spend the same network evaluations. Pass@1 is the share of "
        f"right samples, Pass@{N} the share of problems with a right one among {N}. The training data hold none "
        f"of the problems. auto is the package's default, {_auto()}.\n"
    )
    countdown = find_task("countdown")
    compare = partial(_compare, console, lm, alpha=alpha, seed=seed, least=least)
    problems = countdown.problems(count=200)
    settings = [(method, temperature) for temperature in (0.0, 1.0) for method in ("none", "dpp", "odd", "auto")]
    tallies, shown = compare("countdown, 4 numbers", countdown, problems, COUNTDOWN, settings, seconds=0.6 * seconds)
    _side_by_side(console, shown, tallies)
    _draw(console, tallies, picture)
    code = find_task("minicode")
    try:
        problems = code.problems(operations=3, count=30)
    except SandboxError as error:
        console.print(Text(f"minicode is left out: {error}"))
        return
    title = "minicode, held-out compositions of 3 operations"
    compare(title, code, problems, MINICODE, [("none", 1.0), ("auto", 1.0)], seconds=0.4 * seconds)


def _compare(
    console: Console,
    lm: LM,
    title: str,
    task: Task,
    problems: Sequence[Problem],
    shape: dict[str, Any],
    settings: Sequence[tuple[str, float]],
    *,
    alpha: float,
    seed: int,
    seconds: float,
    least: int,
) -> tuple[Tallies, list[Problem]]:
    """Every method and temperature on one problem after another, until the time is up and `least` problems are done; what
    came of it is shown, also of what was done before Ctrl-C."""
    tallies: Tallies = {setting: Tally() for setting in settings}
    began = time.monotonic()
    done: list[Problem] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task(task.name)
            for problem in problems:
                for (method, temperature), tally in tallies.items():
                    force = {} if method == "auto" else {"alpha": alpha, "fork": False}  # auto has its own
                    how = {**shape, "objective": method, **force, "temperature": temperature, "seed": seed + len(done)}
                    tally.add(lm, task, problem, how)
                done.append(problem)
                told = f" of at least {least}" if len(done) < least else ""
                progress.update(bar, description=f"{task.name}: {number_of(len(done), 'problem')}{told}")
                if len(done) >= least and (spent := time.monotonic() - began) + spent / len(done) > seconds:
                    break
    except KeyboardInterrupt:
        for tally in tallies.values():
            tally.keep(len(done))
        if done:
            _report(console, title, tallies)
        raise
    _report(console, title, tallies)
    return tallies, done


def _report(console: Console, title: str, tallies: Tallies) -> None:
    count = number_of(done := len(next(iter(tallies.values())).correct), "problem")
    table = Table("method", "temp.", "Pass@1", f"Pass@{N}", "distinct", "seconds", title=f"{title}: {count}")
    if done >= LEAST:
        table.add_column("minus plain")
    for (method, temperature), tally in tallies.items():
        scores = f"{percent(tally.pass_at(1))} %", f"{percent(tally.pass_at(N))} %", fixed(tally.distinct)
        difference = "" if method == "none" else _interval(tally, tallies["none", temperature])
        told = [_label(method), f"{temperature:g}", *scores, fixed(tally.seconds), difference]
        table.add_row(*told[: len(table.columns)])
    console.print(table)
    if done >= LEAST:
        console.print(f"minus plain: difference of Pass@{N} in points, with a 95 % bootstrap interval, paired by problem.\n")
    else:
        console.print(f"No conclusion from {count}: {LEAST} at least are needed (--seconds).\n")


def _auto() -> str:
    params = checked(SampleParams, {"objective": "auto"})
    return f"{params.method} with alpha {params.alpha:g}"


def _label(method: str) -> str:
    return "plain" if method == "none" else method


def _interval(own: Tally, plain: Tally) -> str:
    gain = paired_interval(pass_at_k(own.correct, N), pass_at_k(plain.correct, N))
    difference, low, high = (percent(value, 0, "+") for value in gain)
    return f"{difference} [{low}, {high}]"


def _side_by_side(console: Console, problems: Sequence[Problem], tallies: Tallies) -> None:
    """The first problem on which the two differ most at temperature 0."""
    plain, auto = tallies["none", 0.0], tallies["auto", 0.0]
    gains = pass_at_k(auto.correct, N) - pass_at_k(plain.correct, N)
    i = int(gains.argmax())
    *numbers, target = problems[i].prompt.split(",")
    title = f"{target} out of {', '.join(numbers)}: the first problem with the largest difference; ✓ marks right ones"
    table = Table("plain, temperature 0", "auto, temperature 0", title=title)
    for pair in zip(_marked(plain, i), _marked(auto, i), strict=True):
        table.add_row(*pair)
    console.print(table)


def _marked(tally: Tally, problem: int) -> Iterator[Text]:
    for text, right in zip(tally.texts[problem], tally.correct[problem], strict=True):
        readable = "".join(c if c.isprintable() else "?" for c in text)
        yield Text(f"✓ {readable}", style="green") if right else Text(f"  {readable}")


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

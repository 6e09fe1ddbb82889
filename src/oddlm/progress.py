"""A progress bar on stderr; by default only on a terminal and for runs longer than a moment."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .core.step import Observer

PATIENCE_S = 2.0
Done = Callable[[int], None]  # takes the number of steps done


@contextmanager
def step_progress(wanted: bool | None) -> Iterator[Observer]:
    """Yield an observer that draws the steps of a run.

    With `wanted=None` it draws on a terminal only, and after PATIENCE_S seconds.
    """
    with _bar("denoising", wanted) as update:
        yield lambda event: update(event.step.index + 1, event.step.total)


@contextmanager
def training_bar(start: int, steps: int, wanted: bool | None) -> Iterator[Done]:
    """Yield a function that draws how many of the steps of a training run are done.

    start: steps done by an earlier part of the run, which say nothing about the time left.
    """
    with _bar("training", wanted, start) as update:
        yield lambda done: update(done, steps)


@contextmanager
def _bar(words: str, wanted: bool | None, start: int = 0) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the number of steps done, and of all steps."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(words),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    # What is printed belongs above the bar on a terminal, but never into it from a file.
    together = sys.stdout.isatty()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=together)
    task = bar.add_task(words, completed=start)
    began = time.monotonic()

    def update(done: int, total: int) -> None:
        if not bar.live.is_started and (wanted or time.monotonic() - began > PATIENCE_S):
            bar.start()
        bar.update(task, total=total, completed=done)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()

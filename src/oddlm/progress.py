"""A progress bar on stderr; by default only on a terminal and for runs longer than a moment."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .core.step import Observer, StepEvent

PATIENCE_S = 2.0


@contextmanager
def step_progress(wanted: bool | None) -> Iterator[Observer]:
    """Yield an observer that draws the steps of a run.

    With `wanted=None` it draws on a terminal only, and after PATIENCE_S seconds.
    """
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda _: None
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
        TextColumn("denoising"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("denoising")
    began = time.monotonic()

    def tick(event: StepEvent) -> None:
        if not bar.live.is_started and (wanted or time.monotonic() - began > PATIENCE_S):
            bar.start()
        bar.update(task, total=event.step.total, completed=event.step.index + 1)

    try:
        yield tick
    finally:
        if bar.live.is_started:
            bar.stop()

"""A progress bar or a status line on stderr, if that is a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Tick(Protocol):
    def __call__(self, words: str, fresh: bool, count: int = 1) -> None:
        """Advance by `count` problems; `fresh` ones were computed now, others were stored."""


@contextmanager
def problem_bar(problems: int) -> Iterator[Tick]:
    """Show a bar over problems, with rate and time left; yield the function that advances it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            rate = "" if task.speed is None else f"{task.speed:.1f}/s"
            return Text(rate, style="progress.data.speed")

    console = Console(stderr=True)
    words_column = TextColumn("{task.description}", markup=False)
    columns = (words_column, BarColumn(None), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    progress = Progress(
        *columns, console=console, transient=True, expand=True, disable=not console.is_terminal
    )
    whole = progress.add_task("loading", total=problems)
    done = 0

    def tick(words: str, fresh: bool, count: int = 1) -> None:
        nonlocal done
        done += count
        if fresh:
            progress.update(whole, completed=done, description=words)
        else:
            # Stored problems say nothing about the time that the others will take.
            progress.reset(whole, completed=done, description=words)

    with progress:
        yield tick


@contextmanager
def status_line(words: str) -> Iterator[Callable[[str], None]]:
    """Show a line with a spinner; yield the function that changes its text."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(Text(words)) as status:
        yield lambda new: status.update(Text(new))

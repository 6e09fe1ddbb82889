"""A progress bar over problems, or a line that says what is being done, on stderr, where that is a
terminal.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Tick(Protocol):
    def __call__(self, words: str, fresh: bool, count: int = 1) -> None:
        """Some problems are behind us: what to say, and whether they took time (or were stored)."""


@contextmanager
def problem_bar(problems: int) -> Iterator[Tick]:
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
            return Text(
                "" if task.speed is None else f"{task.speed:.1f}/s", style="progress.data.speed"
            )

    console = Console(stderr=True)
    words_column = TextColumn("{task.description}", markup=False)
    columns = (words_column, BarColumn(None), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    progress = Progress(
        *columns, console=console, transient=True, expand=True, disable=not console.is_terminal
    )
    whole = progress.add_task("loading", total=problems)
    behind = 0

    def tick(words: str, fresh: bool, count: int = 1) -> None:
        nonlocal behind
        behind += count
        if fresh:
            progress.update(whole, completed=behind, description=words)
        else:
            progress.reset(
                whole, completed=behind, description=words
            )  # says nothing about the time the others will take

    with progress:
        yield tick


@contextmanager
def status_line(words: str) -> Iterator[Callable[[str], None]]:
    """A line with a spinner; what is yielded changes its words."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(Text(words)) as status:
        yield lambda new: status.update(Text(new))

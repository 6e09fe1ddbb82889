"""A progress bar over problems, or a line that says what is being done, on stderr, where that is a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tick = Callable[[str, bool], None]  # what to say, and whether the problem took time (or was stored)


@contextmanager
def problem_bar(problems: int) -> Iterator[Tick]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_terminal)
    whole = progress.add_task("loading", total=problems)
    count = 0

    def tick(words: str, fresh: bool) -> None:
        nonlocal count
        count += 1
        if fresh:
            progress.update(whole, completed=count, description=words)
        else:
            progress.reset(whole, completed=count, description=words)  # says nothing about the time the others will take

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

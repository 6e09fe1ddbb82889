"""Observers of runs: Weights & Biases, MLflow, TensorBoard, or one's own. None is imported before
it is asked for, torch never.

Ours are told what was asked and how it stands, in numbers; prompts and samples stay in the store.
One's own is a function of the store's folder that gives a `Tracker`, and sees the scored records.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...registry import Registry
from ...spec import RunSpec
from ...store import Scored, Summary
from . import mlflow, tensorboard, wandb
from .pages import Page

__all__ = ["TRACKERS", "Page", "Tracker", "tracker", "tracking"]


@runtime_checkable
class Tracker(Protocol):
    """Told of every run. Runs may overlap; between start and finish there is a record per problem,
    stored ones too.
    """

    def start(self, spec: RunSpec, problems: int) -> None: ...

    def record(self, spec: RunSpec, record: Scored) -> None: ...

    def finish(self, spec: RunSpec, summary: Summary) -> None: ...

    def close(self) -> None:
        """Runs that have not finished are left as they are."""


OpenTracker = Callable[[Path], Tracker]  # folder: for those that write files of their own

TRACKERS: Registry[OpenTracker] = Registry("tracker")
for _ours in (wandb.wandb, mlflow.mlflow, tensorboard.tensorboard):
    TRACKERS.register(_ours)


def tracker(name: str, folder: Path) -> Tracker:
    """One by its name or dotted path. ValueError where it cannot be used."""
    open_tracker = TRACKERS.find(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the packages among themselves
            opened = open_tracker(folder)
    except Exception as error:  # each package has its own
        if isinstance(error, ImportError) and name in TRACKERS.names:
            install = f"pip install 'oddlm[{name}]'"
            raise ValueError(
                f"tracker {name!r} needs the extra of that name: {install} ({error})"
            ) from error
        raise ValueError(f"tracker {name!r} cannot be used: {_first_line(error)}") from error
    if not isinstance(opened, Tracker):
        missing = [
            method
            for method in ("start", "record", "finish", "close")
            if not hasattr(opened, method)
        ]
        raise ValueError(f"tracker {name!r} gives {opened!r}, which has no {', '.join(missing)}")
    return opened


@contextmanager
def tracking(names: Sequence[str], folder: Path) -> Iterator[Tracker]:
    """The trackers of a command as one, closed at its end.

    One that fails on the way is switched off, with a warning.
    """
    together = _Together()
    try:
        for name in dict.fromkeys(names):
            together.working[name] = tracker(name, folder)
        yield together
    finally:
        together.close()


class _Together:
    def __init__(self) -> None:
        self.working: dict[str, Tracker] = {}  # by name

    def start(self, spec: RunSpec, problems: int) -> None:
        self._each(lambda tracker: tracker.start(spec, problems))

    def record(self, spec: RunSpec, record: Scored) -> None:
        self._each(lambda tracker: tracker.record(spec, record))

    def finish(self, spec: RunSpec, summary: Summary) -> None:
        self._each(lambda tracker: tracker.finish(spec, summary))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for name, one in list(self.working.items()):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tell(one)
            except Exception as error:  # whatever it is, the run is worth more
                del self.working[name]
                with suppress(Exception):
                    one.close()
                warnings.warn(
                    f"tracker {name} failed and is switched off ({_first_line(error)}); the run goes on",
                    stacklevel=2,
                )


def _first_line(error: Exception) -> str:
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{kind}{error}".strip().partition("\n")[0][:300]

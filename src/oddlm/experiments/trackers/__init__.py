"""Trackers follow runs: Weights & Biases, MLflow, TensorBoard, or your own.

Their packages are imported only when used; torch is never imported. The trackers here log settings
and numbers; prompts and samples stay in the store. Your own tracker is a function that takes the
store's folder and returns a `Tracker`; it gets the scored records.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from ...registry import Registry
from ...spec import RunSpec
from ...store import Scored, Summary
from . import mlflow, tensorboard, wandb
from .pages import Numbers, Page

__all__ = ["TRACKERS", "Follow", "Page", "Tracker", "following", "tracker", "tracking"]


@runtime_checkable
class Tracker(Protocol):
    """Follows runs, which may overlap.

    Between `start` and `finish`, `record` is called once per problem, also for problems that were
    already in the store.
    """

    def start(self, spec: RunSpec, problems: int) -> None: ...

    def record(self, spec: RunSpec, record: Scored) -> None: ...

    def finish(self, spec: RunSpec, summary: Summary) -> None: ...

    def close(self) -> None:
        """End tracking. Runs that have not finished stay unfinished."""


@runtime_checkable
class Follower(Protocol):
    """Follows runs that have steps rather than problems: training."""

    def open(self, run: str, settings: Mapping[str, Any]) -> None: ...

    def log(self, run: str, numbers: Numbers, step: int) -> None: ...

    def end(self, run: str, numbers: Numbers) -> None: ...


Follow = Callable[[Numbers, int], None]  # takes numbers and the step they belong to
OpenTracker = Callable[[Path], Tracker]  # takes the store's folder, for trackers that write files

TRACKERS: Registry[OpenTracker] = Registry("tracker")
for _ours in (wandb.wandb, mlflow.mlflow, tensorboard.tensorboard):
    TRACKERS.register(_ours)


def tracker(name: str, folder: Path) -> Tracker:
    """Open a tracker by its name or dotted path; raise ValueError if it cannot be used."""
    open_tracker = TRACKERS.find(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the packages warn about each other
            opened = open_tracker(folder)
    except Exception as error:  # every package has its own kinds
        if isinstance(error, ImportError) and name in TRACKERS.names:
            install = f"pip install 'oddlm[{name}]'"
            raise ValueError(
                f"tracker {name!r} needs the extra of that name: {install} ({error})"
            ) from error
        raise ValueError(f"tracker {name!r} cannot be used: {_first_line(error)}") from error
    if not isinstance(opened, Tracker):
        methods = ("start", "record", "finish", "close")
        missing = ", ".join(method for method in methods if not hasattr(opened, method))
        raise ValueError(f"tracker {name!r} returned {opened!r}, which has no {missing}")
    return opened


@contextmanager
def tracking(names: Sequence[str], folder: Path) -> Iterator["_Together"]:
    """Open several trackers as one, and close them at the end.

    A tracker that fails during a run is switched off, with a warning.
    """
    together = _Together()
    try:
        for name in dict.fromkeys(names):
            together.working[name] = tracker(name, folder)
        yield together
    finally:
        together.close()


@contextmanager
def following(
    names: Sequence[str], folder: Path, run: str, settings: Mapping[str, Any]
) -> Iterator[Follow]:
    """Let trackers follow a training run; yield the function that takes its numbers.

    Raise ValueError for a tracker that follows only runs over problems.
    """
    last: dict[str, float] = {}
    with tracking(names, folder) as together:
        for name, one in together.working.items():
            if not isinstance(one, Follower):
                raise ValueError(
                    f"tracker {name!r} cannot follow training: it has no open, log and end"
                )
        together.follow(lambda follower: follower.open(run, settings))

        def follow(numbers: Numbers, step: int) -> None:
            last.update(numbers)
            together.follow(lambda follower: follower.log(run, numbers, step))

        yield follow
        together.follow(lambda follower: follower.end(run, last))


class _Together:
    def __init__(self) -> None:
        self.working: dict[str, Tracker] = {}  # by name

    def start(self, spec: RunSpec, problems: int) -> None:
        self._each(lambda tracker: tracker.start(spec, problems))

    def record(self, spec: RunSpec, record: Scored) -> None:
        self._each(lambda tracker: tracker.record(spec, record))

    def finish(self, spec: RunSpec, summary: Summary) -> None:
        self._each(lambda tracker: tracker.finish(spec, summary))

    def follow(self, call: Callable[[Follower], None]) -> None:
        self._each(lambda tracker: call(cast("Follower", tracker)))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.working.items()):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call(tracker)
            except Exception as error:  # a tracker must never stop a run
                del self.working[name]
                with suppress(Exception):
                    tracker.close()
                warnings.warn(
                    f"tracker {name} failed and is switched off ({_first_line(error)}); "
                    "the run continues",
                    stacklevel=2,
                )


def _first_line(error: Exception) -> str:
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{kind}{error}".strip().partition("\n")[0][:300]

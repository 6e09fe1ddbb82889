"""Observers of runs: Weights & Biases, MLflow, TensorBoard. None of them is imported before it is asked for, torch never.

They are told what was asked and how it stands, in numbers; prompts and samples stay in the store.
"""

import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from .params import RunSpec
from .store import Row, Store, Summary

PROJECT = "oddlm"
Numbers = Mapping[str, float]
Watch = Callable[[Row, bool], None]


class Tracker(Protocol):
    """Told of every run. Runs may overlap; between start and finish there is a row per problem, stored ones too."""

    def start(self, spec: RunSpec, problems: int) -> None: ...

    def row(self, spec: RunSpec, row: Row) -> None: ...

    def finish(self, spec: RunSpec, summary: Summary) -> None: ...

    def close(self) -> None:
        """Runs that have not finished are left as they are."""


class Page(Protocol):
    """Where the numbers of one run go."""

    def log(self, numbers: Numbers, step: int) -> None: ...

    def end(self, numbers: Numbers | None) -> None:
        """With the numbers of the whole run; None where it was stopped."""


def tracker(name: str, folder: Path) -> Tracker:
    """One by its name; `folder` is for those that write files of their own. ValueError where it cannot be used."""
    if name not in _OPENERS:
        raise ValueError(f"unknown tracker {name!r}; known: {', '.join(_OPENERS)}")
    package, opener = _OPENERS[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the packages among themselves
            import_module(package)
            return _Pages(opener(folder))
    except ImportError as error:
        raise ValueError(f"tracker {name!r} needs the extra of that name: pip install 'oddlm[{name}]' ({error})") from error
    except Exception as error:  # each package has its own
        raise ValueError(f"tracker {name!r} cannot be used: {_first_line(error)}") from error


@contextmanager
def tracking(names: Sequence[str], folder: Path) -> Iterator[Tracker]:
    """The trackers of a command as one, closed at its end. One that fails on the way is switched off, with a warning."""
    together = _Together({name: tracker(name, folder) for name in names})
    try:
        yield together
    finally:
        together.close()


@contextmanager
def followed(tracker: Tracker, store: Store, spec: RunSpec, problems: int, watch: Watch) -> Iterator[Watch]:
    """A watch for one run that tells the tracker too, which hears the stored summary at the end."""

    def both(row: Row, fresh: bool) -> None:
        watch(row, fresh)
        tracker.row(spec, row)

    tracker.start(spec, problems)
    yield both
    summary = store.head(spec.id).summary
    if summary is not None:
        tracker.finish(spec, summary)


class _Together:
    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._working = dict(trackers)

    def start(self, spec: RunSpec, problems: int) -> None:
        self._each(lambda tracker: tracker.start(spec, problems))

    def row(self, spec: RunSpec, row: Row) -> None:
        self._each(lambda tracker: tracker.row(spec, row))

    def finish(self, spec: RunSpec, summary: Summary) -> None:
        self._each(lambda tracker: tracker.finish(spec, summary))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for name, one in list(self._working.items()):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tell(one)
            except Exception as error:  # whatever it is, the run is worth more
                del self._working[name]
                with suppress(Exception):
                    one.close()
                warnings.warn(
                    f"tracker {name} failed and is switched off ({_first_line(error)}); the run goes on", stacklevel=2
                )


class _Pages:
    """A tracker out of a way to open pages."""

    def __init__(self, open_page: Callable[[RunSpec, int], Page]) -> None:
        self._open_page = open_page
        self._open: dict[str, tuple[Page, _Standing]] = {}  # by run

    def start(self, spec: RunSpec, problems: int) -> None:
        if spec.id in self._open:  # it was given up, and begins again
            self._open.pop(spec.id)[0].end(None)
        self._open[spec.id] = (self._open_page(spec, problems), _Standing())

    def row(self, spec: RunSpec, row: Row) -> None:
        page, standing = self._open[spec.id]
        page.log(standing.add(row), standing.rows)

    def finish(self, spec: RunSpec, summary: Summary) -> None:
        page, _ = self._open.pop(spec.id)
        page.end(_known({**(summary.passed or {}), **summary.diversity, "seconds": summary.seconds}))

    def close(self) -> None:
        while self._open:
            page, _ = self._open.popitem()[1]
            page.end(None)


@dataclass
class _Standing:
    """Of a run, after some of its rows."""

    rows: int = 0
    right: float = 0.0
    solved: float = 0.0

    def add(self, row: Row) -> dict[str, float]:
        """Pass@k over the rows so far, the rest of this row."""
        self.rows += 1
        numbers: dict[str, float | None] = {**row.diversity, "seconds": row.seconds + row.score_seconds}
        if any(sample.correct is not None for sample in row.samples):
            n = len(row.samples)
            self.right += sum(row.correct) / n
            self.solved += any(row.correct)
            numbers |= {f"pass@{n}": self.solved / self.rows, "pass@1": self.right / self.rows}
        return _known(numbers)


def described(spec: RunSpec, problems: int) -> dict[str, Any]:
    """What was asked, flat, in the spelling that makes the id."""
    content = spec.canonical()
    return {**content.pop("params"), **content, "problems": problems}


def _known(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if value is not None}


def _first_line(error: Exception) -> str:
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{kind}{error}".strip().partition("\n")[0][:300]


# Each package's part: a function of the folder that refuses what cannot work and gives a way to open a page.


def _wandb(folder: Path) -> Callable[[RunSpec, int], Page]:
    """Its own variables decide where things go: WANDB_MODE, WANDB_PROJECT, WANDB_DIR, ..."""
    import wandb

    if os.environ.get("WANDB_MODE", "online") in ("online", "shared"):
        try:
            wandb.Api()
        except wandb.errors.UsageError as error:
            raise ValueError(f"{error} Or set WANDB_MODE=offline.") from error

    def open_page(spec: RunSpec, problems: int) -> Page:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=spec.id,
            config=described(spec, problems),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", init_timeout=30),
        )
        return _WandbPage(run)

    return open_page


@dataclass(frozen=True)
class _WandbPage:
    run: Any

    def log(self, numbers: Numbers, step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def end(self, numbers: Numbers | None) -> None:
        self.run.summary.update(dict(numbers or {}))
        self.run.finish(exit_code=1 if numbers is None else 0)


def _mlflow(folder: Path) -> Callable[[RunSpec, int], Page]:
    """MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME decide where things go; without, an SQLite file in the working folder."""
    import mlflow

    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # by default a server that is gone holds a run up for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    client = mlflow.MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    found = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if found is None else found.experiment_id

    def open_page(spec: RunSpec, problems: int) -> Page:
        earlier = client.search_runs([experiment], f"tags.`{PROJECT}.run` = '{spec.id}'", max_results=1)
        if earlier:
            client.update_run(earlier[0].info.run_id, status="RUNNING")
            return _MlflowPage(client, earlier[0].info.run_id)
        run = client.create_run(experiment, tags={f"{PROJECT}.run": spec.id}, run_name=spec.id)
        params = [mlflow.entities.Param(key, str(value)) for key, value in described(spec, problems).items()]
        client.log_batch(run.info.run_id, params=params)
        return _MlflowPage(client, run.info.run_id)

    return open_page


@dataclass(frozen=True)
class _MlflowPage:
    client: Any
    run: str

    def log(self, numbers: Numbers, step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name.replace("@", "_at_"), value, now, step) for name, value in numbers.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def end(self, numbers: Numbers | None) -> None:
        if numbers is not None:
            self.log({f"run/{name}": value for name, value in numbers.items()}, 0)
        self.client.set_terminated(self.run, "KILLED" if numbers is None else "FINISHED")


def _tensorboard(folder: Path) -> Callable[[RunSpec, int], Page]:
    """A folder of event files per run, in folder/tensorboard. Written here and now: its own writer fails in a thread."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    def open_page(spec: RunSpec, problems: int) -> Page:
        path = folder / "tensorboard" / spec.id / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        page = _TensorboardPage(RecordWriter(path.open("wb")))
        page.write(file_version="brain.Event:2")
        return page

    return open_page


@dataclass(frozen=True)
class _TensorboardPage:
    writer: Any

    def log(self, numbers: Numbers, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary as Values

        values = [Values.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self.write(step=step, summary=Values(value=values))

    def write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.write(Event(wall_time=time.time(), **content).SerializeToString())
        self.writer.flush()

    def end(self, numbers: Numbers | None) -> None:
        if numbers is not None:
            self.log({f"run/{name}": value for name, value in numbers.items()}, 0)
        self.writer.close()


_OPENERS: dict[str, tuple[str, Callable[[Path], Callable[[RunSpec, int], Page]]]] = {
    "wandb": ("wandb", _wandb),
    "mlflow": ("mlflow", _mlflow),
    "tensorboard": ("tensorboard", _tensorboard),
}

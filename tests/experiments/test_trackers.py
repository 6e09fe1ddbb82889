"""The trackers, each with its real package, offline."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from oddlm.config import checked
from oddlm.experiments.identity import identified
from oddlm.experiments.trackers import TRACKERS, tracker, tracking
from oddlm.spec import RunSpec
from oddlm.store import Store

from .. import runs
from ..cli.test_eval import RULE, oddlm  # noqa: F401
from ..own_task import TASK

PROBLEMS = TASK.load(limit=3)
DIARY = "tests.experiments.test_trackers.Diary"


def spec(**changes) -> RunSpec:
    params = {"length": 6, "temperature": 1, "objective": "odd"}
    return identified(
        checked(RunSpec, {"model": "toy", "task": RULE, "n": 4, "params": params, **changes})
    )


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Store(tmp_path / "runs")


def run(store, told, spec, watch=lambda _: None):
    return runs.run(store, spec, PROBLEMS, tracker=told, watch=watch)


def standing(records) -> list[tuple[float, float]]:
    """Return (pass@1, pass@4) after each record."""
    right = [sum(record.correct) / 4 for record in records]
    solved = [any(record.correct) for record in records]
    return [
        (sum(right[: i + 1]) / (i + 1), sum(solved[: i + 1]) / (i + 1)) for i in range(len(records))
    ]


def test_tensorboard_reads_its_files_back(store, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracking(["tensorboard"], tmp_path) as told:
        records = run(store, told, spec())
    read = EventAccumulator(str(tmp_path / "tensorboard" / spec().id)).Reload()
    assert [event.step for event in read.Scalars("pass@4")] == [1, 2, 3]
    assert [event.value for event in read.Scalars("pass@1")] == pytest.approx(
        [one for one, _ in standing(records)]
    )
    assert [event.value for event in read.Scalars("pass@4")] == pytest.approx(
        [four for _, four in standing(records)]
    )
    assert [e.value for e in read.Scalars("distinct_texts")] == pytest.approx(
        [r.diversity["distinct_texts"] for r in records]
    )
    summary = store.read(spec().id).summary
    assert read.Scalars("run/pass@4")[0].value == pytest.approx(summary.passed["pass@4"])


def test_mlflow_in_a_database_of_its_own(store, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for _ in range(2):  # the second time nothing is drawn, and MLflow's run is reused
        with tracking(["mlflow"], tmp_path) as told:
            records = run(store, told, spec())
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("oddlm").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.tags["oddlm.run"] == spec().id
    assert found.data.params["temperature"] == "1.0"
    history = client.get_metric_history(found.info.run_id, "pass_at_4")
    assert {(m.step, m.value) for m in history} == {
        (i + 1, four) for i, (_, four) in enumerate(standing(records))
    }
    assert found.data.metrics["run/pass_at_1"] == pytest.approx(standing(records)[-1][0])
    # The database breaks in mid-run: the records are stored anyway, with one warning.
    second, broken = spec(seed=1), []

    def watch(progress):
        if not broken:
            (tmp_path / "mlflow.db").write_bytes(b"no database " * 1000)
            broken.append(progress)

    with (
        pytest.warns(UserWarning, match="tracker mlflow failed and is switched off") as said,
        tracking(["mlflow"], tmp_path) as told,
    ):
        assert len(run(store, told, second, watch)) == 3
    assert len(said) == 1
    assert store.read(second.id).summary.problems == 3


def wandb_records(path: Path) -> Iterator[bytes]:
    """Yield the records of W&B's file.

    After a header of 7 bytes it has blocks of 32 KiB of (checksum, length, kind, content), like a
    log of LevelDB.
    """
    data, place, part = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield part
            part = b""


def test_wandb_offline(tmp_path):
    """Run in a separate process, as W&B keeps a service process and exit hooks."""
    code = """
from pathlib import Path
from tests.experiments.test_trackers import Store, run, spec, tracking
store = Store(Path("runs"))
with tracking(["wandb"], Path(".")) as told:
    run(store, told, spec())
    told.start(spec(seed=7), 3)
"""
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    env |= {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:oddlm", "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    from wandb.proto.wandb_internal_pb2 import Record

    records = Store(tmp_path / "runs").read(spec().id).records
    files = {path.stem: path for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert set(files) == {f"run-{spec().id}", f"run-{spec(seed=7).id}"}
    kept = [Record.FromString(record) for record in wandb_records(files[f"run-{spec().id}"])]
    history = [
        {item.nested_key[0]: json.loads(item.value_json) for item in r.history.item}
        for r in kept
        if r.HasField("history")
    ]
    assert [(h["_step"], h["pass@1"], h["pass@4"]) for h in history] == [
        (i + 1, pytest.approx(one), pytest.approx(four))
        for i, (one, four) in enumerate(standing(records))
    ]
    config = {
        u.key: json.loads(u.value_json)
        for r in kept
        if r.HasField("run")
        for u in r.run.config.update
    }
    assert (config["objective"], config["n"], config["problems"]) == ("odd", 4, 3)
    assert [r.exit.exit_code for r in kept if r.HasField("exit")] == [0]
    stopped = [
        Record.FromString(record) for record in wandb_records(files[f"run-{spec(seed=7).id}"])
    ]
    assert [r.exit.exit_code for r in stopped if r.HasField("exit")] == [1]
    assert b"t5 t9" not in files[f"run-{spec().id}"].read_bytes(), "prompts and samples stay here"


def test_a_full_disk_switches_one_tracker_off_and_loses_no_record(store, tmp_path):
    """In mid-run, TensorBoard's file becomes /dev/full, where writes fail as on a full disk."""

    def fill(*_) -> None:
        for link in Path("/proc/self/fd").iterdir():
            if "tfevents" in os.path.realpath(link):
                with Path("/dev/full").open("wb") as full:
                    os.dup2(full.fileno(), int(link.name))

    def two_runs() -> None:
        with tracking(["tensorboard"], tmp_path) as told:
            run(store, told, spec(), fill)
            run(store, told, spec(seed=1))

    with pytest.warns(
        UserWarning, match="tracker tensorboard failed and is switched off .*No space left"
    ) as said:
        two_runs()
    assert len(said) == 1
    assert [store.read(s.id).summary.problems for s in (spec(), spec(seed=1))] == [3, 3]


def test_names_and_packages(tmp_path):
    assert TRACKERS.names == ["mlflow", "tensorboard", "wandb"]
    with pytest.raises(
        ValueError, match="unknown tracker 'wanb'; known: mlflow, tensorboard, wandb"
    ):
        tracker("wanb", tmp_path)


@pytest.mark.parametrize("name", TRACKERS.names)
def test_a_package_that_is_not_installed_is_told_with_its_extra(name):
    code = f"""
import sys
from pathlib import Path
from oddlm.experiments.trackers import tracker
sys.modules[{name!r}] = None
try:
    tracker({name!r}, Path("."))
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        f"tracker {name!r} needs the extra of that name: pip install 'oddlm[{name}]'" in done.stdout
    )


def test_none_is_imported_before_it_is_asked_for():
    packages = {"wandb", "mlflow", "tensorboard"}
    code = "import sys, oddlm.experiments.trackers; "
    code += f"sys.exit(' '.join({packages} & set(sys.modules)) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Diary:
    """A custom tracker."""

    kept: ClassVar[list["Diary"]] = []

    def __init__(self, folder: Path) -> None:
        self.folder, self.events = folder, []
        self.kept.append(self)

    def start(self, spec, problems) -> None:
        self.events.append(("start", spec.id, problems))

    def record(self, spec, record) -> None:
        self.events.append(("record", spec.id, record.problem))

    def finish(self, spec, summary) -> None:
        self.events.append(("finish", spec.id, summary.problems))

    def close(self) -> None:
        self.events.append(("close",))


def half_a_tracker(folder: Path) -> object:
    return SimpleNamespace(start=print, record=print)


def no_tracker(folder: Path) -> object:
    raise ImportError(f"nothing in {folder}")


@pytest.fixture
def diaries(monkeypatch):
    monkeypatch.setattr(Diary, "kept", [])
    return Diary.kept


def test_one_of_ones_own(store, tmp_path, diaries):
    with tracking([DIARY, DIARY], tmp_path) as told:
        run(store, told, spec())
    (diary,) = diaries
    records = [("record", spec().id, problem.id) for problem in PROBLEMS]
    assert diary.folder == tmp_path
    assert diary.events == [("start", spec().id, 3), *records, ("finish", spec().id, 3), ("close",)]


def test_those_before_one_that_is_refused_are_closed(tmp_path, diaries):
    with (
        pytest.raises(ValueError, match="unknown tracker 'wanb'"),
        tracking([DIARY, "wanb"], tmp_path),
    ):
        pass
    assert [diary.events for diary in diaries] == [[("close",)]]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.experiments.test_trackers.half_a_tracker", "has no finish, close"),
        (
            "tests.experiments.test_trackers.no_tracker",
            r"no_tracker' cannot be used: ImportError: nothing in",
        ),
        (
            "tests.experiments.test_trackers.nobody",
            r"nobody' cannot be imported.*has no attribute 'nobody'",
        ),
        ("tests.experiments.test_trackers.PROBLEMS", r"PROBLEMS' is not a function"),
        ("", "unknown tracker ''"),
    ],
)
def test_what_is_no_tracker_is_refused_before_anything_runs(name, says, tmp_path):
    with pytest.raises(ValueError, match=says), tracking([name], tmp_path):
        pytest.fail("it began")


def test_a_server_that_is_not_there_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"tracker 'mlflow' cannot be used: .*127\.0\.0\.1"):
        tracker("mlflow", tmp_path)
    assert time.monotonic() - began < 60, "seconds, where MLflow's own retries take minutes"


def test_eval_tells_them(oddlm):  # noqa: F811
    command = [
        "eval",
        RULE,
        "--model",
        "toy",
        "--n",
        "2",
        "--limit",
        "2",
        "--alpha",
        "8",
        "--track",
        "tensorboard",
    ]
    assert oddlm(*command)[0] == 0
    assert {path.parent.name for path in Path("runs/tensorboard").glob("*/events*")} == set(
        Store(Path("runs")).ids()
    )
    code, out, err = oddlm("eval", RULE, "--limit", "1", "--track", "wanb")
    assert (code, out, err) == (
        2,
        "",
        "oddlm: unknown tracker 'wanb'; known: mlflow, tensorboard, wandb, or a dotted path\n",
    )


def test_eval_tells_one_of_ones_own(oddlm, diaries):  # noqa: F811
    assert (
        oddlm(
            "eval",
            RULE,
            "--model",
            "toy",
            "--n",
            "2",
            "--limit",
            "2",
            "--alpha",
            "8",
            "--track",
            DIARY,
        )[0]
        == 0
    )
    (diary,) = diaries
    runs = Store(Path("runs")).ids()
    assert diary.events[-1] == ("close",)
    for run in runs:  # they overlap
        assert [event[0] for event in diary.events[:-1] if event[1] == run] == [
            "start",
            "record",
            "record",
            "finish",
        ]

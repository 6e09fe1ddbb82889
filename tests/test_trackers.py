"""The trackers, each with its real package, offline."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oddlm import load
from oddlm.evaluate import Runner, identified
from oddlm.params import RunSpec, checked
from oddlm.store import Store
from oddlm.trackers import followed, tracker, tracking

from .own_task import TASK
from .test_cli_eval import RULE, oddlm  # noqa: F401

PROBLEMS = TASK.load(limit=3)


def spec(**changes) -> RunSpec:
    params = {"length": 6, "temperature": 1, "objective": "odd"}
    return identified(checked(RunSpec, {"model": "toy", "task": "own", "n": 4, "limit": 3, "params": params, **changes}))


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Runner(Store(tmp_path / "runs"), lambda: load("toy"))


def run(runner, told, spec):
    with followed(told, runner.store, spec, len(PROBLEMS), lambda *_: None) as watch:
        return runner.run(spec, TASK, PROBLEMS, watch)


def standing(rows) -> list[tuple[float, float]]:
    """(pass@1, pass@4) after each row."""
    right = [sum(row.correct) / 4 for row in rows]
    solved = [any(row.correct) for row in rows]
    return [(sum(right[: i + 1]) / (i + 1), sum(solved[: i + 1]) / (i + 1)) for i in range(len(rows))]


def test_tensorboard_reads_its_files_back(runner, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracking(["tensorboard"], tmp_path) as told:
        rows = run(runner, told, spec())
    read = EventAccumulator(str(tmp_path / "tensorboard" / spec().id)).Reload()
    assert [event.step for event in read.Scalars("pass@4")] == [1, 2, 3]
    assert [event.value for event in read.Scalars("pass@1")] == pytest.approx([one for one, _ in standing(rows)])
    assert [event.value for event in read.Scalars("pass@4")] == pytest.approx([four for _, four in standing(rows)])
    assert [e.value for e in read.Scalars("distinct_texts")] == pytest.approx([r.diversity["distinct_texts"] for r in rows])
    summary = runner.store.read(spec().id).summary
    assert read.Scalars("run/pass@4")[0].value == pytest.approx(summary.passed["pass@4"])


def test_mlflow_in_a_database_of_its_own(runner, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for _ in range(2):  # the second time nothing is drawn, and it is the same run there
        with tracking(["mlflow"], tmp_path) as told:
            rows = run(runner, told, spec())
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("oddlm").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.tags["oddlm.run"] == spec().id
    assert found.data.params["temperature"] == "1.0"
    history = client.get_metric_history(found.info.run_id, "pass_at_4")
    assert {(m.step, m.value) for m in history} == {(i + 1, four) for i, (_, four) in enumerate(standing(rows))}
    assert found.data.metrics["run/pass_at_1"] == pytest.approx(standing(rows)[-1][0])
    # The database breaks in mid-run: the rows are stored all the same, and one warning says so.
    second, broken = spec(seed=1), []

    def watch(row, fresh):
        if not broken:
            (tmp_path / "mlflow.db").write_bytes(b"no database " * 1000)
            broken.append(row)

    with (
        pytest.warns(UserWarning, match="tracker mlflow failed and is switched off .*the run goes on") as said,
        tracking(["mlflow"], tmp_path) as told,
        followed(told, runner.store, second, 3, watch) as tell,
    ):
        assert len(runner.run(second, TASK, PROBLEMS, tell)) == 3
    assert len(said) == 1
    assert runner.store.read(second.id).summary.problems == 3


def records(path: Path) -> Iterator[bytes]:
    """Of W&B's own file: a header of 7 bytes, then blocks of 32 KiB of (checksum, length, kind, content), as LevelDB's log."""
    data, place, part = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of its parts
            yield part
            part = b""


def test_wandb_offline(tmp_path):
    """In a process of its own: W&B keeps a service process and hooks at exit."""
    code = """
from pathlib import Path
from tests.test_trackers import PROBLEMS, Runner, Store, load, run, spec, tracking
runner = Runner(Store(Path("runs")), lambda: load("toy"))
with tracking(["wandb"], Path(".")) as told:
    run(runner, told, spec())
    told.start(spec(seed=7), 3)
"""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
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

    rows = Store(tmp_path / "runs").read(spec().id).rows
    files = {path.stem: path for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert set(files) == {f"run-{spec().id}", f"run-{spec(seed=7).id}"}
    kept = [Record.FromString(record) for record in records(files[f"run-{spec().id}"])]
    history = [
        {item.nested_key[0]: json.loads(item.value_json) for item in r.history.item} for r in kept if r.HasField("history")
    ]
    assert [(h["_step"], h["pass@1"], h["pass@4"]) for h in history] == [
        (i + 1, pytest.approx(one), pytest.approx(four)) for i, (one, four) in enumerate(standing(rows))
    ]
    config = {u.key: json.loads(u.value_json) for r in kept if r.HasField("run") for u in r.run.config.update}
    assert (config["objective"], config["n"], config["problems"]) == ("odd", 4, 3)
    assert [r.exit.exit_code for r in kept if r.HasField("exit")] == [0]
    stopped = [Record.FromString(record) for record in records(files[f"run-{spec(seed=7).id}"])]
    assert [r.exit.exit_code for r in stopped if r.HasField("exit")] == [1]
    assert b"t5 t9" not in files[f"run-{spec().id}"].read_bytes(), "prompts and samples stay here"


def test_a_full_disk_switches_one_tracker_off_and_loses_no_row(runner, tmp_path):
    """In mid-run TensorBoard's file becomes /dev/full, where every write fails as on a full disk."""

    def fill(*_) -> None:
        for link in Path("/proc/self/fd").iterdir():
            if "tfevents" in os.path.realpath(link):
                with Path("/dev/full").open("wb") as full:
                    os.dup2(full.fileno(), int(link.name))

    def two_runs() -> None:
        with tracking(["tensorboard"], tmp_path) as told:
            with followed(told, runner.store, spec(), 3, fill) as watch:
                runner.run(spec(), TASK, PROBLEMS, watch)
            run(runner, told, spec(seed=1))

    with pytest.warns(UserWarning, match="tracker tensorboard failed and is switched off .*No space left") as said:
        two_runs()
    assert len(said) == 1
    assert [runner.store.read(s.id).summary.problems for s in (spec(), spec(seed=1))] == [3, 3]


def test_names_and_packages(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="unknown tracker 'wanb'; known: wandb, mlflow, tensorboard"):
        tracker("wanb", tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        ValueError, match=r"tracker 'tensorboard' needs the extra of that name: pip install 'oddlm\[tensorboard\]'"
    ):
        tracker("tensorboard", tmp_path)


def test_a_server_that_is_not_there_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"tracker 'mlflow' cannot be used: .*127\.0\.0\.1"):
        tracker("mlflow", tmp_path)
    assert time.monotonic() - began < 60, "seconds, where MLflow's own retries take minutes"


def test_eval_tells_them(oddlm):  # noqa: F811
    command = ["eval", RULE, "--model", "toy", "--n", "2", "--limit", "2", "--alpha", "8", "--track", "tensorboard"]
    assert oddlm(*command)[0] == 0
    assert {path.parent.name for path in Path("runs/tensorboard").glob("*/events*")} == set(Store(Path("runs")).ids())
    code, out, err = oddlm("eval", RULE, "--limit", "1", "--track", "wanb")
    assert (code, out, err) == (2, "", "oddlm: unknown tracker 'wanb'; known: wandb, mlflow, tensorboard\n")

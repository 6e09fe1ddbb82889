"""Sweeps on real Ray clusters on this machine, with a raylet that is killed, and bad clusters."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oddlm.experiments.executors.ray import connect
from oddlm.store import Store

from .. import own_task
from ..runs import scored, stored, sweep_inline
from ..waiting import WAIT_S, wait_until
from .running import GRID, start, sweep
from .test_run import ENV, ROOT

SMOKE = ROOT / "grids" / "smoke.toml"
SCRIPT = Path(__file__).with_name("ray_cluster.py")


@contextmanager
def cluster_of(nodes: int, python: str = sys.executable) -> Iterator[dict[str, Any]]:
    process = subprocess.Popen(
        [python, str(SCRIPT), str(nodes)],
        cwd=SCRIPT.parent,
        env={name: value for name, value in ENV.items() if name != "PYTHONPATH"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        line = next((line for line in process.stdout if line.startswith("{")), None)
        assert line is not None, f"the cluster did not start: exit status {process.wait()}"
        yield json.loads(line)
    finally:
        process.communicate(timeout=WAIT_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENV, "ODDLM_TEST_HUNG", str(tmp_path_factory.mktemp("hung") / "once"))
        with cluster_of(2) as found:
            yield found


def grid(folder: Path, task: str) -> Path:
    path = folder / f"{task}.toml"
    path.write_text(GRID.format(task=f"tests.own_task.{task}"))
    return path


def on_ray(cluster: dict[str, Any]) -> list[str]:
    return ["--executor", f"ray:address={cluster['address']}"]


def test_the_same_rows_as_local(cluster, tmp_path):
    code, out, err = sweep(SMOKE, tmp_path / "ray", *on_ray(cluster), "--together", "3")
    assert (code, err) == (0, "")
    assert "12 of 12 runs are complete" in out
    sweep_inline(SMOKE, tmp_path / "local")
    assert stored(tmp_path / "ray") == stored(tmp_path / "local")
    assert [len(run) for run in stored(tmp_path / "ray").values()] == [4] * 12


@pytest.mark.soak
def test_nine_tenths_of_results_and_a_list_of_failures(cluster, tmp_path):
    code, _, err = sweep(grid(tmp_path, "FAILING"), tmp_path / "runs", *on_ray(cluster))
    assert code == 1
    assert "16 of 160 problems failed" in err
    assert "own/13: RuntimeError: no verdict on own/13" in err
    assert scored(tmp_path / "runs") == 18 * 8


@pytest.mark.soak
def test_a_worker_that_hangs_is_replaced(cluster, tmp_path, monkeypatch):
    path = grid(tmp_path, "HANGING")
    path.write_text(path.read_text().replace("[0, 1]", "0").replace("[0, 8]", "8"))
    code, out, err = sweep(
        path,
        tmp_path / "runs",
        "--executor",
        f"ray:address={cluster['address']},timeout=15",
        "--together",
        "4",
    )
    assert (code, err) == (0, "")
    assert "1 of 1 runs are complete" in out
    assert Path(ENV["ODDLM_TEST_HUNG"]).exists()
    monkeypatch.setattr(own_task, "HANGING", own_task.TASK)
    sweep_inline(path, tmp_path / "whole")
    assert stored(tmp_path / "runs") == stored(tmp_path / "whole")


def test_a_raylet_killed_in_mid_sweep(cluster, tmp_path, monkeypatch):
    """The last test on this cluster, as it kills one of the two nodes for good."""
    path, store = grid(tmp_path, "SLOW"), tmp_path / "runs"
    process = start(path, store, *on_ray(cluster))
    wait_until(lambda: scored(store) >= 8, process)
    os.kill(cluster["raylets"][1], signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    monkeypatch.setattr(
        own_task, "SLOW", own_task.TASK
    )  # nothing is killed here, so it need not be slow
    sweep_inline(path, tmp_path / "whole")
    assert stored(store) == stored(tmp_path / "whole")
    assert scored(store) == 96
    assert all(Store(store).read(name).summary for name in Store(store).ids())


def without_package(folder: Path) -> str:
    """Make a Python that has all packages of this one except oddlm."""
    import ray

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "links").mkdir()
    for site in dict.fromkeys([Path(ray.__file__).parents[1], *map(Path, sys.path)]):
        if site.name != "site-packages":
            continue
        for entry in site.iterdir():
            if "oddlm" not in entry.name and not (packages / "links" / entry.name).exists():
                (packages / "links" / entry.name).symlink_to(entry)
    (packages / "links.pth").write_text(str(packages / "links") + "\n")
    python = str(folder / "bin" / "python")
    assert (
        subprocess.run([python, "-c", "import oddlm"], capture_output=True, check=False).returncode
        == 1
    )
    return python


@pytest.mark.soak
def test_a_worker_without_the_package(tmp_path):
    with cluster_of(1, without_package(tmp_path / "env")) as bare:
        code, _, err = sweep(SMOKE, tmp_path / "runs", *on_ray(bare))
    assert (code, err.count("\n")) == (2, 1)
    assert "a worker of the Ray cluster cannot import oddlm: install oddlm " in err
    assert scored(tmp_path / "runs") == 0


def test_an_address_that_does_not_answer():
    """A port that is closed, one that stays silent, and one that speaks another protocol."""
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_port = silent.getsockname()[1]
        with pytest.raises(
            ValueError, match=f"the Ray address 127.0.0.1:{silent_port} does not answer: timed out"
        ):
            connect(f"127.0.0.1:{silent_port}")
    with pytest.raises(ValueError, match=f"127.0.0.1:{silent_port} does not answer: .*refused"):
        connect(f"127.0.0.1:{silent_port}")
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "0"],
        stdout=subprocess.PIPE,
        env={**ENV, "PYTHONUNBUFFERED": "1"},
        stderr=subprocess.DEVNULL,
        text=True,
    ) as other:
        port = other.stdout.readline().split()[5]
        with pytest.raises(ValueError, match=f"127.0.0.1:{port} does not answer: .* not Ray"):
            connect(f"127.0.0.1:{port}")
        other.kill()
    assert time.monotonic() - began < 60, "Ray alone would wait for minutes"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere", "the address must be HOST:PORT or auto, not 'nowhere'"),
        ("host:port", "the address must be HOST:PORT or auto, not 'host:port'"),
        ("127.0.0.1:99999", "127.0.0.1:99999 does not answer"),
        ("ray://127.0.0.1:10001", "ray://127.0.0.1:10001"),
    ],
)
def test_an_address_that_is_none(address, message):
    with pytest.raises(ValueError, match=message):
        connect(address)

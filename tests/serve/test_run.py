"""`oddlm serve` as a process: its address, its shutdown, and hostile clients."""

import json
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from typer.testing import CliRunner

from oddlm import load as load_lm
from oddlm.cli import app
from oddlm.serve.server import workers_for

from ..models.published_layout import write_llada
from ..starting import interruptible
from ..waiting import WAIT_S, wait_gone, wait_until
from .conftest import descendants, send

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve.py"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}


@contextmanager
def process(*options: str):
    """Start a server; yield its process, with its output in `log`, and its address."""
    command = [sys.executable, "-m", "oddlm", "serve", "--model", "toy", "--port", "0", *options]
    with TemporaryFile("w+") as log:
        pipes = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
        with interruptible(command, **pipes, env=ENVIRONMENT) as server:
            server.log = log
            try:
                yield server, server.stdout.readline().split()[-1]
            finally:
                server.kill()


def logged(server) -> str:
    server.log.seek(0)
    return server.log.read()


def test_sigterm_lets_running_requests_end():
    body = {"model": "toy", "prompt": "t5 t6", "n": 16, "max_tokens": 256, "steps": 32}
    with (
        process() as (server, url),
        httpx.stream("POST", f"{url}/v1/denoise", json=body, timeout=WAIT_S) as answer,
    ):
        assert url.startswith("http://127.0.0.1:")
        parts = answer.iter_text()
        said = [next(parts)]  # it has begun, and will pause until it is read
        server.terminate()
        wait_until(lambda: not accepts(url))
        said += parts
        assert "".join(said).count("event: step\n") == 32
        assert "event: end\n" in "".join(said)
        assert server.wait(WAIT_S) == 0
        assert logged(server) == ""


def accepts(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


LONG = {"model": "toy", "prompt": "t5 t6", "n": 64, "max_tokens": 256, "seed": 3}
HALVES = (
    b"",
    b"POST /v1/comp",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
    (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    ),
    b"POST /v1/denoise HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
)


@contextmanager
def crowd(url: str, folder: Path):
    """Connect clients that keep a server busy forever; yield one whose text is being scored.

    The others send half a request or nothing, do not read answers, or have endless scoring.
    """
    port = int(url.rpartition(":")[2])
    with ExitStack() as stack:
        for half in HALVES * 4:
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S))
            raw.sendall(half)
        for _ in range(3):
            stack.enter_context(send(port, "/v1/denoise", LONG, buffer=4096))
        for i, text in enumerate(("waits", "stubborn", "endless", "backtracks")):
            (folder / str(i)).mkdir()
            body = {"problem": "one", "texts": [f"{text} {folder / str(i)}"]}
            scored = stack.enter_context(send(port, "/v1/tasks/slow/score", body))
            if text == "waits":
                wait_until((folder / str(i) / "begun").exists)
                waiting = scored
        yield waiting


SLOW = ("--task", "tests.serve.slow_task.TASK")


def scorers(server) -> set[int]:
    return descendants(server.pid)


def test_sigterm_ends_it_in_time_whatever_clients_do(tmp_path):
    """Requests have the grace period; after that, the rest takes less than a second."""
    grace = 4
    with process("--grace", str(grace), *SLOW) as (server, url), crowd(url, tmp_path):
        started = scorers(server)
        assert started
        began = time.monotonic()
        server.terminate()
        assert server.wait(WAIT_S) == 0
        took = time.monotonic() - began
        print(f"ended {took - grace:.2f} s after the grace")
        assert grace <= took < 3 * grace
        for pid in started:
            wait_gone(pid)
        assert logged(server) == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_grace(tmp_path, number):
    with process("--grace", "1000", *SLOW) as (server, url), crowd(url, tmp_path) as waiting:
        server.send_signal(number)
        wait_until(lambda: not accepts(url))
        server.send_signal(number)
        assert server.wait(WAIT_S) == 128 + number
        assert waiting.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert logged(server) == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_one_after_the_other_are_as_good_as_one(number):
    """Further signals during or after the shutdown change nothing."""
    with process() as (server, url):
        assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        while server.poll() is None:
            server.send_signal(number)
            time.sleep(0.01)
        assert server.wait(WAIT_S) in (0, 128 + number)
        assert logged(server) == ""


def test_a_pass_that_runs_does_not_hold_the_end_up(tmp_path):
    """The process does not abort, and clients get an answer at once."""
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    command = ("--model", "sleepy.Sleepy", "--grace", "1000")
    with chdir(tmp_path), process(*command) as (server, url), ThreadPoolExecutor(1) as pool:
        body = {"model": "sleepy.Sleepy", "prompt": "t5"}
        waiting = pool.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=WAIT_S)
        wait_until(lambda: httpx.get(f"{url}/health", timeout=WAIT_S).json()["rows"])
        for _ in range(2):
            server.send_signal(signal.SIGINT)
            wait_until(lambda: not accepts(url))
        assert server.wait(WAIT_S) == 130
        assert waiting.result().json()["error"]["code"] == "shutting_down"
        assert logged(server) == ""


SLEEPY = """
import time
from oddlm.models.toy import Toy

class Sleepy(Toy):
    def __call__(self, *call):
        time.sleep(1000)
"""


def test_a_server_that_is_killed_takes_its_scorers_along(tmp_path):
    with process(*SLOW) as (server, url):
        texts = [f"waits {tmp_path}", "endless"]
        with send(
            int(url.rpartition(":")[2]), "/v1/tasks/slow/score", {"problem": "one", "texts": texts}
        ):
            wait_until((tmp_path / "begun").exists)
            started = scorers(server)
            server.kill()
            server.wait(WAIT_S)
            for pid in started:
                wait_gone(pid)


def test_clients_that_go_away_are_not_worth_a_line():
    """Clients may disconnect at any time during an answer."""
    with process() as (server, url):
        port = int(url.rpartition(":")[2])
        chat = {
            "messages": [{"role": "user", "content": "t5"}],
            "model": "toy",
            "n": 64,
            "max_tokens": 64,
            "block_length": 1,
        }
        asked = [
            ("/v1/denoise", LONG),
            ("/v1/chat/completions", chat | {"stream": True}),
            ("/v1/completions", LONG),
        ]
        for i in range(30):
            raw = send(port, *asked[i % 3])
            # closing sends a reset
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if i % 3 < 2:
                assert raw.recv(100)
            time.sleep(0.02 * (i % 2))  # or at once, while the server writes more
            raw.close()
        wait_until(lambda: httpx.get(f"{url}/health", timeout=WAIT_S).json()["rows"] == 0)
        server.terminate()
        assert server.wait(WAIT_S) == 0
        assert logged(server) == ""


def test_a_key_of_the_environment_and_defaults_of_the_operator(monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "ODDLM_API_KEY", "geheim")
    with process("--length", "5", "--name", "house") as (server, url):
        assert httpx.get(f"{url}/v1/models", timeout=WAIT_S).status_code == 401
        assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        headers = {"Authorization": "Bearer geheim"}
        card = httpx.get(f"{url}/v1/models/house", headers=headers, timeout=WAIT_S).json()
        assert card["defaults"]["length"] == 5
        answer = httpx.post(
            f"{url}/v1/completions",
            json={"model": "house", "prompt": "t5"},
            headers=headers,
            timeout=WAIT_S,
        )
        assert answer.json()["oddlm"]["nfe"] == 5
        assert (
            httpx.get(f"{url}/health", headers={"host": "evil.example"}, timeout=WAIT_S).status_code
            == 403
        )
        server.send_signal(signal.SIGINT)
        assert server.wait(WAIT_S) == 0
        assert logged(server) == ""


def test_it_answers_to_the_names_it_was_given():
    with process("--host", "127.0.0.2", "--host-name", "House.example") as (_, url):
        assert url.startswith("http://127.0.0.2:")
        for host, status in ((None, 200), ("house.EXAMPLE:80", 200), ("evil.example", 403)):
            assert (
                httpx.get(
                    f"{url}/health", headers={} if host is None else {"host": host}, timeout=WAIT_S
                ).status_code
                == status
            )


def test_a_checkpoint_is_loaded_as_the_operator_says(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "oddlm.serve.server.serve", lambda lm, chosen, listening, grace_s: seen.append((lm, chosen))
    )
    folder = str(write_llada(tmp_path))
    for options in ([], ["--dtype", "fp64", "--raw", "--device", "cpu", "--workers", "3"]):
        result = CliRunner().invoke(app, ["serve", "--model", folder, "--port", "0", *options])
        assert result.exception is None, result.output
    (usual, _), (lm, chosen) = seen
    assert not usual.raw
    assert lm.raw
    assert chosen.workers == 3
    kinds = [{one.dtype for one in found.model.network.parameters()} for found in (usual, lm)]
    assert kinds == [{torch.float32}, {torch.float64}]


def test_on_a_gpu_one_worker_passes_whatever_put_the_model_there():
    assert workers_for(SimpleNamespace(device=torch.device("cuda"))) == 1


def test_the_help_promises_what_is_there():
    said = CliRunner().invoke(app, ["serve", "--help"], terminal_width=200).output
    for option in ("--device", "--dtype", "--quantize", "--revision", "--raw", "--cache"):
        assert option in said
    for other in ("all of them different", "--max-batch"):
        assert other not in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "fp5"], "dtype"),
        (["--device", "nowhere"], "device"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0"),
        (["--host", "192.168.1.5"], "--open-to-all"),
        (["--pass-rows", "0"], "pass_rows.0: Input should be greater than or equal to 1"),
        (["--pass-rows", "a"], "whole numbers"),
        (["--policy", "nix"], "unknown policy 'nix'"),
        (["--model", "toi"], "unknown model 'toi'"),
    ],
)
def test_what_an_operator_has_to_mend(options, words):
    result = CliRunner().invoke(app, ["serve", "--model", "toy", "--port", "0", *options])
    assert isinstance(result.exception, ValueError)
    assert words in str(result.exception)


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = CliRunner().invoke(
            app, ["serve", "--model", "toy", "--port", str(other.getsockname()[1])]
        )
    assert isinstance(result.exception, ValueError)
    assert "cannot listen on 127.0.0.1" in str(result.exception)


def load(*options: str) -> Any:
    done = subprocess.run(
        [sys.executable, BENCHMARK, *options],
        check=True,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    print(done.stdout)
    return json.loads(done.stdout)


def check_load(found: dict) -> None:
    assert set(found["statuses"]) <= {"200", "429"}
    assert found["answers"] >= found["clients"]
    assert found["complete"] == found["identical"] == 1.0


def test_load_in_short():
    shape = ["--model", "toy", "--length", "8", "--steps", "4"]
    few, found = load("--clients", "2", "8", "--seconds", "1", "--pool", "6", *shape)
    for one, clients in ((few, 2), (found, 8)):
        check_load(one)
        assert one["clients"] == clients
        assert 0 < one["p50_s"] <= one["p95_s"]


def test_load_on_the_engine_alone():
    (found,) = load(
        "--engine-only",
        "--model",
        "tiny",
        "--clients",
        "4",
        "--seconds",
        "1",
        "--pool",
        "3",
        "--length",
        "8",
        "--steps",
        "4",
    )
    assert found["requests"] >= 4
    assert found["identical"] == 1.0
    assert 0 < found["p50_s"] <= found["p95_s"]
    assert 0 < found["busy_share"] <= 1


def test_a_cache_is_an_option():
    body = {
        "model": "mini",
        "prompt": "1,2,3\n",
        "n": 3,
        "max_tokens": 16,
        "seed": 3,
        "block_length": 8,
        "steps": 8,
    }
    with process("--model", "mini", "--cache", "dual") as (_, url):
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=WAIT_S).json()
    samples = load_lm("mini", cache="dual").generate(
        "1,2,3\n", 3, length=16, seed=3, block_length=8, steps=8
    )[0]
    assert [choice["text"] for choice in answer["choices"]] == [sample.text for sample in samples]


@pytest.mark.soak
def test_load():
    (found,) = load("--clients", "64", "--n", "4", "--seconds", "60")
    check_load(found)
    assert found["memory_mb"]["last_quarter"] < 1.1 * found["memory_mb"]["first_quarter"]

"""`oddlm serve` as a process: where it listens, how it ends, what it withstands."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch
from typer.testing import CliRunner

from oddlm.cli import app
from oddlm.cli.serve import _workers

from ..models.published_layout import write_llada
from ..waiting import WAIT_S, wait_until

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve.py"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}


@contextmanager
def process(*options: str):
    command = [sys.executable, "-m", "oddlm", "serve", "--model", "toy", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as server:
        try:
            yield server, server.stdout.readline().split()[-1]
        finally:
            server.kill()


def test_sigterm_lets_running_requests_end():
    body = {"model": "toy", "prompt": "t5 t6", "n": 16, "max_tokens": 256, "steps": 32}
    with process() as (server, url), httpx.stream("POST", f"{url}/v1/denoise", json=body, timeout=WAIT_S) as answer:
        assert url.startswith("http://127.0.0.1:")
        parts = answer.iter_text()
        said = [next(parts)]  # it has begun, and waits for a reader after some steps
        server.terminate()
        wait_until(lambda: not accepts(url))
        said += parts
        assert "".join(said).count("event: step\n") == 32
        assert "event: end\n" in "".join(said)
        assert server.wait(WAIT_S) in (0, -signal.SIGTERM)
        assert "Traceback" not in server.stderr.read()


def accepts(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def test_a_key_of_the_environment_and_defaults_of_the_operator(monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "ODDLM_API_KEY", "geheim")
    with process("--set", "length=5", "--name", "house") as (server, url):
        assert httpx.get(f"{url}/v1/models", timeout=WAIT_S).status_code == 401
        assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        headers = {"Authorization": "Bearer geheim"}
        card = httpx.get(f"{url}/v1/models/house", headers=headers, timeout=WAIT_S).json()
        assert card["defaults"]["length"] == 5
        answer = httpx.post(f"{url}/v1/completions", json={"model": "house", "prompt": "t5"}, headers=headers, timeout=WAIT_S)
        assert answer.json()["oddlm"]["nfe"] == 5
        assert httpx.get(f"{url}/health", headers={"host": "evil.example"}, timeout=WAIT_S).status_code == 403
        server.send_signal(signal.SIGINT)
        assert server.wait(WAIT_S) == 0
        assert "Traceback" not in server.stderr.read()


def test_it_answers_to_the_names_it_was_given():
    with process("--host", "127.0.0.2", "--host-name", "House.example") as (_, url):
        assert url.startswith("http://127.0.0.2:")
        for host, status in ((None, 200), ("house.EXAMPLE:80", 200), ("evil.example", 403)):
            assert (
                httpx.get(f"{url}/health", headers={} if host is None else {"host": host}, timeout=WAIT_S).status_code == status
            )


def test_a_checkpoint_is_loaded_as_the_operator_says(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("oddlm.serve.run.serve", lambda lm, chosen, listening, grace_s: seen.append((lm, chosen)))
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
    assert _workers(SimpleNamespace(device=torch.device("cuda"))) == 1


def test_the_help_promises_what_is_there():
    said = CliRunner().invoke(app, ["serve", "--help"], terminal_width=200).output
    for option in ("--device", "--dtype", "--quantize", "--revision", "--raw"):
        assert option in said
    for other in ("all of them different", "--max-batch", "--cache"):
        assert other not in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "fp5"], "dtype"),
        (["--device", "nowhere"], "device"),
        (["--host", "0.0.0.0"], "lets other machines in: give an API key"),
        (["--host", "192.168.1.5"], "--open-to-all"),
        (["--pass-rows", "0"], "pass_rows.0: Input should be greater than or equal to 1"),
        (["--pass-rows", "a"], "whole numbers"),
        (["--set", "alfa=3"], "unknown field 'alfa'"),
        (["--set", "policy=nix"], "the default settings are wrong: unknown policy 'nix'"),
        (["--set", "seed=3"], "seed has an option of its own"),
        (["--model", "toi"], "unknown model 'toi'"),
    ],
)
def test_what_an_operator_has_to_mend(options, words):
    result = CliRunner().invoke(app, ["serve", "--model", "toy", "--port", "0", *options])
    assert isinstance(result.exception, ValueError)
    assert words in str(result.exception)


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = CliRunner().invoke(app, ["serve", "--model", "toy", "--port", str(other.getsockname()[1])])
    assert isinstance(result.exception, ValueError)
    assert "cannot listen on 127.0.0.1" in str(result.exception)


def load(*options: str) -> dict:
    done = subprocess.run([sys.executable, BENCHMARK, *options], check=True, capture_output=True, text=True, env=ENVIRONMENT)
    print(done.stdout)
    return json.loads(done.stdout)


def check_load(found: dict) -> None:
    assert set(found["statuses"]) <= {"200", "429"}
    assert found["answers"] >= found["clients"]
    assert found["complete"] == found["identical"] == 1.0


def test_load_in_short():
    found = load("--clients", "8", "--seconds", "2", "--pool", "6", "--length", "8", "--steps", "4")
    check_load(found)


@pytest.mark.soak
def test_load():
    found = load("--clients", "64", "--n", "4", "--seconds", "60")
    check_load(found)
    assert found["memory_mb"]["last_quarter"] < 1.1 * found["memory_mb"]["first_quarter"]

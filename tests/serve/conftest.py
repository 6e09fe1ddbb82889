"""Real servers on real sockets, in a thread of the test process."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import oddlm
from oddlm.cli import app as command_line
from oddlm.experiments.identity import identified
from oddlm.models.toy import Toy
from oddlm.models.wrappers import Wrapper
from oddlm.serve.engine import Engine
from oddlm.serve.server import GentleServer, listen, server_of
from oddlm.serve.settings import Limits, ServeSettings
from oddlm.spec import RunSpec

from ..runs import run
from ..waiting import WAIT_S, wait_until


class Served:
    """A running server."""

    def __init__(self, server: GentleServer, port: int) -> None:
        self.engine = server.app.state.engine
        self.scorers = server.app.state.scorers
        self.connections = server.server_state.connections
        self.port = port
        self.url = f"http://127.0.0.1:{self.port}"
        self.clients: list[openai.OpenAI] = []

    def client(self, **options) -> openai.OpenAI:
        usual = {
            "base_url": f"{self.url}/v1",
            "api_key": "none",
            "max_retries": 0,
            "timeout": WAIT_S,
        }
        self.clients.append(openai.OpenAI(**usual | options))
        return self.clients[-1]


@contextmanager
def running(
    lm: oddlm.LM, grace_s: float = 60, buffer: int | None = None, **settings
) -> Iterator[Served]:
    """Run a server; `buffer` is the size of the system's buffer for unread answers."""
    server = server_of(lm, ServeSettings(**{"model": "toy"} | settings), grace_s=grace_s)
    listening = listen("127.0.0.1", 0)
    if buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    served = Served(server, listening.getsockname()[1])
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        yield served
    finally:
        for client in served.clients:
            client.close()
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def limits(**given) -> Limits:
    return Limits.model_validate(given)


def send(port: int, path: str, body: dict, *, buffer: int | None = None) -> socket.socket:
    """Send a request without waiting for its answer; `buffer`: bytes received in advance."""
    raw = socket.socket()
    if buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    raw.settimeout(WAIT_S)
    raw.connect(("127.0.0.1", port))
    content = json.dumps(body).encode()
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    head = "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""])
    raw.sendall(head.encode() + content)
    return raw


def descendants(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = set(map(int, task.read_text().split()))
        except (FileNotFoundError, ProcessLookupError):  # it has ended in the meantime
            continue
        found |= children.union(*map(descendants, children))
    return found


class Gated(Toy):
    """A toy whose passes can be delayed and counted."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.gate = threading.Event()
        self.gate.set()
        self.rows: list[int] = []

    def __call__(
        self, tokens: Tensor, start: int, prompt_lengths: Tensor, **aside: Tensor
    ) -> Tensor:
        assert self.gate.wait(WAIT_S)
        self.rows.append(len(tokens))
        return super().__call__(tokens, start, prompt_lengths, **aside)


class TooLate(Wrapper):
    """A model whose passes take longer than the timeout of the requests."""

    engine: Engine | None = None

    def __call__(self, tokens: Tensor, start: int, prompt_lengths: Tensor) -> Tensor:
        assert self.engine is not None
        engine = self.engine
        wait_until(lambda: all(job.stop is not None for job in engine.running))
        return self.model(tokens, start, prompt_lengths)


@contextmanager
def running_late(lm: oddlm.LM, **settings) -> Iterator[Served]:
    """A server on which every request times out."""
    late = TooLate(lm.model)
    with running(
        oddlm.LM(late, lm.tokenizer), limits=limits(timeout_s=0.001), **settings
    ) as server:
        late.engine = server.engine
        yield server


@pytest.fixture(scope="session")
def toy_lm() -> oddlm.LM:
    torch.set_num_threads(1)
    model = Toy(vocab_size=60)
    return oddlm.LM(model, model.tokenizer)


@pytest.fixture(scope="session")
def served(toy_lm) -> Iterator[Served]:
    with running(toy_lm) as server:
        yield server


@pytest.fixture
def gated() -> Gated:
    return Gated(vocab_size=60)


@pytest.fixture(scope="session")
def mini_lm() -> oddlm.LM:
    torch.set_num_threads(1)
    return oddlm.load("mini")


@pytest.fixture(scope="module")
def site(mini_lm, store) -> Iterator[Served]:
    """The mini model with a store of a few runs."""
    with running(mini_lm, model="mini", store=store) as server:
        yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two settings of the toy on three countdown problems.

    In addition, there are an incomplete, an unscored and a damaged run.
    """
    folder = tmp_path_factory.mktemp("pages") / "runs"
    usual = ["--model", "toy", "--store", str(folder), "--n", "4", "--length", "8"]
    command = [
        "eval",
        "countdown",
        *usual,
        "--objective",
        "odd",
        "--alpha",
        "0,8",
        "--temperature",
        "1",
        "--limit",
        "3",
    ]
    command += ["--fork", "false"]
    assert CliRunner().invoke(command_line, command).exit_code == 0
    assert CliRunner().invoke(command_line, ["sample", "<b>t5</b> t6", *usual]).exit_code == 0
    asked = {"model": "toy", "task": "countdown", "n": 2, "params": {"length": 6}}
    spec = identified(RunSpec.model_validate(asked))

    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, spec, limit=2, watch=stop)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "spec.json").write_text("<script>alert(1)</script>")
    return folder

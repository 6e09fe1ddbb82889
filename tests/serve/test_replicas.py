"""`oddlm serve --replicas`: two replicas on a local Ray, one of them killed under load."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from oddlm.serve.prometheus import labelled
from oddlm.serve.replicas import WINDOW, Outgoing, Plan, _needs, first_of, scaling_of
from oddlm.serve.settings import ServeSettings

from ..waiting import WAIT_S, wait_gone, wait_until
from .conftest import descendants
from .test_run import logged, process

# Ray's own, at the import of Ray Serve.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

BODY = {"model": "toy", "prompt": "t5 t6", "n": 4, "max_tokens": 64, "steps": 64, "seed": 1}
STREAM = {**BODY, "max_tokens": 256, "steps": 256}
CLIENTS = 4


def replicas_of(pid: int) -> set[int]:
    """The processes of the replicas that a server started."""
    found = set()
    for one in descendants(pid):
        try:
            name = Path(f"/proc/{one}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith(b"ray::ServeReplica:"):
            found.add(one)
    return found


def metric(client: httpx.Client, name: str) -> dict[str | None, float]:
    """A metric by replica."""
    return {
        sample.labels.get("replica"): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == name
    }


def texts(answer: httpx.Response) -> list[str]:
    return [choice["text"] for choice in answer.json()["choices"]]


def error(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"]


def check_answers(client: httpx.Client) -> list[str]:
    """Both replicas give the same text for the same seed; return it."""
    seen: dict[str, list[str]] = {}
    with ThreadPoolExecutor(CLIENTS) as pool:
        while len(seen) < 2:
            asked = [pool.submit(client.post, "/v1/completions", json=BODY) for _ in range(CLIENTS)]
            for one in asked:
                answer = one.result()
                seen.setdefault(answer.headers["x-oddlm-replica"], texts(answer))
                assert texts(answer) == next(iter(seen.values()))
    assert set(metric(client, "oddlm_network_passes")) == set(seen)
    return texts(answer)


def check_options(client: httpx.Client) -> None:
    """What the operator chose holds: key, limits, origins, defaults."""
    assert error(client.get("/v1/models", headers={"authorization": "Bearer x"})) == (
        401,
        "invalid_api_key",
    )
    many = client.post("/v1/completions", json={**BODY, "n": 17})
    assert (many.status_code, many.json()["error"]["param"]) == (400, "n")
    assert client.get("/nowhere").status_code == 404
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["limits"]["max_n"], card["given"]["temperature"]) == (16, 0.5)
    headers = client.get("/", headers={"origin": "http://here"}).headers
    assert headers["access-control-allow-origin"] == "http://here"
    health = client.get("/health").json()
    assert (health["status"], health["replicas"]) == ("ok", 2)


def events(lines: Iterator[str]) -> list[tuple[str, Any]]:
    """The server-sent events left in a stream."""
    whole = "\n".join(lines).strip()
    parts = [part.split("\n") for part in whole.split("\n\n") if part.startswith("event: ")]
    return [(name[7:], json.loads(data[6:])) for name, data in parts]


def check_kill(client: httpx.Client, pid: int, text: list[str]) -> None:
    """A replica is killed under load: answers are right, or say what happened."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        streams: dict[str, Iterator[str]] = {}
        while len(streams) < 2:  # on both replicas, and begun
            answer = stack.enter_context(client.stream("POST", "/v1/denoise", json=STREAM))
            lines = answer.iter_lines()
            assert next(lines) == "event: start"
            streams.setdefault(answer.headers["x-oddlm-replica"], lines)
        enough = threading.Event()

        def load() -> list[httpx.Response]:
            found = []
            while not enough.is_set():
                found.append(client.post("/v1/completions", json=BODY))
            return found

        clients = [pool.submit(load) for _ in range(CLIENTS)]
        wait_until(
            lambda: min(metric(client, "oddlm_rows_in_flight").values(), default=0) > STREAM["n"]
        )
        (dead, *_) = before = sorted(replicas_of(pid))
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: len(replicas_of(pid) - {*before}) == 1)
        wait_until(lambda: client.get("/health").json()["replicas"] == 2)
        enough.set()
        answers = [answer for one in clients for answer in one.result()]
        lost = [answer for answer in answers if answer.status_code != 200]
        assert all(error(answer) == (503, "replica_died") for answer in lost)
        assert all(texts(answer) == text for answer in answers if answer not in lost)
        assert metric(client, "oddlm_front_retries_total")[None] > len(lost)
        live = set(metric(client, "oddlm_network_passes"))
        (gone,) = streams.keys() - live
        name, data = events(streams[gone])[-1]
        assert (name, data["error"]["code"]) == ("error", "replica_died")
        print(f"{len(answers)} answers, {len(lost)} lost")
    wait_until(lambda: set(metric(client, "oddlm_rows_in_flight").values()) == {0})
    assert len(live) == 2


def test_two_replicas_of_which_one_is_killed():
    """One test, as Ray is slow to start."""
    options = ("--max-n", "16", "--cors", "http://here", "--temperature", "0.5")
    with (
        process("--replicas", "2", "--api-key", "k", "--grace", "60", *options) as (server, url),
        httpx.Client(base_url=url, timeout=WAIT_S, headers={"authorization": "Bearer k"}) as client,
    ):
        text = check_answers(client)
        check_options(client)
        check_kill(client, server.pid, text)
        assert check_answers(client) == text
        ours = descendants(server.pid)
        with client.stream("POST", "/v1/denoise", json=BODY) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.send_signal(signal.SIGINT)
            assert events(lines)[-1][0] == "end"
        assert server.wait(WAIT_S) == 0
        for pid in ours:
            wait_gone(pid)
        print(logged(server))


def test_an_answer_waits_for_its_reader():
    async def sent_before_and_after_reading() -> list[int]:
        outgoing, counts = Outgoing(), [0, 0, 0]

        async def send(stage: int) -> None:
            while True:
                await outgoing.send({"type": "http.response.body", "body": b""})
                counts[stage] += 1

        for stage, read in enumerate((0, 5, WINDOW)):
            outgoing.read(read)
            sending = asyncio.create_task(send(stage))
            for _ in range(2 * WINDOW + 2):
                await asyncio.sleep(0)
            sending.cancel()
        return counts

    assert asyncio.run(sent_before_and_after_reading()) == [WINDOW, 5, WINDOW]


@pytest.mark.parametrize(
    ("text", "options", "first"),
    [
        ("4", {"num_replicas": 4}, 4),
        ("1:8", {"autoscaling_config": {"min_replicas": 1, "max_replicas": 8}}, 1),
        (
            '{"max_replicas": 3, "initial_replicas": 2, "upscale_delay_s": 5}',
            {
                "autoscaling_config": {
                    "max_replicas": 3,
                    "initial_replicas": 2,
                    "upscale_delay_s": 5,
                }
            },
            2,
        ),
    ],
)
def test_scaling(text, options, first):
    assert scaling_of(text) == options
    assert first_of(options) == first


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("0", "'0'"),
        ("true", "'true'"),
        ("many", "'many'"),
        ("1:", "'1:'"),
        ("8:1", "max_replicas"),
        ('{"max_replica": 3}', "'max_replica'"),
        ('{"max_replicas": "x"}', "max_replicas"),
    ],
)
def test_scaling_that_is_wrong(text, named):
    with pytest.raises(ValueError, match=f"--replicas.*{named}") as caught:
        scaling_of(text)
    assert "\n" not in str(caught.value)


def test_the_resources_of_a_replica():
    def needs(have: dict[str, float], device: str | None, *, own: bool = True) -> dict[str, int]:
        plan = Plan("toy", {"device": device}, ServeSettings(model="toy"), None)
        return _needs(have, plan, {"num_replicas": 4}, own=own)

    assert needs({"CPU": 8, "GPU": 4}, None) == {"num_cpus": 1, "num_gpus": 1}
    assert needs({"CPU": 8, "GPU": 4}, "cpu") == {"num_cpus": 1, "num_gpus": 0}
    assert needs({"CPU": 8}, "cuda", own=False) == {"num_cpus": 1, "num_gpus": 1}
    with pytest.raises(ValueError, match=r"4 GPUs.* 2$"):
        needs({"CPU": 8, "GPU": 2}, None)
    with pytest.raises(ValueError, match="cuda:1"):
        needs({"CPU": 8, "GPU": 4}, "cuda:1")


def test_metrics_of_replicas_are_labelled():
    one = '# HELP a_total Some.\n# TYPE a_total counter\na_total{path="/"} 2.0\n'
    merged = labelled({"x": one, "y": one.replace("2.0", "3.0")}).decode()
    assert merged.count("# TYPE a_total counter") == 1
    assert 'a_total{path="/",replica="x"} 2.0' in merged
    assert 'a_total{path="/",replica="y"} 3.0' in merged


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"oddlm\[replicas\]"):
        scaling_of("2")

"""Clients that send a request slowly, or never complete it."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse

import httpx
import pytest

import oddlm

from ..waiting import WAIT_S, wait_until
from .conftest import Served, limits, running

BODY = json.dumps({"model": "toy", "prompt": "t5 t6", "max_tokens": 4, "seed": 3}).encode()
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
)
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /v1/denoise HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def connect(server: Served, *parts: bytes) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
    for part in parts:
        raw.sendall(part)
    return raw


def rest(raw: socket.socket) -> bytes:
    """Return everything that the server sends before it closes the connection."""
    said = bytearray()
    try:
        while part := raw.recv(1 << 16):
            said += part
    except ConnectionResetError:
        pass
    return bytes(said)


@pytest.fixture(scope="module")
def hasty(toy_lm):
    with running(toy_lm, limits=limits(receive_timeout_s=0.5)) as server:
        yield server


@pytest.mark.parametrize(
    "parts",
    [
        (b"P",),
        (HEAD[:20],),
        (HEAD[:-2],),
        (HEAD,),
        (HEAD, BODY[:-1]),
        (CHUNKED,),
        (CHUNKED, b"5\r\n{"),
        (CHUNKED, b"1\r\n{\r\n", b"ffff\r\n"),
    ],
    ids=lambda parts: repr(b"".join(parts)[-12:]),
)
def test_half_a_request_is_told_so(hasty, parts):
    with connect(hasty, *parts) as raw:
        head, _, body = rest(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "request_timeout"


def test_silence_is_ended_in_silence(hasty):
    with connect(hasty) as raw:
        assert rest(raw) == b""


def test_what_comes_bit_by_bit_has_no_more_time(hasty):
    """Each byte comes soon after the last, but the request takes too long."""
    with connect(hasty) as raw:
        raw.settimeout(0.05)
        said = b""
        for i in range(len(HEAD)):
            try:
                raw.sendall(HEAD[i : i + 1])
                said = raw.recv(1000)
                break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
        assert i < len(HEAD) - 1
        assert said == b"" or said.startswith(b"HTTP/1.1 408 ")


def test_an_upload_that_was_refused_does_not_go_on_for_ever(toy_lm):
    with (
        running(toy_lm, limits=limits(receive_timeout_s=0.5, max_body=1000)) as server,
        connect(server, CHUNKED) as raw,
    ):
        sent = 0
        try:
            while sent < 1 << 40:
                raw.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
                sent += 1024
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 1 << 40
        wait_until(lambda: not server.connections)


def test_many_halves_hold_nobody_up(hasty):
    raws = [connect(hasty, HEAD[:30]) for _ in range(40)] + [
        connect(hasty, HEAD, BODY[:9]) for _ in range(40)
    ]
    answer = httpx.post(
        f"{hasty.url}/v1/completions",
        content=BODY,
        headers={"content-type": "application/json"},
        timeout=WAIT_S,
    )
    assert answer.status_code == 200
    for raw in raws:
        with raw:
            assert rest(raw).startswith(b"HTTP/1.1 408 ")


def test_a_request_that_is_there_may_take_longer(gated):
    lm = oddlm.LM(gated, gated.tokenizer)
    with running(lm, limits=limits(receive_timeout_s=0.3)) as server, ThreadPoolExecutor(1) as pool:
        gated.gate.clear()
        asked = pool.submit(
            httpx.post, f"{server.url}/v1/completions", json=json.loads(BODY), timeout=WAIT_S
        )
        wait_until(lambda: server.engine.rows)
        with connect(server, HEAD[:30]) as other:  # connected later, but has timed out
            assert rest(other).startswith(b"HTTP/1.1 408 ")
        assert not asked.done()
        gated.gate.set()
        assert asked.result().status_code == 200


def test_a_connection_serves_one_request_after_the_other(toy_lm):
    """Requests come in parts, each within the time limit; then several at once."""
    with running(toy_lm, limits=limits(receive_timeout_s=3)) as server, connect(server) as raw:
        for _ in range(4):
            for part in (HEAD[:40], HEAD[40:], BODY[:10], BODY[10:]):
                time.sleep(0.25)
                raw.sendall(part)
            answer = HTTPResponse(raw)
            answer.begin()
            assert answer.status == 200
            assert json.loads(answer.read())["choices"]
        raw.sendall(GET + GET + GET[:10])
        assert rest(raw).count(b"HTTP/1.1 200 ") == 2


def test_half_a_request_is_not_waited_for_at_the_end(toy_lm):
    with running(toy_lm, grace_s=1000) as server:
        halves = [connect(server, HEAD, BODY[:9]), connect(server, HEAD[:9]), connect(server)]
        wait_until(lambda: len(server.connections) == 3)
        assert httpx.get(f"{server.url}/health", timeout=WAIT_S).status_code == 200
    said = [rest(raw) for raw in halves]
    for raw in halves:
        raw.close()
    assert [one[:13] for one in said] == [b"HTTP/1.1 503 ", b"HTTP/1.1 503 ", b""]

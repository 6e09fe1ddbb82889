"""The explorer when things go wrong: the page shows a message, and keeps its content."""

import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from ..serve.conftest import running, running_late
from ..waiting import WAIT_S
from .looking import LINK, finished, notice, opening, texts, texts_by_row, until, upload

BROKEN = {
    "cut off": (lambda text: text[:5000], "JSON"),
    "no JSON": (lambda text: "<b>hello</b>", "JSON"),
    "another version": (lambda text: text.replace('"version":1', '"version":9', 1), "version 9"),
    "something else": (lambda text: '{"a": [1, 2]}', "oddlm record"),
    "null": (lambda text: "null", "oddlm record"),
    "no runs": (lambda text: text.split(',"plain"')[0] + "}", "recording.plain is not an object"),
    "a missing step": (
        lambda text: text.replace('"step":3,', '"step":4,', 1),
        "expected step 3, found step 4",
    ),
    "a wrong type": (
        lambda text: text.replace('"position":0,', '"position":"0",', 1),
        "position is not a whole number",
    ),
    "too large": (
        lambda text: text.replace('"length":24', '"length":1000000000', 1),
        "length is not a whole number from 1",
    ),
}


def test_broken_recordings_are_told_in_words(site, browse):
    page = browse(site.url)
    page.wait_for_selector("#diverse .verdict.right")
    text = json.dumps(opening(0), separators=(",", ":"))
    before = texts(page, "diverse")
    for spoil, words in BROKEN.values():
        assert spoil(text) != text
        upload(page, spoil(text))
        notice(page, "some.json cannot be shown", words)
        assert texts(page, "diverse") == before


def test_refusals_are_told_in_words(site, browse):
    page = browse(site.url)
    page.wait_for_selector("button.main")
    page.fill("#set-prompt", "")
    before = texts(page, "diverse")
    page.click("button.main")
    notice(page, "the prompt is empty")
    assert texts(page, "diverse") == before
    browse.expect_failed_loads("400")
    page = browse(
        site.url + LINK.replace("n=4", "n=many").replace("seed=3", "seed=").replace("=odd", "=<b>")
    )
    finished(page)
    notice(page, "n=many, seed=, objective=<b>")


def test_an_error_in_mid_stream_keeps_what_came(mini_lm, browse):
    with running_late(mini_lm, model="mini") as server:
        page = browse(server.url + LINK)
        notice(page, "the request took longer than this server allows")
        assert page.inner_text("h1") == "4,9,68,38,34"


def answer_head(kind: str, size: int) -> bytes:
    lines = ("HTTP/1.1 200 OK", "Connection: close", f"Content-Type: {kind}")
    return "\r\n".join([*lines, f"Content-Length: {size}", "", ""]).encode()


@contextmanager
def broken_server(site, stream: bytes):
    """Serve the pages and answers of `site`, but send `stream` for /v1/denoise and hang up."""
    listening, hangs_up = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve():
        with ThreadPoolExecutor(16) as pool:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                pool.submit(answer, connection)

    def answer(connection):
        with connection:
            head = b""
            while b"\r\n\r\n" not in head and (part := connection.recv(65536)):
                head += part
            if head.startswith(b"POST"):
                length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
                body = head.partition(b"\r\n\r\n")[2]
                while len(body) < length:
                    body += connection.recv(65536)
                connection.sendall(answer_head("text/event-stream", 10**8) + stream)
                hangs_up.wait(WAIT_S)
            elif head:
                found = httpx.get(site.url + head.decode().split(" ")[1], timeout=WAIT_S)
                connection.sendall(
                    answer_head(found.headers["content-type"], len(found.content)) + found.content
                )

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/", hangs_up
    finally:
        hangs_up.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(WAIT_S)


def event(name: str, content) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()


def stream_of(steps: int) -> bytes:
    run = opening(0)["diverse"]
    return event("start", run["start"]) + b"".join(
        event("step", frame) for frame in run["steps"][:steps]
    )


@pytest.mark.parametrize(
    ("stream", "words", "steps"),
    [
        (stream_of(3), "after step 3 of 12", 3),
        (
            stream_of(2) + b"event: step\ndata: {\n\n",
            "The server sent an event that cannot be read",
            2,
        ),
        (stream_of(2) + b"event: gossip\ndata: 1\n\n", "“gossip”", 2),
        (
            stream_of(1) + event("step", {"step": 1, "total": 12, "pieces": {}, "samples": 5}),
            "step.samples is not a list",
            1,
        ),
    ],
)
def test_a_server_that_goes_away(site, browse, stream, words, steps):
    with broken_server(site, stream) as (url, hangs_up):
        page = browse(url + LINK)
        until(page, f"document.getElementById('step').textContent === 'step {steps} of 12'")
        hangs_up.set()
        notice(page, words)
        finished(page)
        assert page.inner_text("#step") == f"step {steps} of 12"
        run = opening(0)["diverse"]
        written = [
            t != run["start"]["mask_id"]
            for s in run["steps"][steps - 1]["samples"]
            for t in s["tokens"]
        ]
        texts_by_row(page)  # rows are drawn when there is time, so the last step may come later
        until(
            page,
            """written => JSON.stringify([...document.querySelectorAll('#diverse .tokens')]
                .sort((a, b) => a.known.row - b.known.row)
                .flatMap((one) => one.known.cells.map((cell) => cell.textContent !== '·')))
                === JSON.stringify(written)""",
            written,
        )
    browse.complaints[:] = [said for said in browse.complaints if "net::ERR_" not in said]


def test_a_server_that_is_gone(mini_lm, browse):
    with running(mini_lm, model="mini", grace_s=1) as server:
        page = browse(server.url)
        page.wait_for_selector("button.main")
        page.wait_for_load_state("networkidle")  # requests during the shutdown would fail
    page.click("button.main")
    notice(page, "does not respond")
    assert page.locator("#diverse .verdict.right").count() > 0
    browse.expect_failed_loads("ERR_CONNECTION_REFUSED")


def test_an_api_key(mini_lm, browse):
    with running(mini_lm, model="mini", api_key="secret") as server:
        page = browse(server.url)
        page.fill("#key", "guess")
        page.click("button.main")
        notice(page, "a valid API key")
        page.fill("#key", "secret")
        page.click("button.main")
        page.wait_for_selector("#set-n")
    browse.expect_failed_loads("401")

"""The explorer in a real browser. `browse` fails a test for any complaint in the console and any request to elsewhere."""

import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from oddlm.serve.assets import asset

from .conftest import WAIT_S, limits, running

HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>\x07\u202e&amp;"
LINK = "#prompt=4%2C9%2C68%2C38%2C34%0A&n=4&alpha=8&temperature=0.5&steps=6&length=24&seed=3&objective=odd&eos=late"


def opening(number: int) -> dict:
    """A recording that comes with the package."""
    line = asset("recordings.js").decode().splitlines()[number]
    return json.loads(re.fullmatch(r"oddlm\.register\((.*)\);", line)[1])


def upload(page, content: str | bytes, name: str = "some.json"):
    content = content if isinstance(content, bytes) else content.encode()
    page.set_input_files("#open", {"name": name, "mimeType": "application/json", "buffer": content})


def until(page, script: str, arg=None) -> None:
    """Wait until the script says yes; Playwright's own waiting needs eval, which the pages' policy forbids."""
    for _ in range(1500):
        if page.evaluate(script, arg):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"never true: {script} {arg}; the page says {page.inner_text('body')}")


def notice(page, *words: str) -> str:
    for word in words:
        until(page, "word => document.getElementById('notice').textContent.includes(word)", arg=word)
    return page.inner_text("#notice")


def finished(page):
    until(page, "document.querySelector('button.main')?.textContent === 'Generate'")


def texts(page, side: str) -> list[str]:
    return page.locator(f"#{side} .tokens").all_text_contents()


def fits(page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_first_visit_shows_what_diversity_does(site, browse, width, dark):
    page = browse(site.url, width=width, dark=dark)
    page.wait_for_selector("#diverse .verdict.right")
    said = page.inner_text("#lead")
    assert "plain sampling writes the same answer 8 times, and it is wrong" in said
    assert re.search(r"[2-8] different answers, and [1-8] of 8 solve the problem", said)
    assert "none solves it" in page.inner_text("#plain .summary")
    assert page.locator("#plain .verdict.right").count() == 0
    assert page.locator("#diverse .token.changed").count() > 0
    assert page.inner_text("#plain .fold").endswith("8 times the same answer")
    page.wait_for_selector("button.main")
    assert fits(page)
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != background


def test_it_plays_by_itself_where_motion_is_welcome(site, chromium):
    with chromium.new_context(reduced_motion="no-preference") as context:
        page = context.new_page()
        page.goto(site.url)
        until(page, "document.getElementById('step').textContent.startsWith('step 3 ')")
        page.click("#play")
        shown = page.inner_text("#step")
        assert page.get_attribute("#play", "aria-label") == "Play"
        page.wait_for_timeout(800)
        assert page.inner_text("#step") == shown


def test_scrubbing_by_slider_and_by_keys(site, browse):
    page = browse(site.url)
    page.wait_for_selector("#diverse .verdict.right")
    final = texts(page, "diverse")
    page.locator("#scrub").fill("0")
    assert page.inner_text("#step") == "all masked"
    assert set("".join(texts(page, "diverse") + texts(page, "plain"))) == {"·"}
    page.locator("#stage").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#step") == "step 2 of 12"
    run = opening(0)["diverse"]
    mask = run["start"]["mask_id"]
    for row, tokens in enumerate(texts_by_row(page)):
        wanted = run["steps"][1]["samples"][row]["tokens"]
        assert [piece == "·" for piece in tokens] == [token == mask for token in wanted]
    waiting = sum(spot["by"] == "plain" for sample in run["steps"][1]["samples"] for spot in sample["spots"])
    assert page.locator("#diverse .samples .only-plain").count() == waiting
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#step") == "step 1 of 12"
    page.keyboard.press(" ")
    until(page, "document.getElementById('step').textContent === 'step 12 of 12'")
    assert texts(page, "diverse") == final


def texts_by_row(page) -> list[list[str]]:
    """The tokens of the diverse samples, in the order of their numbers, when all are drawn."""
    until(page, "[...document.querySelectorAll('#diverse .tokens')].every((one) => one.firstChild)")
    script = """() => [...document.querySelectorAll('#diverse .tokens')].sort((a, b) => a.known.row - b.known.row)
        .map((one) => one.known.cells.map((cell) => cell.textContent))"""
    return page.evaluate(script)


def test_hover_and_focus_tell_what_plain_sampling_would_take(site, browse):
    page = browse(site.url)
    cell = page.locator("#diverse .samples .token.changed").first
    cell.hover()
    row, position = cell.evaluate("cell => [cell.parentElement.known.row, cell.position]")
    run = opening(0)["diverse"]
    spots = [(i, s) for i, frame in enumerate(run["steps"]) for s in frame["samples"][row]["spots"]]
    step, spot = next((i, s) for i, s in spots if s["position"] == position and s["by"] != "plain")
    pieces = {token: text for frame in run["steps"] for token, text in frame["pieces"].items()}
    told = page.inner_text("#details")
    assert f"Sample {row + 1}, position {position + 1}, step {step + 1}" in told
    lines = {line.split("\t")[0]: line.split("\t")[1:] for line in told.splitlines() if "\t" in line}
    assert lines["plain would take"][0] == f"“{pieces[str(spot['plain_token'])]}”"
    assert lines["taken"][0] == f"“{pieces[str(spot['token'])]}”"
    for name, base, after in (
        ("plain would take", "plain_base_probability", "plain_probability"),
        ("taken", "base_probability", "probability"),
    ):
        for told_share, share in zip(lines[name][1:], (spot[base], spot[after]), strict=True):
            if told_share[0] not in "<>":
                assert float(told_share.removesuffix(" %")) == pytest.approx(100 * share, abs=0.51)
    assert sum(name.startswith("likeliest") for name in lines) == 5
    page.mouse.move(0, 0)
    page.wait_for_selector("#details", state="hidden")
    page.locator("#diverse .samples .token").first.focus()
    page.wait_for_selector("#details:visible")
    page.keyboard.press("ArrowRight")
    assert "position 2" in page.inner_text("#details")
    page.keyboard.press("ArrowDown")
    assert "Sample 2, position 2" in page.inner_text("#details")
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "details"


def test_generate_side_by_side_and_share(site, browse):
    page = browse(site.url)
    page.wait_for_selector("button.main")
    until(page, "document.getElementById('set-problem').options.length > 10")
    page.select_option("#set-problem", index=1)
    for name, value in (("n", "4"), ("steps", "6"), ("temperature", "0.5"), ("alpha", "16")):
        page.locator(f"#set-{name}").fill(value)
    page.fill("#set-seed", "5")
    page.click("button.main")
    page.wait_for_selector("#diverse .verdict", timeout=WAIT_S * 1000)
    finished(page)
    assert page.inner_text("#step") == "step 6 of 6"
    assert len(texts(page, "plain")) == len(texts(page, "diverse")) == 4
    assert page.locator("#plain .verdict").count() == 4
    diverse = sorted(texts(page, "diverse"))
    assert diverse != sorted(texts(page, "plain"))
    page.check("input[value=diverse]", force=True)
    assert page.is_hidden("#plain")
    assert page.is_visible("#diverse")
    page.locator("#scrub").fill("3")
    until(page, "location.hash.includes('step=3')")
    link = page.url
    for part in ("n=4", "alpha=16", "temperature=0.5", "steps=6", "seed=5", "objective=odd", "view=diverse", "task=countdown"):
        assert part in link
    again = browse(link)
    again.wait_for_selector("#diverse .verdict", timeout=WAIT_S * 1000)
    finished(again)
    assert again.inner_text("#step") == "step 3 of 6"
    assert again.is_hidden("#plain")
    assert again.input_value("#set-seed") == "5"
    again.locator("#scrub").fill("6")
    assert sorted(texts(again, "diverse")) == diverse


def test_a_download_opens_again_without_a_model(site, browse, tmp_path):
    page = browse(site.url + LINK)
    finished(page)
    with page.expect_download() as waiting:
        page.click("#download")
    path = tmp_path / "mine.json"
    waiting.value.save_as(path)
    from oddlm.serve.recording import Recording, write_copy

    content = Recording.model_validate_json(path.read_text())
    assert content.diverse.start.n == 4
    assert content.plain.start.params.alpha == 0
    copy = browse(write_copy(tmp_path / "copy", [content]).as_uri())
    copy.wait_for_selector("#diverse .sample")
    assert texts(copy, "diverse") == texts(page, "diverse")
    assert copy.locator("button.main").count() == 0
    upload(copy, json.dumps(opening(0)))
    notice(copy, "some.json: a recording of the model mini")
    assert "Reach 34" in copy.inner_text("h1")
    upload(copy, path.read_bytes())
    until(copy, "!document.querySelector('h1').textContent.includes('Reach')")
    assert texts(copy, "diverse") == texts(page, "diverse")


BROKEN = {
    "cut off": (lambda text: text[:5000], "is no JSON"),
    "no JSON": (lambda text: "<b>hello</b>", "is no JSON"),
    "another version": (lambda text: text.replace('"version":1', '"version":9', 1), "version 9, and this page reads version 1"),
    "something else": (lambda text: '{"a": [1, 2]}', "is no recording of oddlm"),
    "null": (lambda text: "null", "is no recording of oddlm"),
    "no runs": (lambda text: text.split(',"plain"')[0] + "}", "recording.plain is not an object"),
    "a missing step": (lambda text: text.replace('"step":3,', '"step":4,', 1), "step 4 comes where 3 should"),
    "a wrong type": (lambda text: text.replace('"position":0,', '"position":"0",', 1), "position is not a whole number"),
    "too large": (lambda text: text.replace('"length":24', '"length":1000000000', 1), "length is not a whole number from 1"),
}  # fmt: skip


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


def test_markup_and_control_characters_are_text(site, browse):
    recording = opening(0)
    recording["title"] = HOSTILE
    for run in (recording["plain"], recording["diverse"]):
        for frame in run["steps"]:
            frame["pieces"] = dict.fromkeys(frame["pieces"], HOSTILE)
        for sample in run["end"]["samples"]:
            sample["text"] = HOSTILE
        for verdict in run["verdicts"]:
            verdict["detail"] = HOSTILE
    page = browse(site.url)
    upload(page, json.dumps(recording), f"{HOSTILE[:20]}.json")
    notice(page, "a recording of the model mini")
    shown = HOSTILE.replace("\x07", "␇").replace("\u202e", "⟨U+202E⟩")
    assert page.text_content("h1") == shown
    page.hover("#diverse .samples .token >> nth=0")
    assert shown in page.text_content("#details")
    page.fill("#set-prompt", HOSTILE)
    for name, value in (("n", "2"), ("length", "8"), ("steps", "2")):
        page.locator(f"#set-{name}").fill(value)
    page.click("button.main")
    until(page, "document.getElementById('step').textContent === 'step 2 of 2'")
    assert page.text_content("h1") == shown
    assert page.locator("main img, main script").count() == 0
    assert page.title() != "run"


def expect_failed_loads(browse, *words: str) -> None:
    """The browser itself notes answers of 400 and more."""
    assert browse.complaints
    assert all("Failed to load resource" in said and any(word in said for word in words) for said in browse.complaints)
    browse.complaints.clear()


def test_refusals_are_told_in_words(site, browse):
    page = browse(site.url)
    page.wait_for_selector("button.main")
    page.fill("#set-prompt", "")
    before = texts(page, "diverse")
    page.click("button.main")
    assert "The server refused: the prompt is empty" in notice(page, "refused")
    assert texts(page, "diverse") == before
    expect_failed_loads(browse, "400")
    page = browse(site.url + LINK.replace("n=4", "n=many").replace("seed=3", "seed="))
    finished(page)
    notice(page, "not understood at n=many, seed=")


def test_an_error_in_mid_stream_keeps_what_came(mini_lm, browse):
    with running(mini_lm, model="mini", limits=limits(timeout_s=0.001)) as server:
        page = browse(server.url + LINK)
        notice(page, "The server broke off: the request took longer than this server allows")
        assert page.inner_text("h1") == "4,9,68,38,34"


def answer_head(kind: str, size: int) -> bytes:
    return f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n".encode()


@contextmanager
def broken_server(site, stream: bytes):
    """Gives the site's own pages and answers, but this as the stream of denoising, after which it hangs up."""
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
                found = httpx.get(site.url + head.decode().split(" ")[1])
                connection.sendall(answer_head(found.headers["content-type"], len(found.content)) + found.content)

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
    return event("start", run["start"]) + b"".join(event("step", frame) for frame in run["steps"][:steps])


@pytest.mark.parametrize(
    ("stream", "words", "steps"),
    [
        (stream_of(3), "The server went away after step 3 of 12. What came until then is shown.", 3),
        (stream_of(2) + b"event: step\ndata: {\n\n", "The server sent an event that cannot be read", 2),
        (stream_of(2) + b"event: gossip\ndata: 1\n\n", "an event this page does not know: “gossip”", 2),
        (stream_of(1) + event("step", {"step": 1, "total": 12, "pieces": {}, "samples": 5}), "step.samples is not a list", 1),
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
        written = [t != run["start"]["mask_id"] for s in run["steps"][steps - 1]["samples"] for t in s["tokens"]]
        assert [piece != "·" for row in texts_by_row(page) for piece in row] == written
    browse.complaints[:] = [
        said for said in browse.complaints if "ERR_CONTENT_LENGTH_MISMATCH" not in said and "ERR_" not in said
    ]


def test_a_server_that_is_gone(mini_lm, browse):
    with running(mini_lm, model="mini", grace_s=1) as server:
        page = browse(server.url)
        page.wait_for_selector("button.main")
    page.click("button.main")
    assert "The server does not answer" in notice(page, "does not answer")
    assert page.locator("#diverse .verdict.right").count() > 0
    expect_failed_loads(browse, "ERR_CONNECTION_REFUSED")


def test_an_api_key(mini_lm, browse):
    with running(mini_lm, model="mini", api_key="secret") as server:
        page = browse(server.url)
        page.fill("#key", "secret")
        page.click("button.main")
        page.wait_for_selector("#set-n")
    expect_failed_loads(browse, "401")


def large_recording(n: int, length: int, steps: int) -> dict:
    recording = opening(0)
    spot = recording["diverse"]["steps"][0]["samples"][0]["spots"][0]
    spot["top"] = spot["top"][:1]
    for run in (recording["plain"], recording["diverse"]):
        run["start"]["n"], run["start"]["params"]["length"], run["start"]["params"]["steps"] = n, length, steps
        frame, share = run["steps"][0], length // steps
        tokens = [int(token) for token in frame["pieces"]]
        positions = [range(step * share, (step + 1) * share) for step in range(steps)]
        run["steps"] = [
            {**frame, "step": step, "total": steps, "samples": [
                {"spots": [{**spot, "position": p, "token": tokens[(p + row) % len(tokens)]} for p in positions[step]],
                 "mean_entropy": 1.0, "mean_force": 1.0, "tokens": []} for row in range(n)]}
            for step in range(steps)
        ]  # fmt: skip
        ended = run["end"]["samples"][0]
        run["end"]["samples"] = [{**ended, "index": row, "text": f"text {row}"} for row in range(n)]
        run["verdicts"] = None
    return recording


def test_many_long_samples_stay_usable(site, browse):
    """64 samples of 256 tokens: only what is on the screen is drawn, and a step takes far less than drawing all would."""
    page = browse(site.url, width=390)
    page.wait_for_selector("button.main")
    upload(page, json.dumps(large_recording(64, 256, 32)))
    notice(page, "a recording of the model mini")
    assert page.locator("#plain .sample").count() == page.locator("#diverse .sample").count() == 64
    drawn = page.locator("main .samples .token").count()
    assert 0 < drawn < 64 * 256 / 2
    timing = """() => {
        const slider = document.getElementById('scrub'), before = performance.now();
        for (const step of [3, 30, 12, 31, 7]) {
            slider.value = step;
            slider.dispatchEvent(new Event('input'));
            document.body.offsetHeight;
        }
        return (performance.now() - before) / 5;
    }"""
    assert page.evaluate(timing) < 2000  # loosely: tenths of a second on a busy machine
    page.locator("#diverse .sample").last.scroll_into_view_if_needed()
    until(page, "document.querySelector('#diverse .sample:last-child .token')")
    assert page.locator("#diverse .sample").last.locator(".token").count() == 256
    assert fits(page)

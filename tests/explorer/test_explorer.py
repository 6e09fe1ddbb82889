"""The explorer in a real browser.

`browse` fails a test for any error in the console and any request to another origin.
"""

import json
import re

import pytest

from oddlm import LM
from oddlm.explorer.recording import Recording, record, write_copy
from oddlm.params import SampleParams

from ..core.test_drafts import BOUND, STEPS, Drafter
from ..waiting import WAIT_S
from .looking import (
    HOSTILE,
    LINK,
    finished,
    fits,
    notice,
    opening,
    texts,
    texts_by_row,
    until,
    upload,
)

PAUSE_MS = 350  # between two steps when playing


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_first_visit_shows_what_diversity_does(site, browse, width, dark):
    page = browse(site.url, width=width, dark=dark)
    page.wait_for_selector("#diverse .verdict.right")
    run = opening(0)["diverse"]
    right, different = (
        sum(verdict["correct"] for verdict in run["verdicts"]),
        len({sample["text"] for sample in run["end"]["samples"]}),
    )
    assert re.findall(r"\d+", page.inner_text("#lead")) == [
        "0",
        "8",
        str(different),
        str(right),
        "8",
    ]
    assert page.locator("#diverse.solved .verdict.right").count() == right
    assert page.locator("#plain.solved, #plain .verdict.right").count() == 0
    assert page.locator("#diverse .token.changed").count() > 0
    assert page.get_attribute("#plain .fold", "data-times") == "8"
    page.wait_for_selector("button.main")
    assert fits(page)
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != background


def with_a_clock(page):
    """Return a page whose time passes only in `page.clock.run_for`."""
    page.clock.install(time=0)
    page.clock.pause_at(1)
    return page


def test_it_plays_by_itself_where_motion_is_welcome(site, chromium):
    with chromium.new_context(reduced_motion="no-preference") as context:
        page = with_a_clock(context.new_page())
        page.goto(site.url)
        until(page, "document.getElementById('play').ariaLabel === 'Pause'")
        page.clock.run_for(3 * PAUSE_MS)
        assert page.inner_text("#step") == "step 3 of 12"
        page.click("#play")
        assert page.get_attribute("#play", "aria-label") == "Play"
        page.clock.run_for(3 * PAUSE_MS)
        assert page.inner_text("#step") == "step 3 of 12"


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
    waiting = sum(
        spot["by"] == "plain" for sample in run["steps"][1]["samples"] for spot in sample["spots"]
    )
    assert page.locator("#diverse .samples .only-plain").count() == waiting
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#step") == "step 1 of 12"
    with_a_clock(page).keyboard.press(" ")
    page.clock.run_for(11 * PAUSE_MS)
    assert page.inner_text("#step") == "step 12 of 12"
    assert texts(page, "diverse") == final


def test_hover_and_focus_tell_what_plain_sampling_would_take(site, browse):
    page = browse(site.url)
    # From then on, nothing moves below the pointer.
    until(page, "document.getElementById('set-problem')?.options.length > 10")
    cell = page.locator("#diverse .samples .token.changed").first
    cell.hover()
    row, position = cell.evaluate("cell => [cell.parentElement.known.row, cell.position]")
    run = opening(0)["diverse"]
    spots = [(i, s) for i, frame in enumerate(run["steps"]) for s in frame["samples"][row]["spots"]]
    step, spot = next((i, s) for i, s in spots if s["position"] == position and s["by"] != "plain")
    pieces = {token: text for frame in run["steps"] for token, text in frame["pieces"].items()}
    told = page.inner_text("#details")
    assert f"Sample {row + 1}, position {position + 1}, step {step + 1}" in told
    lines = {
        name: page.locator(f"#details .{name} td").all_inner_texts()
        for name in ("taken", "plainly")
    }
    assert lines["plainly"][0] == f"“{pieces[str(spot['plain_token'])]}”"
    assert lines["taken"][0] == f"“{pieces[str(spot['token'])]}”"
    for name, base, after in (
        ("plainly", "plain_base_probability", "plain_probability"),
        ("taken", "base_probability", "probability"),
    ):
        for told_share, share in zip(lines[name][1:], (spot[base], spot[after]), strict=True):
            if told_share[0] not in "<>":
                assert float(told_share.removesuffix(" %")) == pytest.approx(100 * share, abs=0.51)
    assert page.locator("#details .top").count() == 5
    page.mouse.move(0, 0)
    page.wait_for_selector("#details", state="hidden")
    page.locator("#diverse .samples .token").first.focus()
    page.wait_for_selector("#details:visible")
    page.keyboard.press("ArrowRight")
    above = page.inner_text("#details")
    assert "position 2" in above
    page.keyboard.press("ArrowDown")
    below = page.inner_text("#details")
    assert "position 2" in below
    assert sample_of(below) != sample_of(above)
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "details"


def sample_of(told: str) -> str:
    return re.search(r"Sample (\d+),", told)[1]


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
    for part in (
        "n=4",
        "alpha=16",
        "temperature=0.5",
        "steps=6",
        "seed=5",
        "objective=%7B%22enough%22%3A0.5%2C%22name%22%3A%22odd%22%7D",
        "fork=auto",
        "view=diverse",
        "task=countdown",
    ):
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
    content = Recording.model_validate_json(path.read_text())
    assert content.diverse.start.n == 4
    assert content.plain.start.params.alpha == 0
    copy = browse(write_copy(tmp_path / "copy", [content]).as_uri())
    copy.wait_for_selector("#diverse .sample")
    assert texts(copy, "diverse") == texts(page, "diverse")
    assert copy.locator("button.main").count() == 0
    upload(copy, json.dumps(opening(0)))
    notice(copy, "some.json: a recording of the model mini")
    assert copy.inner_text("h1") == opening(0)["title"]
    upload(copy, path.read_bytes())
    until(copy, "!document.querySelector('h1').textContent.includes('Reach')")
    assert texts(copy, "diverse") == texts(page, "diverse")


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


def test_charts_tell_their_points_and_jump_to_a_step(site, browse):
    page = browse(site.url)
    page.wait_for_selector("#diverse .verdict.right")
    steps = opening(0)["diverse"]["steps"]
    wanted = [
        sum(one["mean_force"] for one in step["samples"]) / len(step["samples"]) for step in steps
    ]
    force = page.locator("#charts .chart").first
    line = force.locator(".series").last
    line.focus()
    name, words = page.inner_text("#tip").splitlines()
    assert name == "diverse"
    assert [float(number) for number in re.findall(r"[\d.]+", words)] == [
        12,
        pytest.approx(wanted[-1], abs=0.006),
    ]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert page.inner_text("#step") == "step 11 of 12"
    places = """chart => [
        chart.querySelector('.cursor').getAttribute('x1'),
        chart.querySelector('.ring').getAttribute('cx'),
    ]"""
    cursor, ring = force.evaluate(places)
    assert cursor == ring
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")
    box = force.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 3, box["y"] + 20)
    clicked = int(page.inner_text("#step").split()[1])
    assert 3 <= clicked <= 6
    assert f"step {clicked}:" in page.inner_text("#tip")


def large_recording(n: int, length: int, steps: int) -> dict:
    recording = opening(0)
    spot = recording["diverse"]["steps"][0]["samples"][0]["spots"][0]
    spot["top"] = spot["top"][:1]
    for run in (recording["plain"], recording["diverse"]):
        run["start"]["n"] = n
        run["start"]["params"] |= {"length": length, "steps": steps}
        frame, share = run["steps"][0], length // steps
        tokens = [int(token) for token in frame["pieces"]]
        run["steps"] = []
        for step in range(steps):
            samples = []
            for index in range(n):
                spots = [
                    {**spot, "position": p, "token": tokens[(p + index) % len(tokens)]}
                    for p in range(step * share, (step + 1) * share)
                ]
                means = {"mean_entropy": 1.0, "mean_force": 1.0}
                samples.append({"spots": spots, **means, "tokens": []})
            run["steps"].append({**frame, "step": step, "total": steps, "samples": samples})
        ended = run["end"]["samples"][0]
        run["end"]["samples"] = [{**ended, "index": i, "text": f"text {i}"} for i in range(n)]
        run["verdicts"] = None
    return recording


def test_many_long_samples_stay_usable(site, browse):
    """With 64 samples of 256 tokens, only those on the screen are drawn.

    So a step takes far less time than drawing all of them would.
    """
    page = browse(site.url, width=390)
    page.wait_for_selector("button.main")
    upload(page, json.dumps(large_recording(64, 256, 32)))
    notice(page, "a recording of the model mini")
    assert page.locator("#plain .sample").count() == page.locator("#diverse .sample").count() == 64
    drawn = page.locator("main .samples .token").count()
    assert 0 < drawn < 64 * 256 / 2
    timing = """(step) => {
        const slider = document.getElementById('scrub'), before = performance.now();
        slider.value = step;
        slider.dispatchEvent(new Event('input'));
        document.body.offsetHeight;
        return performance.now() - before;
    }"""
    some = min(page.evaluate(timing, step) for step in (3, 30, 12, 31))
    page.evaluate(
        "document.querySelectorAll('main .tokens').forEach((one) => { one.known.seen = true; })"
    )
    assert 4 * some < page.evaluate(timing, 7)
    assert page.locator("main .samples .token").count() == 2 * 64 * 256
    page.locator("#diverse .sample").last.scroll_into_view_if_needed()
    until(page, "document.querySelector('#diverse .sample:last-child .token')")
    assert page.locator("#diverse .sample").last.locator(".token").count() == 256
    assert fits(page)


def test_a_model_without_masks_writes_whole_blocks_and_skips_steps(site, browse):
    model = Drafter(certain=1e9)
    params = SampleParams(
        length=24, steps=3 * STEPS, policy=BOUND, objective="odd", fork=False, eos="never"
    )
    recording = record(LM(model, model.tokenizer), "toy", "t5 t6", 4, params, None, None)
    numbers = [frame.step for frame in recording.plain.steps]
    assert numbers != list(range(len(numbers))), "all samples finish a block early"
    page = browse(site.url)
    page.wait_for_selector("button.main")
    upload(page, recording.model_dump_json())
    until(page, "document.getElementById('step').textContent.includes('step')")
    final = [sample.tokens for sample in recording.diverse.end.samples]
    pieces = {k: v for frame in recording.diverse.steps for k, v in frame.pieces.items()}
    page.locator("#scrub").fill(str(len(recording.diverse.steps)))
    ends = set(model.end_ids)
    expected = [["∎" if t in ends else pieces[t] for t in row] for row in final]
    assert texts_by_row(page) == expected

"""Everything on the pages must be visible, readable, and reachable without a mouse."""

import json

import pytest

from .looking import LINK, finished, notice, opening, upload

SIZES = [(1280, 800), (390, 844)]


def inside(page, selector: str) -> bool:
    """Whether the whole element is on the screen, and uppermost."""
    script = """(selector) => {
        const element = document.querySelector(selector);
        const { left, right, top, bottom } = element.getBoundingClientRect();
        const uppermost = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
        return top >= 0 && bottom <= innerHeight && left >= 0 && right <= innerWidth
            && element.contains(uppermost);
    }"""
    return page.evaluate(script, selector)


def tabbed(page, most: int = 80) -> list[str]:
    """Return the ids of the elements that Tab reaches, from the top of the page."""
    found = []
    page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
    for _ in range(most):
        page.keyboard.press("Tab")
        found.append(page.evaluate("document.activeElement.id"))
    return found


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_refusal_is_seen_where_generate_is_pressed(site, browse, width, height):
    page = browse(site.url, width=width, height=height)
    page.wait_for_selector("button.main")
    page.fill("#set-prompt", "")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.locator("button.main").scroll_into_view_if_needed()
    assert page.evaluate("scrollY") > 100
    page.click("button.main")
    notice(page, "the prompt is empty")
    assert inside(page, "#notice")
    assert page.get_attribute("#notice", "role") == "alert"
    page.click("#notice button")
    assert page.inner_text("#notice") == ""
    browse.expect_failed_loads("400")


def test_a_recording_is_opened_by_keys(site, browse):
    page = browse(site.url)
    page.wait_for_selector("button.main")
    order = tabbed(page)
    assert "open" in order
    page.locator("#download").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "open"
    assert (
        page.evaluate("getComputedStyle(document.activeElement.parentElement).outlineStyle")
        == "solid"
    )
    assert inside(page, "label:has(#open)")
    with page.expect_file_chooser() as chooser:
        # A round trip, so that the browser intercepts choosers before the key press arrives.
        page.evaluate("0")
        page.keyboard.press(" ")
    content = json.dumps(opening(0)).encode()
    chooser.value.set_files(
        {"name": "mine.json", "mimeType": "application/json", "buffer": content}
    )
    notice(page, "mine.json: a recording of the model mini")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_tab_goes_as_the_page_reads(site, browse, width, height):
    page = browse(site.url, width=width, height=height)
    page.wait_for_selector("button.main")
    order = [
        name for name in tabbed(page) if name in ("theme", "scrub", "open", "set-task", "set-seed")
    ]
    assert order[:5] == ["theme", "scrub", "open", "set-task", "set-seed"]
    stage, form = (page.locator(f"#{name}").bounding_box() for name in ("stage", "controls"))
    assert stage["x"] + stage["width"] <= form["x"] or stage["y"] + stage["height"] <= form["y"]


def test_play_and_pause_are_drawn_without_a_font(site, browse):
    page = browse(site.url)
    page.wait_for_selector("#diverse .verdict.right")
    looks = []
    for name in ("Play", "Pause"):
        button = page.locator("#play")
        assert button.get_attribute("aria-label") == name
        assert button.text_content().strip() == ""
        assert button.locator("svg path").evaluate("path => path.getBoundingClientRect().width") > 5
        looks.append(button.locator("svg path").get_attribute("d"))
        page.click("#play")
    assert looks[0] != looks[1]


def test_the_frame_of_a_line_break_is_in_one_piece(site, browse):
    recording = opening(0)
    run = recording["diverse"]
    forked = run["steps"][0]["samples"][0]["spots"][0]
    for frame in run["steps"]:
        if str(forked["token"]) in frame["pieces"]:
            frame["pieces"][str(forked["token"])] = "x\n    "
    page = browse(site.url)
    page.wait_for_selector("button.main")
    upload(page, json.dumps(recording))
    notice(page, "a recording of the model mini")
    cell = page.locator("#diverse .samples .forked", has_text="↵").first
    assert cell.evaluate("cell => cell.getClientRects().length") == 1
    assert cell.text_content() == "x↵"
    below = """cell => cell.nextElementSibling.getBoundingClientRect().top
        > cell.getBoundingClientRect().bottom - 4"""
    assert cell.evaluate(below)
    assert "x↵\n    " in cell.evaluate("cell => cell.parentElement.textContent")


def test_lines_break_between_tokens(site, browse):
    page = browse(site.url, width=390)
    page.wait_for_selector("#diverse .verdict.right")
    pieces = "cells => cells.map((cell) => cell.getClientRects().length)"
    assert set(page.locator("#diverse .samples .token:visible").evaluate_all(pieces)) == {1}
    tops = """cells => new Set(
        cells.map((cell) => Math.round(cell.getBoundingClientRect().top / 12))
    ).size"""
    assert (
        page.locator("#diverse .tokens:visible >> nth=1")
        .locator(".token:visible")
        .evaluate_all(tops)
        > 1
    )


SMALLEST = """(selector) => Math.min(...[...document.querySelectorAll(selector)].map((one) =>
    parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a))"""


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_charts_can_be_read(site, browse, width, height):
    page = browse(f"{site.url}/runs", width=width, height=height)
    page.wait_for_selector(".curve svg")
    assert page.evaluate(SMALLEST, ".curve text") >= 11
    if width > 600:
        page.set_viewport_size({"width": 390, "height": height})
        page.wait_for_timeout(300)
        assert page.evaluate(SMALLEST, ".curve text") >= 11
    inside_drawing = """() => {
        const edge = document.querySelector('.curve svg').getBoundingClientRect();
        return [...document.querySelectorAll('.curve text')]
            .map((one) => one.getBoundingClientRect())
            .every((box) => box.left >= edge.left && box.right <= edge.right
                && box.bottom <= edge.bottom + 1);
    }"""
    assert page.evaluate(inside_drawing)
    assert page.inner_text("#notice") == ""
    page = browse(site.url, width=width, height=height)
    page.wait_for_selector(".chart text")
    assert page.evaluate(SMALLEST, ".chart text") >= 11
    assert page.inner_text("#notice") == ""


def test_a_link_past_the_bounds_says_so(site, browse):
    page = browse(
        site.url
        + LINK.replace("n=4", "n=9999")
        .replace("alpha=8", "alpha=abc")
        .replace("length=24", "length=4")
    )
    notice(page, "n=9999 is now 64", "steps=6 is now 4", "alpha=abc")
    finished(page)
    said = notice(page, "n=9999 is now 64", "steps=6 is now 4", "alpha=abc")
    assert "temperature" not in said
    assert page.input_value("#set-n") == "64"


def test_a_link_within_the_bounds_says_nothing(site, browse):
    page = browse(site.url + LINK.replace("temperature=0.5", "temperature=0.15"))
    finished(page)
    assert page.inner_text("#notice") == ""

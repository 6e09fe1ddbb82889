"""What the tests of the explorer do with its page."""

import json
import re
import time

from oddlm.explorer.assets import asset

from ..waiting import WAIT_S

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
    """Wait until the script says yes; Playwright's own waiting needs eval, which the pages' policy
    forbids.
    """
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if page.evaluate(script, arg):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"never true: {script} {arg}; the page says {page.inner_text('body')}")


def notice(page, *words: str) -> str:
    for word in words:
        until(
            page, "word => document.getElementById('notice').textContent.includes(word)", arg=word
        )
    return page.inner_text("#notice")


def finished(page):
    until(page, "document.querySelector('button.main')?.textContent === 'Generate'")


def texts(page, side: str) -> list[str]:
    """What stands on one side, when all of it is drawn."""
    until(
        page,
        "(side) => [...document.querySelectorAll(`#${side} .tokens`)].every((one) => one.firstChild)",
        side,
    )
    return page.locator(f"#{side} .tokens").all_text_contents()


def fits(page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def texts_by_row(page) -> list[list[str]]:
    """The tokens of the diverse samples, in the order of their numbers, when all are drawn."""
    drawn = "(all) => all.length > 0 && all.every((one) => one.firstChild)"
    until(page, f"({drawn})([...document.querySelectorAll('#diverse .tokens')])")
    script = """() => [...document.querySelectorAll('#diverse .tokens')].sort((a, b) => a.known.row - b.known.row)
        .map((one) => one.known.cells.map((cell) => cell.textContent))"""
    return page.evaluate(script)

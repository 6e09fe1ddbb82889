"""A real browser for the tests of pages: Chromium from the distribution, driven by Playwright.

    def test_something(browse):
        page = browse(path.as_uri(), width=390, dark=True)

What a page complains of in its console, and every request that leaves this machine, fails the test
when it ends; a test that expects complaints takes them out of `browse.complaints`, or calls
`browse.expect_failed_loads`.
"""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from .waiting import WAIT_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
HERE = ("file", "data", "blob", "about")
HOSTS = ("127.0.0.1", "localhost")


@dataclass
class Browse:
    """Opens pages, each in its own profile, and records their requests and errors."""

    browser: "Browser"
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    failed_loads: int = 0  # each of which the browser complains of, a little later
    contexts: list["BrowserContext"] = field(default_factory=list)

    def __call__(
        self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False
    ) -> "Page":
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        self.contexts.append(context)
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("response", lambda response: self._note_failure(response.status >= 400))
        context.on(
            "requestfailed",
            lambda request: self._note_failure(request.failure != "net::ERR_ABORTED"),
        )
        page = context.new_page()
        page.set_default_timeout(WAIT_S * 1000)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on(
            "console",
            lambda said: (
                self.complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.goto(url)
        return page

    def _note_failure(self, failed: bool) -> None:
        self.failed_loads += failed

    def expect_failed_loads(self, *words: str) -> None:
        """Take out what the browser notes of answers of 400 and more or of servers that are gone,
        with one of these words.
        """
        page = self.contexts[-1].pages[-1]
        until = time.monotonic() + WAIT_S
        while len(self.complaints) < max(1, self.failed_loads):
            assert time.monotonic() < until, (self.failed_loads, self.complaints)
            page.wait_for_timeout(10)  # lets what the browser says come in
        for said in self.complaints:
            assert "Failed to load resource" in said
            assert any(word in said for word in words), said
        self.complaints.clear()
        self.failed_loads = 0

    @property
    def left_the_host(self) -> list[str]:
        parts = [(urlsplit(url), url) for url in self.requests]
        return [
            url for part, url in parts if part.scheme not in HERE and part.hostname not in HOSTS
        ]


@pytest.fixture(
    scope="module"
)  # Playwright's event loop runs while it is open: asyncio.run elsewhere would be refused
def chromium() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail("the tests of pages need Chromium: sudo apt-get install chromium")
    arguments = (
        ["--no-sandbox"] if os.geteuid() == 0 else []
    )  # which Chromium refuses to have as root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium: "Browser") -> Iterator[Browse]:
    visits = Browse(chromium)
    yield visits
    for context in visits.contexts:
        context.close()
    assert visits.complaints == []
    assert visits.left_the_host == []

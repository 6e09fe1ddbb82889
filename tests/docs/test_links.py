"""Relative links and anchors outside docs/; `mkdocs build --strict` checks those of docs/."""

import re
import unicodedata
from pathlib import Path

import pytest

from .pages import FENCE, ROOT

PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "src").rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?)(?: *\{#([\w-]+)\})?$", re.MULTILINE)
OUTSIDE = re.compile(r"^[a-z]+:")


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    found: set[str] = set()
    for heading, own in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = unicodedata.normalize("NFC", plain).strip().lower()
        found |= {own, re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")}
    return found


def broken(path: Path, text: str) -> list[str]:
    found = []
    for link in LINK.findall(FENCE.sub("", text)):
        if OUTSIDE.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        content = (
            text
            if target == path
            else target.read_text()
            if target.suffix == ".md" and target.is_file()
            else ""
        )
        there = not name or (target.exists() and target.is_relative_to(ROOT))
        if not there or (anchor and anchor not in anchors(content)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    assert broken(page, page.read_text()) == []


def test_broken_links_are_seen():
    text = "# A title\n[a](#a-title) [b](#no) [c](LICENSE) [d](nowhere.md) [e](https://x.example)\n```sh\n[f](g)\n```\n"
    assert broken(ROOT / "page.md", text) == ["#no", "nowhere.md"]

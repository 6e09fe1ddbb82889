"""The built site: whole, offline, and with references that cover the code."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.main import get_command

import oddlm
from oddlm.cli import app
from oddlm.params import SampleParams
from oddlm.pieces import PIECES
from oddlm.presets import PRESETS
from oddlm.spec import Loading, RunSpec
from oddlm.store import Store, records
from oddlm.store.query import sql

from .conftest import build
from .pages import DOCS

LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
LINKS_THAT_LOAD = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}
OUTSIDE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


class Resources(HTMLParser):
    """What a page loads when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in LOADED:
            self.found.append(given.get(LOADED[tag]) or "")
        if tag == "link" and LINKS_THAT_LOAD & set((given.get("rel") or "").split()):
            self.found.append(given.get("href") or "")
        self.found += [
            part.split()[0] for part in (given.get("srcset") or "").split(",") if part.strip()
        ]


def resources(html: str) -> list[str]:
    parser = Resources()
    parser.feed(html)
    return parser.found


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere"])
def test_a_broken_link_fails_the_build(tmp_path, link):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# Title\n\n[text]({link})\n")
    lines = [f"INHERIT: {DOCS.parent / 'mkdocs.yml'}", f"docs_dir: {tmp_path / 'docs'}"]
    lines += ["nav: [index.md]", "hooks: []", "plugins: []", "theme: {name: mkdocs, palette: []}"]
    (tmp_path / "mkdocs.yml").write_text("\n".join(lines))
    done = build(tmp_path / "out", tmp_path / "mkdocs.yml")
    assert done.returncode == 1
    assert link in done.stderr


def test_resources_from_elsewhere_are_seen():
    sheet = '<link rel="stylesheet" href="https://x.example/a.css">'
    page = sheet + '<script src="//x.example/a.js"></script><a href="https://x.example">'
    assert [bool(OUTSIDE.match(one)) for one in resources(page)] == [True, True]


def test_no_page_loads_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        found = resources(page.read_text())
        assert found, page
        assert not [one for one in found if OUTSIDE.match(one)], page
        here = [one.split("?")[0] for one in found if one and not one.startswith(("data:", "#"))]
        missing = [
            one for one in here if not (page.parent / one).exists() and page.name != "404.html"
        ]
        assert not missing, page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        found = re.findall(r"url\(['\"]?([^'\")]+)", text) + re.findall(
            r"@import\s+['\"]([^'\"]+)", text
        )
        assert not [one for one in found if OUTSIDE.match(one)], sheet


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text())


def commands(group, before="oddlm") -> list[str]:
    found = []
    for name, command in group.commands.items():
        inner = commands(command, f"{before} {name}") if hasattr(command, "commands") else []
        found += (
            [f"{before} {name}", *inner] if not inner or command.invoke_without_command else inner
        )
    return found


def test_every_command_and_option_is_in_the_reference(site):
    html = (site / "reference/cli.html").read_text()
    root = get_command(app)
    names = commands(root)
    assert len(names) > 15
    for name in names:
        assert f'id="{name.replace(" ", "-")}"' in html
    options = {
        option
        for command in root.commands.values()
        for p in command.params
        for option in p.opts
        if option[:2] == "--"
    }
    assert len(options) > 40
    assert not [option for option in options if f"<code>{option}</code>" not in html]


def test_every_setting_is_in_the_reference(site):
    html = (site / "reference/settings.html").read_text()
    fields = [*SampleParams.model_fields, *RunSpec.model_fields, *Loading.model_fields]
    assert not [field for field in fields if f"<code>{field}</code>" not in html]
    text = text_of(site / "reference/settings.html").replace("&quot;", '"')
    described = [
        field for model in (SampleParams, RunSpec, Loading) for field in model.model_fields.values()
    ]
    defaults = [
        json.dumps(f.default)
        for f in described
        if not f.is_required() and f.default_factory is None
    ]
    assert not [default for default in defaults if default not in text]
    pieces = [*PRESETS, *(name for registry in PIECES.values() for name in registry.names)]
    assert not [name for name in pieces if f"<code>{name}</code>" not in html]


def test_every_path_of_the_server_is_in_the_reference(site):
    from oddlm.serve.api import create_app
    from oddlm.serve.settings import ServeSettings

    html = (site / "reference/http.html").read_text()
    paths = create_app(oddlm.load("toy"), ServeSettings(model="toy")).openapi()["paths"]
    for path, ways in paths.items():
        for method in ways:
            assert f"<code>{method.upper()} {path}</code>" in html


STORED = (
    records.Spec,
    records.Drawn,
    records.DrawnSample,
    records.Scored,
    records.Failure,
    records.Environment,
    records.Summary,
)


def test_every_stored_field_and_column_is_in_the_reference(tmp_path):
    text = (DOCS / "reference/store.md").read_text()
    fields = {name for model in STORED for name in model.model_fields} | set(RunSpec.model_fields)
    assert not [name for name in sorted(fields) if f"`{name}`" not in text]
    for table in ("runs", "problems", "samples"):
        (line,) = re.findall(rf"^\| `{table}` \| (`run`.*) \|$", text, re.MULTILINE)
        columns = [str(row[0]) for row in sql(Store(tmp_path), f"describe {table}").rows]
        assert re.findall(r"`(\w+)`", line) == columns


def test_every_public_name_is_on_one_page(site):
    pages = sorted((DOCS / "reference/api").glob("*.md"))
    found = [
        name
        for page in pages
        for name in re.findall(r"^::: oddlm\.(\w+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(found) == sorted(oddlm.__all__)
    html = "".join((site / "reference/api" / f"{page.stem}.html").read_text() for page in pages)
    assert not [name for name in found if f'id="oddlm.{name}"' not in html]


def test_the_changelog_is_that_of_the_repository(site):
    text = text_of(site / "changelog.html")
    headings = re.findall(r"^## (.*)$", (DOCS.parent / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings
    assert all(
        heading.replace("[", "").replace("]", "").split(" ")[0] in text for heading in headings
    )


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_pages_open_from_disk(site, browse, width, dark):
    for path in (
        "index.html",
        "reference/settings.html",
        "reference/api/product.html",
        "contributing.html",
    ):
        page = browse((site / path).as_uri(), width=width, dark=dark)
        assert page.locator("h1").first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        scheme = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
        assert scheme == ("slate" if dark else "default")


def test_search_works_from_disk(site, browse):
    page = browse((site / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially("alpha")  # it listens to keys
    page.locator(".md-search-result__link").first.wait_for()
    assert page.locator(".md-search-result__link").count() > 1


def test_a_phone_reaches_every_section(site, browse):
    page = browse((site / "index.html").as_uri(), width=390)
    page.locator("label.md-header__button[for=__drawer]").click()
    page.locator(".md-nav--primary label.md-nav__link", has_text="Extend").first.click()
    page.locator(".md-nav--primary a.md-nav__link", has_text="A policy").click()
    page.wait_for_url("**/extend/policy.html")

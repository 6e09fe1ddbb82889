"""report.html in a real browser, opened from disk."""

import math
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from oddlm.report import claims, page, tables
from oddlm.report.cells import read_results
from oddlm.report.released_runs import import_released
from oddlm.report.write import unknowns
from oddlm.store import Store
from oddlm.text import percent

from .made import grid, released, spec, write_released, write_run

HOSTILE = (
    "</script><script>window.hacked=1</script><!-- <img src=x onerror='window.hacked=2'> "
    "\u2028 \x1b[31m &lt; ${1}"
)


def made(store, out):
    out.mkdir(exist_ok=True)
    results = read_results(store)
    notes = {bench.name: unknowns(bench) for bench in results.benchmarks}
    return page.write_page(results, claims.findings(results), notes, out).as_uri()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    grid(folder / "runs")
    grid(folder / "runs", task="minicode", problems=3)
    return made(folder / "runs", folder / "out")


def path_of(uri):
    return Path(unquote(urlsplit(uri).path))


def cells(at):
    return at.locator("#table button[data-cell]").count()


def series(at, section):
    return at.locator(f"#{section} .chart .series").count()


def words(at, section):
    return at.locator(f"#{section} .words").all_inner_texts()


def test_the_table_holds_the_numbers_and_filters_choose(browse, report):
    at = browse(report)
    assert (cells(at), series(at, "curves"), series(at, "pareto")) == (6, 6, 3)
    assert (series(at, "diversity"), series(at, "overhead")) == (4, 1), (
        "a line and a dashed baseline per temperature"
    )
    shares = at.locator("#table button span").all_inner_texts()
    store = read_results(path_of(report).parents[1] / "runs")
    expected = [cell.passed[4].mean for cell in store.benchmarks[0].cells]
    assert sorted(shares) == sorted(percent(value) for value in expected)
    at.get_by_label("32", exact=True).uncheck()
    assert (cells(at), series(at, "curves"), series(at, "pareto")) == (4, 4, 2)
    at.locator("#filter-temperature").get_by_label("0.5", exact=True).uncheck()
    assert (cells(at), series(at, "curves"), series(at, "diversity")) == (2, 2, 2)
    at.get_by_label("odd", exact=True).uncheck()
    assert (cells(at), series(at, "diversity")) == (1, 0)
    at.get_by_label("plain", exact=True).uncheck()
    assert words(at, "table") == words(at, "pareto") == words(at, "curves") != []
    at.get_by_label("Benchmark").select_option("minicode")
    assert cells(at) == 6
    assert "3 problems" in at.inner_text("#about")
    before = at.locator("#table button span").all_inner_texts()
    at.select_option("#k", "1")
    assert at.locator("#table button span").all_inner_texts() != before
    verdicts = at.locator("#claims .verdict").all_inner_texts()
    assert len(verdicts) == 5
    assert all(re.search("holds|fails|open|insufficient data", one) for one in verdicts)


def test_samples_come_from_disk_page_by_page_when_asked_for(browse, report):
    at = browse(report)
    loaded = lambda: [url.rsplit("/", 2)[-1] for url in browse.requests if "/samples/" in url]  # noqa: E731
    assert loaded() == []
    at.locator("#table button[data-cell]").nth(2).click()
    at.wait_for_selector("#samples details[open] pre")
    assert at.locator("#samples details").count() == page.PAGE
    assert sorted(at.locator("#samples details[open] .texts pre").all_inner_texts()) == [
        "0 0",
        "0 1",
        "0 2",
        "0 3",
    ]
    assert at.inner_text("#samples details[open] .prompt") == "ask 0"
    assert at.evaluate("document.activeElement.id") == "chosen"
    at.click("#next")
    at.wait_for_selector("#samples b:text-is('p/11')")
    assert (at.locator("#samples details").count(), at.is_disabled("#next")) == (2, True)
    at.select_option("#problem", label="p/3")
    at.wait_for_selector("#samples details[open] b:text-is('p/3')")
    assert at.inner_text("#samples details[open] .prompt") == "ask 3"
    at.click("#baseline")
    at.wait_for_selector("#chosen:has-text('plain')")
    at.wait_for_selector("#samples details[open] b:text-is('p/3')")
    assert loaded() == ["0.js", "1.js", "0.js"], "a page that was loaded is kept"
    assert all(url.startswith("file:///") for url in browse.requests)


def test_hostile_texts_are_shown_and_never_run(browse, tmp_path):
    texts = [[HOSTILE, HOSTILE, "<b>bold</b>", ""]]
    write_run(
        tmp_path / "runs",
        spec(model=f"m {HOSTILE}", task=HOSTILE),
        [[False, False, True, False]],
        texts=texts,
    )
    at = browse(made(tmp_path / "runs", tmp_path / "out"))
    at.locator("#table button[data-cell]").click()
    at.wait_for_selector("#samples details[open] pre")
    shown = at.locator("#samples .texts pre").all_text_contents()
    assert shown == ["<b>bold</b>", HOSTILE.replace("\x1b", "\u241b"), "(empty)"]
    assert "\N{MULTIPLICATION SIGN}2" in at.locator("#samples .mark").nth(1).inner_text()
    assert "<img" in at.inner_text("#about")
    assert at.evaluate("window.hacked") is None
    assert at.locator("b", has_text="bold").count() == at.locator("img").count() == 0
    for path in (tmp_path / "out").rglob("*.*"):
        assert path.suffix not in (".html", ".js") or "hacked=1</script>" not in path.read_text()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_is_readable_wide_and_narrow_light_and_dark(browse, report, width, dark):
    at = browse(report, width=width, dark=dark)
    at.locator("#table button[data-cell]").first.click()
    at.wait_for_selector("#samples details[open] pre")
    assert at.evaluate("document.documentElement.scrollWidth") == width
    assert at.evaluate("document.querySelector('.chart text').getBoundingClientRect().height") >= 10
    ink, paper = at.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert abs(luminance(ink) - luminance(paper)) > 0.7
    assert bool(luminance(paper) < 0.2) is dark


def luminance(colour):
    return np.mean([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255


def test_the_keyboard_reaches_everything(browse, report):
    at = browse(report)
    at.locator("#curves .chart .series").first.focus()
    first = at.inner_text("#tip")
    assert re.search(r"^odd α8 T0\.5\nPass@4 [\d.]+ % \[", first)
    at.keyboard.press("ArrowLeft")
    assert "Pass@3" in at.inner_text("#tip")
    at.keyboard.press("Enter")
    at.wait_for_selector("#samples details[open] pre")
    assert at.inner_text("#chosen") == "odd α8 T0.5"
    assert at.locator("#table button[aria-pressed=true]").count() == 1
    at.locator("#filters input").first.focus()
    at.keyboard.press("Space")
    assert cells(at) == 4


def test_imported_runs_say_in_words_what_they_lack(browse, tmp_path):
    rows = [released(when=i) for i in range(3)] + [
        released("batched_orth", 8, when=10 + i, pass_at_2=0.7) for i in range(3)
    ]
    import_released(write_released(tmp_path / "logs.csv", rows), Store(tmp_path / "runs"), "gsm8k")
    at = browse(made(tmp_path / "runs", tmp_path / "out"))
    assert words(at, "samples") == [page.NO_SAMPLES]
    assert (len(words(at, "pareto")), series(at, "pareto")) == (1, 0)
    assert (cells(at), series(at, "curves"), series(at, "overhead")) == (2, 2, 1)
    at.locator("#notes summary").click()
    assert "coverage" in at.inner_text("#notes")
    at.locator("#table button[data-cell]").last.click()
    assert page.NO_SAMPLES in at.inner_text("#samples")
    assert not (tmp_path / "out" / "samples").exists()


@pytest.mark.parametrize("share", [0.7025, 0.7125, 0.70249999])
def test_a_number_is_rounded_once(browse, tmp_path, share):
    rows = [released(), released("batched_orth", 8, when=10, pass_at_2=share)]
    import_released(write_released(tmp_path / "logs.csv", rows), Store(tmp_path / "runs"), "gsm8k")
    at = browse(made(tmp_path / "runs", tmp_path / "out"))
    on_page = at.locator("#table button span").all_inner_texts()[-1]
    assert on_page == tables.percent(share, math.nan), "as report.md has it"


def test_a_single_run_without_a_baseline(browse, tmp_path):
    write_run(tmp_path / "runs", spec(), [[True, False, False, False], [False] * 4])
    write_run(tmp_path / "runs", spec(1), [[True] * 4], finish=False)
    at = browse(made(tmp_path / "runs", tmp_path / "out"))
    assert (cells(at), series(at, "diversity")) == (1, 1)
    assert (len(words(at, "overhead")), series(at, "overhead")) == (1, 0)
    assert "not complete" in at.inner_text("#leftout")
    assert "NaN" not in at.inner_text("body")
    at.locator("#table button[data-cell]").click()
    at.wait_for_selector("#samples details[open] pre")
    assert at.locator("#baseline").count() == 0


def test_plain_runs_with_one_sample(browse, tmp_path):
    write_run(tmp_path / "runs", spec(alpha=0.0, n=1), [[True], [False]])
    at = browse(made(tmp_path / "runs", tmp_path / "out"))
    assert (len(words(at, "pareto")), series(at, "pareto")) == (1, 0)
    assert (len(words(at, "diversity")), series(at, "diversity")) == (1, 0)
    assert series(at, "curves") == 1


def test_samples_that_are_not_there_are_missed_in_words(browse, tmp_path):
    write_run(tmp_path / "runs", spec(), [[True] * 4])
    uri = made(tmp_path / "runs", tmp_path / "out")
    (script,) = (tmp_path / "out" / "samples").glob("*/0.js")
    script.unlink()
    at = browse(uri)
    at.locator("#table button[data-cell]").click()
    at.wait_for_selector("#samples .words:has-text('/0.js')")
    browse.expect_failed_loads("ERR_FILE_NOT_FOUND")


def test_it_can_be_served_too(browse, report):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path == "/favicon.ico":  # which browsers request by themselves
                self.send_response(204)
                self.end_headers()
            else:
                super().do_GET()

    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=path_of(report).parent)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = browse(f"http://127.0.0.1:{server.server_port}/report.html")
        at.locator("#table button[data-cell]").first.click()
        at.wait_for_selector("#samples details[open] pre")
        assert at.locator("#samples details[open] pre").count() > 0
        server.shutdown()


def test_the_folder_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MOST_SAMPLES", 2 * page.PAGE * 4 * 2)
    long = [["x" * 5000] * 4] * 45
    for alpha in (0.0, 8.0):
        write_run(tmp_path / "runs", spec(3, alpha=alpha), [[True] * 4] * 45, texts=long)
        write_run(tmp_path / "runs", spec(1, alpha=alpha), [[False] * 4] * 45, texts=long)
    made(tmp_path / "runs", tmp_path / "out")
    scripts = sorted((tmp_path / "out" / "samples").glob("*/*.js"))
    assert [path.name for path in scripts] == ["0.js", "1.js"] * 2, "of 45 problems the first 20"
    text = scripts[0].read_text()
    assert text.count("x" * page.MOST_CHARACTERS) == page.PAGE * 4
    assert "x" * (page.MOST_CHARACTERS + 1) not in text
    assert (text.count(",false]"), text.count(",true]")) == (page.PAGE * 4, 0), (
        "the samples are those of the lowest seed"
    )
    assert "the first 20 of 45 problems" in (tmp_path / "out" / "report.html").read_text()


def test_a_new_report_takes_the_old_samples_away_and_nothing_else(tmp_path):
    write_run(tmp_path / "runs", spec(), [[True] * 4])
    made(tmp_path / "runs", tmp_path / "out")
    (old,) = (tmp_path / "out" / "samples").iterdir()
    (tmp_path / "out" / "samples" / "mine").mkdir()
    (tmp_path / "out" / "samples" / "mine" / "0.js").write_text("")
    write_run(tmp_path / "more", spec(alpha=4.0), [[True] * 4])
    made(tmp_path / "more", tmp_path / "out")
    names = {path.name for path in (tmp_path / "out" / "samples").iterdir()}
    assert "mine" in names
    assert old.name not in names
    assert len(names) == 2
    for path in (tmp_path / "out" / "samples").glob("*/*.js"):
        path.unlink()
    for path in (tmp_path / "out" / "samples").iterdir():
        path.rmdir()
    (tmp_path / "out" / "samples").rmdir()
    (tmp_path / "out" / "samples").write_text("a file")
    with pytest.raises(ValueError, match=r"cannot write .*samples"):
        made(tmp_path / "more", tmp_path / "out")

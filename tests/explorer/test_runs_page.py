"""The page of stored runs in a real browser."""


def test_the_runs_page(site, browse, store):
    page = browse(f"{site.url}/runs", width=390)
    page.wait_for_selector("#table tbody tr")
    assert page.locator("#table tbody tr").count() == 5
    assert "<script>" not in page.inner_html("#table")
    page.wait_for_selector(".curve svg")
    assert page.locator(".curve .chart .line").count() >= 2
    page.fill("#filter", "countdown odd 8")
    page.check("#complete")
    assert page.locator("#table tbody tr").count() == 1
    page.click("#table button")
    page.click("#problems button >> nth=0")
    page.wait_for_selector("#samples .answer")
    assert "in 4 samples" in page.inner_text("#samples")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    again = browse(page.url, dark=True)
    again.wait_for_selector("#samples .answer")
    assert again.inner_text("#samples") == page.inner_text("#samples")
    again.uncheck("#complete")
    again.fill("#filter", "none toy 0.5")
    assert "odd (enough 0.5) + fork" in again.inner_text("#table tbody tr >> nth=0")
    again.click("#table button >> nth=0")
    again.click("#problems button >> nth=0")
    again.wait_for_selector(".asked >> text='<b>t5</b> t6'")
    assert again.locator(".asked b").count() == 0


def test_curves_tell_their_points(site, browse):
    page = browse(f"{site.url}/runs")
    page.locator(".curve .chart .series").first.focus()
    assert page.inner_text("#tip").startswith("plain T1\nPass@4 ")
    page.keyboard.press("ArrowLeft")
    assert "Pass@3 " in page.inner_text("#tip")
    assert (
        page.locator(".curve .series .band").count()
        == page.locator(".curve .chart .series").count()
        == 2
    )


def test_a_late_answer_is_not_shown_for_what_was_picked_since(site, browse):
    """The answer about the first run, and then about the first problem, is held back until the
    second has come.
    """
    page = browse(f"{site.url}/runs")
    held = []
    first = lambda route: route.continue_() if held else held.append(route)  # noqa: E731
    page.fill("#filter", "countdown odd")
    for part, other in (("problems", "#table button"), ("samples", "#problems button")):
        page.route(f"**/{part}?*", first)
        page.click(f"{other} >> nth=0")
        wanted = page.inner_text(f"{other} >> nth=1").split("\n")[0]
        page.click(f"{other} >> nth=1")
        page.wait_for_selector(f"#{part} h2:has-text('{wanted}')")
        with page.expect_response(f"**/{part}?*"):
            held.pop().continue_()
        page.unroute(f"**/{part}?*", first)
        page.evaluate("new Promise((done) => setTimeout(done, 50))")
        assert wanted in page.inner_text(f"#{part} h2")


def test_the_runs_page_without_a_store(served, browse):
    page = browse(f"{served.url}/runs")
    page.wait_for_selector("#notice.notice")
    assert "oddlm serve --store DIR" in page.inner_text("#notice")
    browse.expect_failed_loads("404")

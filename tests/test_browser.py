"""The browser of the tests sees what a page does wrong."""


def test_it_hears_complaints_and_sees_requests(browse, tmp_path):
    (tmp_path / "page.html").write_text(
        "<img src='http://nowhere.invalid/x.png'><script>missing()</script><p>here"
    )
    page = browse((tmp_path / "page.html").as_uri(), width=390, dark=True)
    page.wait_for_load_state()
    assert page.inner_text("p") == "here"
    assert page.evaluate("[innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]") == [
        390,
        True,
    ]
    assert browse.left_the_host == ["http://nowhere.invalid/x.png"]
    assert any("missing is not defined" in said for said in browse.complaints)
    assert any("ERR_NAME_NOT_RESOLVED" in said for said in browse.complaints)
    browse.complaints.clear()
    browse.requests.clear()

"""Presets: what a request gets, and what the explorer's form makes of them."""

import json

import httpx
import pytest

from oddlm.presets import ABOUT, ALPHA, PRESETS
from oddlm.serve.api import create_app
from oddlm.serve.errors import ApiError
from oddlm.serve.request import sample_params
from oddlm.serve.settings import ServeSettings

from ..explorer.looking import HOSTILE, LINK, finished, notice, opening, texts, until, upload
from ..waiting import WAIT_S
from .conftest import limits, running

ASK = {"model": "toy", "prompt": "t5 t6", "n": 4, "max_tokens": 12, "seed": 3}
ODD = {"name": "odd", "enough": 0.5}
SPELLED = '{"enough":0.5,"name":"odd"}'  # the value of its entry in the form's menu


@pytest.fixture(scope="module")
def bare(mini_lm):
    """An operator who decides nothing."""
    with running(mini_lm, model="mini") as server:
        yield server


def started(url: str, **body) -> dict:
    """The settings that a request runs with; fails unless it ends well."""
    answer = httpx.post(f"{url}/v1/denoise", json=ASK | body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert "\nevent: end\n" in answer.text
    return json.loads(answer.text.split("data: ", 1)[1].split("\n", 1)[0])["params"]


@pytest.mark.parametrize(
    ("body", "objective", "alpha", "fork"),
    [
        ({}, ODD, ALPHA, True),
        ({"preset": "auto"}, ODD, ALPHA, True),
        ({"preset": "auto", "alpha": 16}, ODD, 16, True),
        ({"preset": "auto", "fork": False}, ODD, ALPHA, False),
        ({"fork": False}, ODD, ALPHA, False),
        ({"preset": "careful"}, "odd", 2, True),
        ({"preset": "careful", "alpha": 8, "objective": "dpp"}, "dpp", 8, True),
        ({"preset": "careful", "fork": False}, "odd", 2, False),
        ({"preset": "paper"}, "odd", 8, False),
        ({"objective": "odd"}, "odd", ALPHA, True),
        ({"objective": "odd", "fork": False}, "odd", ALPHA, False),
        ({"objective": "odd", "fork": "auto", "steps": 1}, "odd", ALPHA, False),
        ({"alpha": 0}, ODD, 0, False),
        ({"preset": "auto", "alpha": 0}, ODD, 0, False),
        ({"objective": "none"}, "none", ALPHA, False),
        ({"steps": 1}, ODD, ALPHA, False),
        ({"steps": 1, "preset": "careful"}, "odd", 2, False),
        ({"steps": 3, "block_length": 4}, ODD, ALPHA, False),
        ({"steps": 6, "block_length": 4}, ODD, ALPHA, True),
    ],
    ids=repr,
)
def test_what_a_request_gets(served, body, objective, alpha, fork):
    found = started(served.url, **body)
    assert (found["objective"], found["alpha"], found["fork"]) == (objective, alpha, fork)


def test_a_fork_that_is_asked_for_needs_its_steps(served):
    for body, least in (
        ({"steps": 1}, 2),
        ({"steps": 3, "block_length": 4}, 6),
        ({"steps": 1, "preset": "auto"}, 2),
    ):
        answer = httpx.post(
            f"{served.url}/v1/completions", json=ASK | body | {"fork": True}, timeout=WAIT_S
        )
        assert answer.status_code == 400
        assert (
            f"fork spends step 0 on one token per sample: it needs steps >= {least}"
            in answer.json()["error"]["message"]
        )


@pytest.mark.parametrize(
    ("operator", "request_", "objective", "alpha", "fork"),
    [
        ({"preset": "careful"}, {}, "odd", 2, True),
        ({"preset": "careful"}, {"steps": 1}, "odd", 2, False),
        ({"preset": "careful"}, {"alpha": 0}, "odd", 0, False),
        ({"preset": "careful"}, {"preset": "auto"}, ODD, ALPHA, True),
        ({"objective": "dpp", "alpha": 16}, {}, "dpp", 16, True),
        ({"preset": "paper"}, {}, "odd", 8, False),
        ({"fork": False}, {"fork": "auto"}, ODD, ALPHA, True),
        ({"alpha": 16}, {}, ODD, 16, True),
        ({"fork": False}, {}, ODD, ALPHA, False),
        ({"fork": True}, {"fork": False}, ODD, ALPHA, False),
        ({"length": 1}, {}, ODD, ALPHA, True),  # one token is one step: the fork's
        ({"steps": 1}, {}, ODD, ALPHA, False),
    ],
    ids=repr,
)
def test_what_an_operator_decides_holds_until_a_request_says_otherwise(
    operator, request_, objective, alpha, fork
):
    params = sample_params(ServeSettings(model="toy", given=operator), request_)
    assert (params.objective, params.alpha, params.forks) == (objective, alpha, fork)


def test_an_operator_s_fork_is_not_given_up_silently():
    with pytest.raises(ApiError, match="fork spends step 0"):
        sample_params(ServeSettings(model="toy", given={"fork": True}), {"steps": 1})


def test_a_limit_on_steps_does_not_break_the_default(toy_lm):
    create_app(toy_lm, ServeSettings(model="toy", limits=limits(max_length=1, max_steps=1)))


def test_the_card_says_what_presets_stand_for(toy_lm, served):
    card = httpx.get(f"{served.url}/v1/models/toy", timeout=WAIT_S).json()
    assert card["presets"] == {
        name: {"about": ABOUT[name], "settings": settings} for name, settings in PRESETS.items()
    }
    assert card["given"] == {}
    assert (card["defaults"]["objective"], card["defaults"]["alpha"], card["defaults"]["fork"]) == (
        ODD,
        ALPHA,
        "auto",
    )
    with running(toy_lm, given={"preset": "careful", "length": 8}) as server:
        card = httpx.get(f"{server.url}/v1/models/toy", timeout=WAIT_S).json()
    assert card["given"] == {**PRESETS["careful"], "length": 8}


def asked(page) -> list[dict]:
    """What the page will have sent to be denoised, the plain run first."""
    found: list[dict] = []

    def note(request):
        if request.url.endswith("/v1/denoise"):
            found.append(request.post_data_json)
            found.sort(key=lambda body: body["alpha"])

    page.on("request", note)
    return found


def form(page) -> tuple[str, str, str]:
    return tuple(page.input_value(f"#set-{name}") for name in ("objective", "alpha", "fork"))


def generate(page, **settings: str) -> None:
    for name, value in ({"n": "2", "length": "8", "steps": "4"} | settings).items():
        page.locator(f"#set-{name}").fill(value)
    page.click("button.main")
    finished(page)


def test_rows_never_stand_empty(bare, browse):
    page = browse(bare.url)
    page.wait_for_selector("button.main")
    page.evaluate("""() => {
        window.empty = [];
        const rows = () => [...document.querySelectorAll('#diverse .tokens')];
        const look = () => window.empty.push(rows().filter((row) => !row.firstChild).length);
        const place = document.querySelector('#diverse .samples');
        new MutationObserver(look).observe(place, { childList: true });
    }""")
    generate(page)
    empty = page.evaluate("window.empty")
    assert len(empty) >= 2  # when it began and when it had ended
    assert set(empty) == {0}


def test_the_form_begins_with_the_default_preset(bare, browse):
    page = browse(bare.url)
    page.wait_for_selector("button.main")
    sent = asked(page)
    assert form(page) == (SPELLED, "16", "auto")
    assert page.input_value("#set-preset") == "auto"
    assert page.is_visible("#preset-hint")
    generate(page)
    plain, diverse = sent
    assert (diverse["objective"], diverse["alpha"]) == (ODD, ALPHA)
    assert diverse["alpha_end"] == 0.25
    assert not {"fork", "preset"} & set(diverse)
    assert plain == diverse | {"alpha": 0, "fork": False}
    assert ": odd (enough 0.5), alpha 16 in the first 25 % of the steps." in page.inner_text(
        "#diverse"
    )
    assert page.locator("#diverse .samples .forked").count() == 2
    assert page.locator("#plain .samples .forked").count() == 0
    page.hover("#diverse .samples .forked >> nth=1")
    assert "The fork starts this sample here" in page.inner_text("#details")
    assert page.locator("#details .plainly").count() == 1
    page.select_option("#set-objective", "dpp")
    assert page.input_value("#set-preset") == ""
    assert page.is_hidden("#preset-hint")
    page.locator("#set-alpha").fill("16")
    generate(page)
    assert (sent[-1]["objective"], sent[-1]["alpha"], "fork" in sent[-1]) == ("dpp", 16, False)
    assert page.is_visible("#fork-legend")


def test_a_preset_of_the_form_sets_the_push(bare, browse):
    page = browse(bare.url)
    page.wait_for_selector("button.main")
    sent = asked(page)
    for name, expected in (("paper", ("odd", "8", "no")), ("careful", ("odd", "2", "auto"))):
        page.select_option("#set-preset", name)
        assert form(page) == expected
        assert page.input_value("#set-preset") == name
        generate(page)
        assert sent[-1]["arithmetic"] == PRESETS[name]["arithmetic"]
        assert sent[-1]["alpha"] == PRESETS[name]["alpha"]
        sent.clear()
    page.select_option("#set-preset", "auto")
    assert form(page) == (SPELLED, "16", "auto")


def test_the_fork_of_the_form(bare, browse):
    page = browse(bare.url)
    page.wait_for_selector("button.main")
    sent = asked(page)
    page.click("summary")
    page.select_option("#set-fork", "no")
    generate(page)
    assert [body["fork"] for body in sent] == [False, False]
    assert page.locator("#diverse .forked").count() == 0
    sent.clear()
    page.select_option("#set-objective", "odd")
    page.select_option("#set-fork", "yes")
    generate(page)
    assert [body["fork"] for body in sent] == [False, True]
    shown = texts(page, "diverse")
    until(page, "location.hash.includes('fork=yes')")
    again = browse(page.url)
    until(again, "document.getElementById('step').textContent === 'step 4 of 4'")
    finished(again)
    assert form(again) == ("odd", "16", "yes")
    assert texts(again, "diverse") == shown
    generate(again, steps="1")
    notice(again, "fork spends step 0 on one token per sample: it needs steps >= 2, not 1")
    browse.expect_failed_loads("400")
    again.click("summary")
    again.select_option("#set-fork", "auto")
    generate(again, steps="1")
    assert again.inner_text("#notice") == ""
    again.select_option("#set-preset", "auto")
    generate(again, steps="1")
    assert again.inner_text("#notice") == ""
    assert again.locator("#diverse .forked").count() == 0


def test_a_link_means_the_same_wherever_it_is_opened(bare, browse):
    """Links of before know no fork, nor what the form says of other things."""
    page = browse(bare.url)
    page.wait_for_selector("button.main")
    page.click("summary")
    page.select_option("#set-fork", "yes")
    page.fill("#set-block_length", "8")
    sent = asked(page)
    page.evaluate("link => { location.hash = link; }", LINK)
    until(page, "document.getElementById('question').textContent.startsWith('4,9,68')")
    finished(page)
    assert form(page) == ("odd", "8", "auto")
    assert (sent[-1]["objective"], sent[-1]["alpha"]) == ("odd", 8)
    assert not {"fork", "block_length"} & set(sent[-1])
    assert ": odd, alpha 8." in page.inner_text("#diverse")


def test_an_objective_with_options_is_shown_sent_and_linked(mini_lm, bare, browse):
    mine = {"name": "odd", "enough": 0.6}
    with running(
        mini_lm, model="mini", given={"objective": mine, "alpha": 2, "fork": False}
    ) as server:
        page = browse(server.url)
        page.wait_for_selector("button.main")
        sent = asked(page)
        assert form(page)[1:] == ("2", "no")
        assert page.locator("#set-objective option:checked").inner_text() == "odd (enough 0.6)"
        assert page.is_hidden("#preset-hint")
        generate(page)
        assert (sent[-1]["objective"], sent[-1]["alpha"], sent[-1]["fork"]) == (mine, 2, False)
        assert "odd (enough 0.6), alpha 2." in page.inner_text("#diverse")
        until(page, "location.hash.includes('enough') && location.hash.includes('step=4')")
        link = page.url.split("#")[1]
    again = browse(f"{bare.url}#{link}")
    until(again, "document.getElementById('step').textContent === 'step 4 of 4'")
    finished(again)
    assert again.locator("#set-objective option:checked").inner_text() == "odd (enough 0.6)"
    assert texts(again, "diverse") == texts(page, "diverse")
    for wrong in ("{", '{"name":["odd"]}', '{"name":"x","y":1}', "none"):
        again = browse(f"{bare.url}{LINK.replace('objective=odd', f'objective={wrong}')}")
        finished(again)
        notice(again, f"objective={wrong}")
        assert again.input_value("#set-objective") == "dpp", "the first of the menu"


def test_a_recording_s_objective_is_read_out_and_taken_over(bare, browse):
    recording = opening(0)
    params = recording["diverse"]["start"]["params"]
    page = browse(bare.url)
    page.wait_for_selector("button.main")
    trials = (
        (
            {"enough": 0.5, "name": "odd"},
            True,
            "odd (enough 0.5), alpha 16 in",
            (SPELLED, "16", "auto"),
        ),
        (
            {"name": "odd", "enough": 0.5},
            False,
            "odd (enough 0.5), alpha 16 in",
            (SPELLED, "16", "no"),
        ),
        (
            {"name": "dpp", "jitter": 0.01},
            True,
            "dpp (jitter 0.01), alpha 16 in",
            ('{"jitter":0.01,"name":"dpp"}', "16", "yes"),
        ),
        ({"name": "odd"}, False, "odd, alpha 16 in", ("odd", "16", "no")),
        ({"name": HOSTILE, "x": [HOSTILE]}, False, "alpha 16 in", ("dpp", "16", "no")),
    )
    for number, (objective, fork, words, expected) in enumerate(trials):
        params |= {"objective": objective, "fork": fork}
        recording["title"] = f"trial {number}"
        upload(page, json.dumps(recording))
        until(
            page, "title => document.querySelector('h1').textContent === title", recording["title"]
        )
        assert words in page.inner_text("#diverse")
        assert form(page) == expected
    assert page.locator("main img, main script").count() == 0
    assert page.title() != "run"

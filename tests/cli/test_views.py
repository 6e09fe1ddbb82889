"""Tables and samples fit the terminal's width, and no text can steer the terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import oddlm
from oddlm.cli import views
from oddlm.config import checked
from oddlm.params import SampleParams
from oddlm.report.compare import compare
from oddlm.store import Head
from oddlm.store.query import Answer

from ..core.test_drafts import BOUND, Drafter
from ..report.test_compare import run
from ..store.test_store import SUMMARY, record

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202e right \ud800 [bold]not markup[/bold] \r\x08 "
    "tab\tnew\nline"
)


def shown(renderable, width: int, **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(renderable)
    return console.file.getvalue()


def fits(text: str, width: int) -> bool:
    return all(cell_len(line) <= width for line in text.splitlines())


@given(st.text(st.characters(), max_size=50))
def test_no_text_steers_the_terminal(text):
    seen = views.visible(text)
    assert len(seen) == len(text)
    assert all(c.isprintable() or c in "\n\t" or c.isspace() for c in seen)
    assert "\x1b" not in seen
    seen.encode()


@pytest.mark.parametrize("width", [80, 160])
def test_hostile_samples_are_shown_as_text(width, tmp_path):
    hostile = record("p\x1b[31m", HOSTILE, prompt=HOSTILE)
    spec, _ = run([[True, False]], alpha=8)
    stored = Head(tmp_path / spec.id, spec, 1, 1, 1, SUMMARY, ({"host\x1b[31m": HOSTILE},))
    for thing in (
        views.side_by_side([("odd", hostile)], width),
        views.answer_table(Answer((HOSTILE, "b"), ((HOSTILE, None),))),
        views.run_details(stored),
    ):
        text = shown(thing, width)
        assert "\x1b" not in text
        assert "\x07" not in text
        assert fits(text, width)
    assert "[bold]not" in shown(views.side_by_side([("odd", hostile)], width), width)


@pytest.mark.parametrize(("width", "tables"), [(80, 3), (160, 2)])
def test_samples_side_by_side_with_duplicates_marked(width, tables):
    same = record("a")
    samples = (same.samples[0], same.samples[1], same.samples[0].model_copy(update={"index": 2}))
    columns = [(f"setting {i}", same.model_copy(update={"samples": samples})) for i in range(5)]
    text = shown(views.side_by_side(columns, width), width)
    assert fits(text, width)
    assert text.count("┏") == tables
    assert text.count("✗ = 0") == 5
    assert text.count("✓ t1 1") == 5
    for name, _ in columns:
        assert name in text


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_of_results(width):
    done = [
        run([[True, False]] * 4, seed=s, alpha=a, temperature=t, objective=o)
        for t in (0, 0.5)
        for o, a in (("none", 0), ("odd", 8), ("odd_sequential", 16))
        for s in (0, 1)
    ]
    text = shown(views.results(compare(done), 16, ["distinct"]), width)
    assert fits(text, width)
    assert "…" not in text
    assert text.count("baseline") == 2
    assert text.count("+0.0 [+0.0, +0.0]") == 4
    assert text.count("100.0±0.0") == 6


def test_one_problem_has_no_interval():
    done = [run([[False, False]], alpha=0), run([[True, False]], alpha=8)]
    line = compare(done)[1]
    from dataclasses import replace

    from oddlm.metrics import Interval

    lonely = replace(line, difference=Interval(1.0, float("nan"), float("nan")))
    text = shown(views.results([lonely], 2, []), 80)
    assert "+100.0" in text
    assert "nan" not in text


@pytest.mark.parametrize("width", [80, 160])
def test_the_list_of_runs_keeps_ids_whole(width, tmp_path):
    spec, _ = run([[True, False]] * 2, alpha=8)
    long = spec.model_copy(
        update={
            "task": "some/very/long/path/to/problems.jsonl",
            "model": "somebody.package.Model",
            "seed": 1234,
        }
    )
    some = [
        Head(tmp_path / spec.id, spec, 2, 2, 2, SUMMARY, ()),
        Head(tmp_path / long.id, long, 500, 2, 2, None, ()),
    ]
    text = shown(views.runs_table(some), width)
    assert fits(text, width)
    assert spec.id in text
    assert long.id in text
    assert "2/500" in text


def test_pieces_put_together_are_the_text():
    def decode(tokens):
        return "".join({1: "Ġa", 2: "b", 3: "é"}[t] for t in tokens).replace("Ġ", " ").lstrip()

    assert views.pieces(decode, [1, 2, 1, None, 1, 3]) == ["a", "b", " a", None, "a", "é"]


@pytest.mark.parametrize(("width", "height", "n"), [(80, 24, 4), (160, 24, 16), (80, 10, 16)])
def test_the_denoising_fits_the_terminal_and_marks_what_diversity_changed(width, height, n):
    lm = oddlm.load("toy")
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor",
    )
    view = views.Denoising(lm.tokenizer.decode, lm.model.end_ids, console)
    frames = []

    def look(event):
        frames.append(shown(view.frame(), width, height=height))

    samples = lm.generate(
        "t5 t6", n, length=24, steps=12, alpha=16, temperature=0, observe=[view, look]
    )[0]
    for frame in frames:
        assert fits(frame, width)
        assert len(frame.splitlines()) < height
    assert frames[0].count(views.MASK) > frames[-1].count(views.MASK) == 1  # the legend's
    final = shown(view.final(), 1000)
    for sample in samples:
        assert sample.text in final.replace(views.CHANGED, "")
    assert final.count(views.CHANGED) > 3
    first = final.splitlines()[0]
    assert views.CHANGED not in first, "sample 0 is never pushed"


def test_plain_sampling_marks_nothing():
    lm = oddlm.load("toy")
    view = views.Denoising(lm.tokenizer.decode, lm.model.end_ids, Console(file=io.StringIO()))
    lm.generate("t5 t6", 3, length=8, alpha=0, temperature=0, observe=view)
    final = shown(view.final(), 200)
    assert final.count(views.CHANGED) == 1  # the legend's
    assert final.count("= 0") == 2


def test_a_draft_is_shown_as_far_as_it_is_accepted():
    model = Drafter()
    lm = oddlm.LM(model, model.tokenizer)
    view = views.Denoising(lm.tokenizer.decode, model.end_ids, Console(file=io.StringIO()))
    masks = []

    def watch(event):
        view(event)
        frame = view.frame().renderables[1]
        assert views.CHANGED not in str(frame)
        masks.append((str(frame).count(views.MASK), int((~event.shown[0]).sum())))

    (done,) = lm.generate("t5 t6", 1, length=8, steps=12, policy=BOUND, alpha=0, observe=watch)
    assert all(shown == hidden for shown, hidden in masks)
    assert 0 < masks[0][0] < 8
    assert masks[-1][0] == 0
    assert len(done) == 1


def test_labels():
    labels = [
        views.label(checked(SampleParams, given))
        for given in (
            {"alpha": 0},
            {"objective": "odd", "alpha": 4},
            {"objective": {"name": "odd", "quality": "none", "normalize": False}, "alpha": 4},
            {},
        )
    ]
    assert labels == [
        *("plain T0.5", "odd + fork α4 T0.5", "odd (quality none, normalize false) + fork α4 T0.5"),
        "odd (enough 0.5) + fork + alpha_end=0.25 α16 T0.5",
    ]
    nameless = checked(
        SampleParams, {"objective": {"enough": 1}, "alpha": 4}
    )  # as a store may hold it
    assert views.label(nameless) == "None (enough 1) + fork α4 T0.5"

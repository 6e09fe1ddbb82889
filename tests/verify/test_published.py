"""The table of published scores, the page made of it, and the interval around a score."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import binom

import oddlm
from oddlm.drawing import check_params
from oddlm.models import model_digest
from oddlm.tasks import find_task
from oddlm.verify.network import difference, read
from oddlm.verify.page import page
from oddlm.verify.published import Checkpoint, find_published, published
from oddlm.verify.ranges import below, score_range

ROOT = Path(__file__).parents[2]
SCORES = [(one.names[0], score) for one in published() for score in one.scores]


@pytest.fixture(scope="module")
def mini():
    return oddlm.load("mini")


@pytest.mark.parametrize(("name", "score"), SCORES, ids=[f"{n} {s.task}" for n, s in SCORES])
def test_every_score_can_be_measured_and_has_a_source(name, score):
    find_task(score.task).under(score.protocol)
    check_params(score.params)
    assert score.params.plain
    for source in filter(None, (score.source, score.settings_source)):
        assert source.startswith("https://") or (ROOT / source).is_file()


def test_every_family_is_in_the_table():
    families = {one.family for one in published()}
    assert {"LLaDA", "Dream", "SDAR", "LLaDA2", "Fast-dLLM v2", "DiffusionGemma"} <= families
    assert find_published("google/diffusiongemma-26B-A4B-it").missing
    assert find_published("nobody/nothing") is None


def test_the_page_is_made_of_the_table():
    assert (ROOT / "docs/reference/published.md").read_text() == page()


def test_the_digest_of_mini_is_that_of_the_measured_weights():
    assert find_published("mini").digest == model_digest("mini")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scores": [], "missing": None}, "mini"),
        ({"texts": [], "fingerprint": [0.5]}, "mini"),
    ],
)
def test_an_entry_without_what_it_needs_is_refused(change, said):
    content = find_published("mini").model_dump() | change
    with pytest.raises(ValueError, match=said):
        Checkpoint.model_validate(content)


@pytest.mark.parametrize("score", [0.0, 19.1, 53.6, 96.06, 100.0])
@pytest.mark.parametrize("problems", [12, 50, 200])
def test_the_range_is_the_central_binomial_interval(score, problems):
    found = score_range([score], problems)
    law = binom(problems, score / 100)
    assert (found.low, found.high) == (law.ppf(0.005), law.ppf(0.995))
    assert below(found.low, problems, score / 100) == pytest.approx(law.cdf(found.low - 1))


def test_a_range_covers_all_measurements_and_the_tolerance():
    wide = score_range([78.6, 83.0], 50, tolerance=3)
    low, high = score_range([75.6], 50), score_range([86.0], 50)
    assert (wide.low, wide.high) == (low.low, high.high)
    assert binom(50, wide.noticed).cdf(wide.low - 1) >= 0.95
    assert binom(50, wide.noticed + 0.002).cdf(wide.low - 1) < 0.95


def test_a_network_whose_positions_are_broken_does_not_read(mini):
    texts = find_published("mini").texts
    assert read(mini, texts).passed
    layout = mini.model.network.layout

    def still(*arguments, **options):  # every token stands in the same place
        found = layout(*arguments, **options)
        cos, sin = (table[..., :1, :].expand_as(table) for table in (found.cos, found.sin))
        return replace(found, cos=cos, sin=sin)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mini.model.network, "layout", still)
        assert not read(mini, texts).passed


def test_a_network_that_is_read_one_place_off_does_not_read(mini):
    texts = find_published("mini").texts
    predict = mini.model.network.predict

    def shifted(*arguments, **options):
        return predict(*arguments, **options).roll(1, dims=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mini.model.network, "predict", shifted)
        off = read(mini, texts)
    assert not off.passed
    assert off.before > off.found


def test_fingerprints_of_other_texts_never_agree():
    assert difference([-1.0, -2.0], [-1.0, -2.25]) == 0.25
    assert difference([-1.0], [-1.0, -2.0]) == torch.inf

"""What features see: the order of tokens, what tokens mean, fewer dimensions; and that autograd's
memory does not show.
"""

import gc
import itertools
import weakref

import pytest
import torch

from oddlm import Explored, diversify
from oddlm.core.noise import Purpose
from oddlm.diversity import maps
from oddlm.diversity.features import build_feature
from oddlm.kernels import analytic, reference

from ..registered import PUSHING, is_coupled
from ..tolerances import EXACT
from .test_diversify import random_case

CPU = torch.device("cpu")


def written(*answers: list[int], V: int = 20) -> torch.Tensor:
    """Answers as canvases [n, S, V]."""
    return torch.nn.functional.one_hot(torch.tensor(answers), V).double()


def features(spec, canvas, embedding=None):
    return build_feature(spec).extract(canvas, embedding)[1]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def test_ngrams_tell_apart_what_a_bag_of_words_cannot():
    canvas = written([3, 5, 7, 9], [9, 7, 5, 3], [3, 5, 7, 9])
    for bag in ("max_pool", "mean_pool"):
        there, back, _ = features(bag, canvas)
        assert torch.equal(there, back)
    for order in (2, 3):
        there, back, again = features({"name": "ngrams", "order": order}, canvas)
        assert torch.equal(there, again)
        assert cosine(there, back) < 0.3


def test_a_shifted_answer_has_nearly_the_same_ngrams():
    there, later = features(
        "ngrams", written([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0], [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0])
    )
    assert cosine(there, later) > 0.7


@pytest.mark.parametrize("order", [2, 3])
def test_the_sketch_keeps_inner_products_of_ngrams(order):
    g = torch.Generator().manual_seed(0)
    answers = torch.randint(0, 3, (6, 8), generator=g)
    sketches = features(
        {"name": "ngrams", "size": 1024, "order": order}, written(*answers.tolist())
    )

    def grams(answer: list[int]) -> torch.Tensor:
        counts = torch.zeros([4] * order).double()  # 3 is the end
        for s in range(len(answer)):
            counts[tuple([*answer, *[3] * order][s : s + order])] += 1
        return counts.flatten()

    exact = torch.stack([grams(a) for a in answers.tolist()])
    lengths = exact.norm(dim=1)
    error = (sketches @ sketches.T - exact @ exact.T) / (lengths[:, None] * lengths)
    assert error.abs().max() < 6 * 1024**-0.5


@pytest.mark.parametrize("S", [1, 2, 3])
@pytest.mark.parametrize("order", [2, 3])
def test_short_answers_have_ngrams_too(S, order):
    feature = features(
        {"name": "ngrams", "order": order}, written(*([token] * S for token in (1, 2)))
    )
    assert feature.isfinite().all()
    assert feature.norm(dim=1).min() > 0.1
    assert cosine(*feature) < 0.5


@pytest.mark.parametrize("name", ["max_pool", "positional", "ngrams"])
def test_fewer_dimensions_keep_cosines(name):
    logits, tokens, masked = random_case(0, n=6, S=8, V=400)
    canvas = reference.soft_canvas(logits * 2, tokens, masked)
    full, fewer = (
        torch.nn.functional.normalize(features(spec, canvas), dim=1)
        for spec in (name, {"name": name, "rank": 200})
    )
    assert fewer.shape == (6, 200)
    assert (full @ full.T - fewer @ fewer.T).abs().max() < 5 * 200**-0.5


def test_a_rank_above_the_features_changes_nothing():
    canvas = written([1, 2], [3, 4])
    assert torch.equal(
        features({"name": "mean_pool", "rank": 20}, canvas), features("mean_pool", canvas)
    )


def test_signs_are_fixed_fair_and_independent():
    table = maps.signs(500, 64, Purpose.SKETCH, CPU)
    assert set(table.unique().tolist()) == {-1.0, 1.0}
    assert table[0, :8].tolist() == [
        1.0,
        -1.0,
        -1.0,
        -1.0,
        -1.0,
        -1.0,
        -1.0,
        -1.0,
    ]  # those of every run and machine
    assert table.mean().abs() < 5 * (500 * 64) ** -0.5
    assert ((table.T @ table) / 500 - torch.eye(64)).abs().max() < 6 * 500**-0.5
    assert not torch.equal(table, maps.signs(500, 64, Purpose.REDUCTION, CPU))
    assert torch.equal(table[:100], maps.signs(100, 64, Purpose.SKETCH, CPU))


@pytest.mark.gpu
def test_signs_are_the_same_on_a_gpu():
    for purpose in (Purpose.SKETCH, Purpose.REDUCTION):
        here, there = (
            maps.signs(1799, 512, purpose, torch.device(device)) for device in ("cpu", "cuda")
        )
        assert torch.equal(here, there.cpu())


def test_meanings_leave_out_what_all_tokens_share():
    g = torch.Generator().manual_seed(0)
    own = torch.randn(300, 16, generator=g)
    own[1] = own[0] + 0.1 * torch.randn(16, generator=g)  # two words for one thing
    shared, frequent = 8 * torch.randn(16, generator=g), torch.randn(16, generator=g)
    embedding = own + shared + 8 * torch.rand(300, 1, generator=g) * frequent
    table = maps.meanings(embedding)
    assert cosine(embedding[2], embedding[3]) > 0.7
    pairs = [cosine(table[i], table[j]) for i, j in itertools.combinations(range(1, 40), 2)]
    assert abs(sum(pairs) / len(pairs)) < 0.05
    assert cosine(table[0], table[1]) > 0.9
    torch.testing.assert_close(table.norm(dim=1), torch.ones(300))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_tokens_keep_their_meaning(dtype):
    """Centred they are opposites, along the one direction that could be called common: without it
    rounding would be left.
    """
    embedding = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=dtype)
    way = torch.nn.functional.normalize(embedding[0] - embedding[1], dim=0)
    torch.testing.assert_close(maps.meanings(embedding), torch.stack([way, -way]))
    assert maps.meanings(embedding[:1]).isfinite().all()


@pytest.mark.parametrize("objective", PUSHING)
@pytest.mark.parametrize("duplicates", ["break", "skip"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_feature_of_rounding_alone_is_no_feature(objective, duplicates, backend):
    """Two tokens that mean the opposite, equally likely: their mean is 0 but for a rounding, which
    must not be pushed along.
    """
    logits = torch.tensor([[1.0, -1.0], [2.0, 2.0], [0.5, 3.0]]).double()[:, None]
    tokens, masked = torch.zeros(3, 1).long(), torch.ones(3, 1).bool()
    feature = {"name": "mean_pool", "space": "embedding"}

    def push(off: float) -> torch.Tensor:
        embedding = torch.tensor([[1.0, 2.0, 0.5], [-1.0, -2.0 - off, -0.5]]).double()
        options = {
            "objective": objective,
            "duplicates": duplicates,
            "feature": feature,
            "embedding": embedding,
        }
        return diversify(logits, tokens, masked, alpha=8.0, backend=backend, **options)

    exact, rounded = push(0.0), push(1e-14)
    assert torch.equal(rounded[1], logits[1])
    torch.testing.assert_close(rounded, exact, rtol=0, atol=1e-5)


def test_meanings_are_made_once_and_go_with_their_embedding():
    embedding = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    table = maps.meanings(embedding)
    assert maps.meanings(embedding) is table
    embedding[3] += 1.0  # training goes on
    assert not torch.equal(maps.meanings(embedding), table)
    with torch.inference_mode():
        inside = embedding.clone()
        made = maps.meanings(inside)
        assert torch.equal(made, maps.meanings(embedding))
        assert not made.is_inference()
    held = weakref.ref(made)
    del made, inside
    gc.collect()
    assert held() is None


def test_synonyms_are_alike_in_meaning_alone():
    g = torch.Generator().manual_seed(0)
    embedding = torch.randn(20, 12, generator=g).double()
    embedding[7] = embedding[6]
    canvas = written([1, 6, 2], [1, 7, 2], [1, 8, 2])
    for name in ("max_pool", "mean_pool", "positional"):
        words, meaning = (
            features(name, canvas),
            features({"name": name, "space": "semantic"}, canvas, embedding),
        )
        assert cosine(words[0], words[1]) == pytest.approx(cosine(words[0], words[2]))
        assert cosine(meaning[0], meaning[1]) == pytest.approx(1.0)
        assert cosine(meaning[0], meaning[2]) < 0.95


SPECS = ["ngrams", {"name": "mean_pool", "rank": 6}, {"name": "max_pool", "space": "semantic"}]


@pytest.mark.parametrize("objective", PUSHING)
@pytest.mark.parametrize("feature", SPECS, ids=str)
@pytest.mark.parametrize(
    ("backend", "kernel"), [("auto", analytic), ("reference", reference)], ids=["auto", "reference"]
)
def test_groups_pushed_a_few_at_a_time(objective, feature, backend, kernel, monkeypatch):
    logits, tokens, masked = random_case(3, n=12)
    embedding = torch.randn(11, 7, generator=torch.Generator().manual_seed(1)).double()
    options = {
        "objective": objective,
        "feature": feature,
        "n": 3,
        "alpha": 8.0,
        "embedding": embedding,
        "backend": backend,
    }
    remember = not is_coupled(objective)

    def run():
        explored = Explored() if remember else None
        return diversify(
            logits, tokens, masked, record=explored, **options
        ), explored and explored.rows(0, build_feature(feature).label, 4)

    whole, rows = run()
    monkeypatch.setattr(kernel, "ELEMENTS", 3 * 55 * 3)
    parts, part_rows = run()
    torch.testing.assert_close(parts, whole, rtol=EXACT, atol=EXACT)
    assert torch.equal(parts, run()[0])
    if remember:
        torch.testing.assert_close(part_rows, rows, rtol=EXACT, atol=EXACT)


def test_a_label_names_every_option():
    specs = [
        "max_pool",
        "ngrams",
        {"name": "ngrams", "size": 8},
        {"name": "ngrams", "order": 3},
        {"name": "max_pool", "rank": 8},
    ]
    specs += [{"name": "max_pool", "space": "semantic"}, {"name": "max_pool", "space": "embedding"}]
    assert len({build_feature(spec).label for spec in specs}) == len(specs)
    first = Explored()
    logits, tokens, masked = random_case(3)
    diversify(logits, tokens, masked, alpha=1.0, feature="ngrams", record=first)
    with pytest.raises(ValueError, match="history was made with feature ngrams"):
        diversify(
            logits, tokens, masked, alpha=1.0, feature={"name": "ngrams", "rank": 8}, history=first
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("feature", SPECS, ids=str)
def test_identical_samples_part_in_every_feature(feature, dtype):
    logits, tokens, masked = (
        x[:1].repeat(5, *[1] * (x.dim() - 1)) for x in random_case(3, V=40, share=1.0)
    )
    embedding = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    got = diversify(
        logits.to(dtype), tokens, masked, alpha=8.0, feature=feature, embedding=embedding
    )
    assert len({tuple(x.flatten().tolist()) for x in got}) == 5

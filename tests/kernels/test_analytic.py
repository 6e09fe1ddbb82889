"""The written-out chain rule against the autograd reference: every feature, space and objective, on
every awkward shape.
"""

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oddlm import Explored, Repulsion, diversify
from oddlm.diversity.features import FEATURES, Feature, build_feature, mark, mean_pool, ngrams
from oddlm.diversity.objectives import OBJECTIVES
from oddlm.kernels import analytic, closed_form, dispatch, reference

from .. import registered
from ..registered import CLOSED
from ..tolerances import EXACT, ILL_CONDITIONED, ORACLE, SINGLE
from .test_closed_form import SPARING, both

POOLINGS = [
    *(
        {"name": name} for name in registered.FEATURES if name not in ("max_pool", "ngrams")
    ),  # whole or large: below, smaller
    {"name": "max_pool", "rank": 7},
    {"name": "positional", "scale": 3},
    {"name": "ngrams", "size": 16},
    {"name": "ngrams", "size": 9, "order": 3},
]
SPACES = ["probs", "embedding", "semantic"]
FEATURE_SPECS = [{**pooling, "space": space} for pooling in POOLINGS for space in SPACES]
WIDE = [  # more dimensions than samples: in rounded logits the last ones would find no room
    {"name": "max_pool", "rank": 64},
    {"name": "max_pool", "space": "embedding"},
    {"name": "mean_pool", "space": "semantic"},
    {"name": "positional", "rank": 64},
    {"name": "ngrams"},
    {"name": "ngrams", "order": 3, "size": 64, "space": "semantic"},
]


def random_batch(
    seed: int, B: int, S: int, V: int, dtype=torch.float64, scale: float = 2.0, share: float = 0.7
):
    g = torch.Generator().manual_seed(seed)
    logits = (torch.randn(B, S, V, generator=g, dtype=torch.float64) * scale).to(dtype)
    return logits, torch.randint(0, V, (B, S), generator=g), torch.rand(B, S, generator=g) < share


def random_embedding(V: int, H: int = 6):
    return torch.randn(V, H, generator=torch.Generator().manual_seed(V)).double()


@st.composite
def cases(draw):
    n, S, V = (
        draw(st.integers(1, 8)),
        draw(st.sampled_from([1, 2, 3, 24])),
        draw(st.sampled_from([2, 5, 41, 401])),
    )
    groups = draw(st.integers(1, 2))
    logits, tokens, masked = random_batch(
        draw(st.integers(0, 10**6)), groups * n, S, V, share=draw(st.sampled_from([0.0, 0.6, 1.0]))
    )
    kind = draw(
        st.sampled_from(
            ["plain", "one-hot", "identical", "some identical", "ties", "few values", "-inf"]
        )
    )
    if kind == "one-hot":
        logits[:, ::2] *= 8
    elif kind == "identical":
        logits, tokens, masked = (x[:1].expand_as(x).contiguous() for x in (logits, tokens, masked))
    elif kind == "some identical":
        for x in (logits, tokens, masked):
            x[::2] = x[0].clone()
    elif kind == "ties":
        logits = logits.round()
        logits[:, 1::2] = logits[:, :1]  # equal rows own the same columns
    elif kind == "few values":
        logits = logits.sign() * (logits.abs() > 1)  # -1, 0 or 1
    elif kind == "-inf":
        logits[..., V // 2] = -math.inf
    feature = {**draw(st.sampled_from(POOLINGS)), "space": draw(st.sampled_from(SPACES))}
    feature |= {
        "top_k": draw(st.sampled_from([None, 1, 3])),
        "ignore_ids": draw(st.sampled_from([(), (0, V - 1)])),
    }
    feature["rank"] = draw(st.sampled_from([feature.get("rank"), 4]))
    options = {
        "feature": feature,
        "objective": draw(st.sampled_from([*CLOSED, *SPARING])),
        "duplicates": draw(st.sampled_from(["break", "skip"])),
        "protected": draw(st.sampled_from([(), (1,), (int(logits[0, 0].argmax()), 0)])),
        "gradient": draw(st.sampled_from(["normalized", "raw"])),
        "embedding": random_embedding(V),
    }
    return (logits, tokens, masked), options | {"n": n, "alpha": 8.0}, kind


def one_by_one(logits, tokens, masked, n, **options):
    """`both` for objectives that push one sample after another, each from the reference's memory of
    those before it: two right pushes differ by a rounding, which may break a tie in the next
    sample's way.
    """
    explored, found = None, []
    for k in range(n):
        sample = logits[k::n], tokens[k::n], masked[k::n]
        record = Explored() if explored is None else explored
        got = diversify(*sample, n=1, history=explored, backend="closed_form", **options)
        found.append(
            (
                got,
                diversify(
                    *sample, n=1, history=explored, record=record, backend="reference", **options
                ),
            )
        )
        explored = record
    return [torch.stack(samples, dim=1).flatten(0, 1) for samples in zip(*found, strict=True)]


@given(cases())
def test_equals_the_reference(case):
    batch, options, kind = case
    if options["objective"] == "dpp":
        options["gradient"] = (
            # it nearly vanishes for duplicates; normalising would magnify rounding, on both sides
            "raw"
        )
    sequential = getattr(OBJECTIVES.build(options["objective"]), "sequential", False)
    compare = one_by_one if sequential and kind in ("ties", "few values") else both
    got, expected = compare(*batch, **options)
    logits, _, masked = batch
    assert not got.isnan().any()
    assert torch.equal(got[~masked], logits[~masked])
    assert torch.equal(got.isneginf(), expected.isneginf())
    hard = kind == "one-hot" or options["objective"] == "dpp"
    difference, moved = (
        (x - expected).nan_to_num(nan=0.0) for x in (got, logits)
    )  # both -inf: no difference
    vanishing = (
        moved.norm(dim=-1).amax(dim=-1) < 1e-3 * options["alpha"]
    )  # rounding, over a floor instead of a gradient
    loose = vanishing & (options["gradient"] == "normalized") | hard
    allowed = (
        torch.where(loose, ILL_CONDITIONED, 4 * ORACLE) * options["alpha"]
    )  # features are short, alpha is single
    assert (difference.abs().amax(dim=(1, 2)) <= allowed).all()


@pytest.mark.parametrize("objective", [*CLOSED, *SPARING], ids=str)
@pytest.mark.parametrize("feature", FEATURE_SPECS, ids=str)
def test_every_feature_with_every_objective(feature, objective):
    batch = random_batch(1, 6, 5, 41)
    options = {
        "objective": objective,
        "feature": feature,
        "embedding": random_embedding(41),
        "protected": [3],
        "alpha": 8.0,
    }
    for S in (1, 5):
        got, expected = both(*(x[:, :S] for x in batch), n=3, **options)
        torch.testing.assert_close(got, expected, rtol=0, atol=8 * ORACLE)
    assert objective in SPARING or not torch.equal(got, batch[0])


@pytest.mark.parametrize("feature", FEATURE_SPECS, ids=str)
@pytest.mark.parametrize("name", registered.UNCOUPLED)
def test_history(name, feature):
    embedding = random_embedding(41)

    def run(backend):
        explored = Explored()
        options = {
            "objective": name,
            "feature": feature,
            "embedding": embedding,
            "alpha": 8.0,
            "n": 3,
            "backend": backend,
        }
        first = diversify(*random_batch(1, 6, 5, 41), record=explored, **options)
        second = diversify(*random_batch(2, 6, 5, 41), history=explored, record=explored, **options)
        return first, second, explored.rows(0, build_feature(feature).label, 2)

    for got, expected in zip(run("closed_form"), run("reference"), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=8 * ORACLE)


@pytest.mark.parametrize("objective", CLOSED)
@pytest.mark.parametrize("feature", WIDE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision(objective, feature, dtype):
    logits, tokens, masked = random_batch(3, 8, 12, 300, dtype)
    for x in (logits, tokens, masked):
        x[4] = x[2].clone()
    embedding = random_embedding(300, H=40)
    options = {
        "objective": objective,
        "feature": feature,
        "embedding": embedding,
        "alpha": 8.0,
        "protected": [1, 7],
    }
    got = diversify(logits, tokens, masked, backend="closed_form", **options)
    exact = diversify(logits.double(), tokens, masked, backend="reference", **options)
    assert got.dtype == dtype
    assert (got.double() - exact).abs().max() < 8.0 * (SINGLE + 16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("feature", [name for name in registered.FEATURES if name != "max_pool"])
def test_nearly_one_hot_rows_keep_single_precision(feature):
    logits, tokens, masked = random_batch(5, 4, 6, 50, torch.float32, scale=1.0, share=1.0)
    logits.scatter_(
        -1, tokens[..., None], 14.0
    )  # the others have about 1e-5, single precision resolves 1e-7 of the likeliest
    exact = diversify(
        logits.double(),
        tokens,
        masked,
        feature=feature,
        objective="odd",
        alpha=8.0,
        backend="reference",
    )
    got, autograd = (
        (x.double() - exact).abs().max()
        for x in both(logits, tokens, masked, feature=feature, alpha=8.0)
    )
    assert 10 * got < autograd


@pytest.mark.parametrize("feature", FEATURE_SPECS[::3], ids=str)
def test_identical_samples_part_alike_in_both(feature):
    batch = [x[:1].repeat(5, *[1] * (x.dim() - 1)) for x in random_batch(4, 1, 6, 41, share=1.0)]
    got, expected = both(*batch, feature=feature, embedding=random_embedding(41), alpha=8.0)
    torch.testing.assert_close(got, expected, rtol=0, atol=8 * ORACLE)
    assert len({tuple(x.flatten().tolist()) for x in got}) == 5


@pytest.mark.parametrize("objective", [*CLOSED, *SPARING], ids=str)
def test_groups_do_not_show(objective, monkeypatch):
    batch = random_batch(7, 12, 5, 40)
    options = {"objective": objective, "feature": "ngrams", "alpha": 8.0, "n": 3}
    whole = diversify(*batch, **options)
    monkeypatch.setattr(analytic, "ELEMENTS", 3 * 5 * 40 * 3)
    torch.testing.assert_close(diversify(*batch, **options), whole, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("feature", FEATURE_SPECS, ids=str)
def test_inputs_stay_and_inference_mode_is_no_obstacle(feature):
    logits, tokens, masked = random_batch(9, 4, 9, 30)
    embedding = random_embedding(30)
    logits[~masked] = math.nan  # undefined where committed
    held = [x.clone() for x in (logits, tokens, masked, embedding)]
    options = {"feature": feature, "alpha": 8.0}
    got = diversify(logits[:, 4:], tokens[:, 4:], masked[:, 4:], embedding=embedding, **options)
    for x, before in zip((logits, tokens, masked, embedding), held, strict=True):
        torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)
    with torch.inference_mode():
        copies = [x.clone() for x in (logits[:, 4:], tokens[:, 4:], masked[:, 4:])]
        again = diversify(*copies, embedding=embedding.clone(), **options)
    torch.testing.assert_close(got, again.clone(), rtol=EXACT, atol=EXACT, equal_nan=True)
    assert torch.equal(got.isnan().any(dim=-1), ~masked[:, 4:])


def test_no_autograd_is_used(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("autograd was used")

    monkeypatch.setattr(torch.autograd, "grad", forbidden)
    batch = random_batch(0, 3, 4, 20)
    for name in FEATURES.names:
        for objective in CLOSED:
            options = {
                "feature": {"name": name, "rank": 5, "space": "semantic"},
                "embedding": random_embedding(20),
            }
            assert not torch.equal(
                diversify(*batch, alpha=1.0, objective=objective, **options), batch[0]
            )
    with pytest.raises(AssertionError, match="autograd was used"):
        diversify(*batch, alpha=1.0, feature=own)


def own(canvas):
    """A pooling without a trace."""
    return canvas.square().sum(dim=-2)


@functools.wraps(mean_pool)
def wrapped(canvas):
    """Has the attributes of `mean_pool`, and another derivative."""
    return mean_pool(canvas).square()


@mark(trace=lambda canvas: (canvas.sum(dim=-2), lambda by: by[..., None, :]))
def marked(canvas):
    return canvas.sum(dim=-2)


@pytest.mark.parametrize("feature", [own, wrapped, marked, functools.partial(ngrams, size=8)])
def test_poolings_of_ones_own(feature):
    batch, embedding = random_batch(2, 5, 6, 41), random_embedding(41)
    for space in SPACES:
        options = {"feature": Feature(feature, space=space), "embedding": embedding, "alpha": 8.0}
        got, expected = (
            diversify(*batch, backend=backend, **options) for backend in ("auto", "reference")
        )
        torch.testing.assert_close(got, expected, rtol=0, atol=8 * ORACLE)


def test_a_pooling_without_a_trace_goes_through_autograd():
    kernels = (
        (own, reference),
        (wrapped, reference),
        (marked, analytic),
        ("mean_pool", analytic),
        ("max_pool", closed_form),
    )
    for feature, kernel in kernels:
        guide = Repulsion(feature=feature)
        chosen = dispatch.choose(torch.device("cpu"), torch.float32, forms=guide.forms)
        assert dispatch.module(chosen.push) is kernel
    with pytest.raises(ValueError, match=r"needs a feature with a trace \((.*?)\)") as refused:
        Repulsion(feature=own, backend="closed_form")
    traced = [name for name in FEATURES.names if build_feature(name).traced]
    assert f"({', '.join(traced)})" in str(refused.value)
    assert f"({', '.join(CLOSED)})" in str(refused.value)

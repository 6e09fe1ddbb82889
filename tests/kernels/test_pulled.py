"""The written-out chain rule against the autograd reference: every feature, space and objective, on every awkward shape."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oddlm import Explored, Repulsion, diversify
from oddlm.diversity.features import FEATURES, build_feature
from oddlm.kernels import choice, closed_form, pulled, reference

from ..tolerances import EXACT, ILL_CONDITIONED, ORACLE, SINGLE
from .test_closed_form import CLOSED, SPARING, both

POOLINGS = [
    {"name": "max_pool", "rank": 7},
    {"name": "mean_pool"},
    {"name": "positional"},
    {"name": "positional", "scale": 3},
    {"name": "ngrams", "size": 16},
    {"name": "ngrams", "size": 9, "order": 3},
]
SPACES = ["probs", "embedding", "semantic"]
FEATURE_SPECS = [{**pooling, "space": space} for pooling in POOLINGS for space in SPACES]


def random_batch(seed: int, B: int, S: int, V: int, dtype=torch.float64, scale: float = 2.0, share: float = 0.7):
    g = torch.Generator().manual_seed(seed)
    logits = (torch.randn(B, S, V, generator=g, dtype=torch.float64) * scale).to(dtype)
    return logits, torch.randint(0, V, (B, S), generator=g), torch.rand(B, S, generator=g) < share


def random_embedding(V: int, H: int = 6):
    return torch.randn(V, H, generator=torch.Generator().manual_seed(V)).double()


@st.composite
def cases(draw):
    n, S, V = draw(st.integers(1, 8)), draw(st.sampled_from([1, 2, 3, 24])), draw(st.sampled_from([2, 5, 41, 401]))
    groups = draw(st.integers(1, 2))
    logits, tokens, masked = random_batch(
        draw(st.integers(0, 10**6)), groups * n, S, V, share=draw(st.sampled_from([0.0, 0.6, 1.0]))
    )
    kind = draw(st.sampled_from(["plain", "one-hot", "identical", "some identical", "ties", "-inf"]))
    if kind == "one-hot":
        logits[:, ::2] *= 30
    elif kind == "identical":
        logits, tokens, masked = (x[:1].expand_as(x).contiguous() for x in (logits, tokens, masked))
    elif kind == "some identical":
        for x in (logits, tokens, masked):
            x[::2] = x[0].clone()
    elif kind == "ties":
        logits = logits.round()
        logits[:, 1::2] = logits[:, :1]  # equal rows own the same columns
    elif kind == "-inf":
        logits[..., V // 2] = -math.inf
    feature = {**draw(st.sampled_from(POOLINGS)), "space": draw(st.sampled_from(SPACES))}
    feature |= {"top_k": draw(st.sampled_from([None, 1, 3])), "ignore_ids": draw(st.sampled_from([(), (0, V - 1)]))}
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


@given(cases())
def test_equals_the_reference(case):
    batch, options, kind = case
    if options["objective"] == "dpp":
        options["gradient"] = "raw"  # it nearly vanishes for duplicates; normalising would magnify rounding, on both sides
    got, expected = both(*batch, **options)
    masked = batch[2]
    assert torch.equal(got[~masked], batch[0][~masked])
    assert torch.equal(got.isneginf(), expected.isneginf())
    hard = kind == "one-hot" or options["objective"] == "dpp"
    difference = (got - expected).nan_to_num(nan=0.0).abs()
    assert difference.max() <= (ILL_CONDITIONED if hard else ORACLE) * options["alpha"]

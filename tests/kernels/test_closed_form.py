"""The closed form against the autograd reference, on every awkward shape."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oddlm import diversify
from oddlm.diversity.objectives import OBJECTIVES, slope_of
from oddlm.kernels import closed_form
from oddlm.kernels.contract import Batch
from oddlm.kernels.directions import Duplicates

from ..registered import CLOSED
from ..tolerances import EXACT, ILL_CONDITIONED, ORACLE, SINGLE

SPARING = [
    {"name": "odd", "enough": 0.8},
    {"name": "odd_sequential", "enough": 0.5, "normalize": False},
]


def both(logits, tokens, masked, **options):
    options = {"objective": "odd", **options}
    return [
        diversify(logits, tokens, masked, backend=backend, **options)
        for backend in ("closed_form", "reference")
    ]


@st.composite
def cases(draw):
    n, S, V = (
        draw(st.integers(1, 16)),
        draw(st.integers(1, 64)),
        draw(st.sampled_from([2, 3, 4, 17, 200, 2000])),
    )
    groups = draw(st.integers(1, 2)) if n * S * V < 200_000 else 1
    g = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    logits = torch.randn(groups * n, S, V, generator=g, dtype=torch.float64) * draw(
        st.sampled_from([0.3, 2.0])
    )
    tokens = torch.randint(0, V, (groups * n, S), generator=g)
    masked = torch.rand(groups * n, S, generator=g) < draw(st.sampled_from([0.3, 0.9]))
    pattern = draw(st.sampled_from(["ragged", "all", "none", "one", "even"]))
    if pattern in ("all", "none"):
        masked = torch.full_like(masked, pattern == "all")
    elif pattern in ("one", "even"):
        masked = (
            (masked[:1] if pattern == "even" else torch.arange(S) == S // 2)
            .expand_as(masked)
            .clone()
        )
    kind = draw(st.sampled_from(["plain", "one-hot", "identical", "some identical", "-inf"]))
    if kind == "one-hot":
        logits[:, ::2] *= 30
    elif kind == "identical":
        logits, tokens, masked = (x[:1].expand_as(x).contiguous() for x in (logits, tokens, masked))
    elif kind == "some identical":
        for x in (logits, tokens, masked):
            x[::2] = x[0].clone()
    elif kind == "-inf":
        logits = logits.masked_fill(torch.rand(V, generator=g) < 0.3, -math.inf)
        logits[..., 0] = 0.0
    options = {
        "objective": draw(st.sampled_from([*CLOSED, *SPARING])),
        "duplicates": draw(st.sampled_from(["break", "skip"])),
    }
    options["feature"] = {
        "name": "max_pool",
        "top_k": draw(st.sampled_from([None, None, 1, 3, 5000])),
    }
    options["protected"] = draw(st.sampled_from([(), (1,), (int(logits[0, 0].argmax()), 0)]))
    return (logits, tokens, masked), options | {"n": n, "alpha": 8.0}, kind


@given(cases())
def test_equals_the_reference(case):
    batch, options, kind = case
    if options["objective"] == "dpp" and "identical" in kind:
        options["gradient"] = (
            "raw"  # it nearly vanishes there; normalising would magnify rounding, on both sides
        )
    closed, reference = both(*batch, **options)
    masked = batch[2]
    assert not closed.isnan().any()
    assert torch.equal(closed[~masked], batch[0][~masked])
    assert torch.equal(closed.isneginf(), reference.isneginf())
    hard = kind == "one-hot" or (options["objective"] == "dpp" and "identical" in kind)
    difference = (closed - reference).nan_to_num(nan=0.0).abs()
    assert difference.max() <= (ILL_CONDITIONED if hard else ORACLE) * options["alpha"]


@pytest.mark.parametrize("objective", [*CLOSED, *SPARING], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("duplicates", ["break", "skip"])
def test_lower_precision(objective, dtype, duplicates):
    g = torch.Generator().manual_seed(3)
    logits = (torch.randn(8, 12, 300, generator=g) * 3).to(dtype)
    logits[4] = logits[2]
    tokens, masked = (
        torch.randint(0, 300, (8, 12), generator=g),
        torch.rand(8, 12, generator=g) < 0.6,
    )
    tokens[4], masked[4] = tokens[2], masked[2]
    options = {"objective": objective, "duplicates": duplicates, "alpha": 8.0, "protected": [1, 7]}
    got = diversify(logits, tokens, masked, backend="closed_form", **options)
    exact = diversify(logits.double(), tokens, masked, backend="reference", **options)
    assert got.dtype == dtype
    assert (got.double() - exact).abs().max() < 8.0 * (SINGLE + 16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    "options",
    [
        {"normalize": False},
        {"quality": "none"},
        {"quality": "detached", "normalize": False},
        {"quality_scale": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("objective", CLOSED)
@pytest.mark.parametrize("gradient", ["normalized", "raw"])
def test_options(objective, options, gradient):
    g = torch.Generator().manual_seed(5)
    batch = (
        torch.randn(6, 5, 40, generator=g).double(),
        torch.randint(0, 40, (6, 5), generator=g),
        torch.rand(6, 5, generator=g) < 0.7,
    )
    spec = {"name": objective, **options, **({"kernel": "paper"} if objective == "dpp" else {})}
    closed, reference = both(*batch, objective=spec, gradient=gradient, alpha=8.0, protected=[3])
    torch.testing.assert_close(closed, reference, rtol=ORACLE, atol=ORACLE)


@pytest.mark.parametrize("objective", [*CLOSED, *SPARING], ids=str)
def test_tiles_do_not_show(objective, monkeypatch):
    g = torch.Generator().manual_seed(7)
    batch = (
        torch.randn(6, 5, 40, generator=g).double(),
        torch.randint(0, 40, (6, 5), generator=g),
        torch.rand(6, 5, generator=g) < 0.7,
    )
    whole = diversify(*batch, objective=objective, alpha=8.0, n=3, backend="closed_form")
    monkeypatch.setattr(closed_form, "TILE_ELEMENTS", 250)
    torch.testing.assert_close(
        diversify(*batch, objective=objective, alpha=8.0, n=3), whole, rtol=EXACT, atol=EXACT
    )


def test_more_rows_than_a_small_integer_counts():
    g = torch.Generator().manual_seed(7)
    logits, tokens = (
        torch.randn(2, 33000, 3, generator=g).double(),
        torch.zeros(2, 33000, dtype=torch.long),
    )
    closed, reference = both(logits, tokens, tokens == 0, alpha=4.0)
    torch.testing.assert_close(closed, reference, rtol=ORACLE, atol=ORACLE)


def test_a_slice_of_a_larger_array():
    g = torch.Generator().manual_seed(7)
    whole = torch.randn(4, 9, 30, generator=g)
    tokens, masked = torch.randint(0, 30, (4, 5), generator=g), torch.rand(4, 5, generator=g) < 0.7
    held = whole.clone()
    got = diversify(whole[:, 4:], tokens, masked, alpha=8.0, objective="odd", backend="closed_form")
    assert torch.equal(
        got,
        diversify(
            whole[:, 4:].clone(), tokens, masked, alpha=8.0, objective="odd", backend="closed_form"
        ),
    )
    assert torch.equal(whole, held)


def test_truncation_takes_the_lowest_column_on_ties():
    x = torch.tensor([[0.3, 0.1, 0.3, 0.1, 0.1, 0.1]])
    closed_form.truncate(x, 4)
    assert x.tolist() == torch.tensor([[0.3, 0.1, 0.3, 0.1, 0.0, 0.0]]).tolist()


@pytest.mark.parametrize(
    "spec",
    [
        "odd",
        {"name": "odd", "normalize": False},
        "dpp",
        {"name": "dpp", "kernel": "paper", "jitter": 0.1},
    ],
)
def test_a_slope_is_the_derivative_of_its_loss(spec):
    g = torch.Generator().manual_seed(11)
    features, quality = (
        torch.rand(2, 4, 9, generator=g).double(),
        torch.rand(2, 4, generator=g).double(),
    )
    features[1, 3] = features[1, 1]
    objective = OBJECTIVES.build(spec)

    def batch() -> Batch:
        noise = torch.randn(4, 2, 9, generator=torch.Generator().manual_seed(0)).double()
        leaves = features.clone().requires_grad_(), quality.clone().requires_grad_()
        return Batch(*leaves, None, Duplicates(), lambda k, size: noise[k])

    seen = batch()
    expected = torch.autograd.grad(objective(seen).sum(), (seen.features, seen.quality))
    with torch.no_grad():
        got = slope_of(objective)(batch())
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=ORACLE, atol=ORACLE)


def own(batch):
    """An objective without a slope."""
    return -batch.quality


def test_the_choice_of_kernel():
    g = torch.Generator().manual_seed(0)
    batch = (
        torch.randn(3, 4, 20, generator=g),
        torch.randint(0, 20, (3, 4), generator=g),
        torch.ones(3, 4, dtype=torch.bool),
    )
    for options in ({"objective": own}, {"arithmetic": "published"}):
        diversify(*batch, alpha=1.0, **options)
        with pytest.raises(ValueError, match="backend 'closed_form' needs a feature with a trace"):
            diversify(*batch, alpha=1.0, backend="closed_form", **options)
    with pytest.raises(
        ValueError, match="backend must be one of auto, triton, closed_form, reference, not 'cuda'"
    ):
        diversify(*batch, alpha=1.0, backend="cuda")


def test_no_autograd_is_used(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("autograd was used")

    monkeypatch.setattr(torch.autograd, "grad", forbidden)
    g = torch.Generator().manual_seed(0)
    batch = (
        torch.randn(3, 4, 20, generator=g),
        torch.randint(0, 20, (3, 4), generator=g),
        torch.ones(3, 4, dtype=torch.bool),
    )
    for objective in CLOSED:
        assert not torch.equal(diversify(*batch, alpha=1.0, objective=objective), batch[0])

"""Properties of the update that the golden numbers do not hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from oddlm import diversify
from oddlm.core.noise import Purpose
from oddlm.diversity.maps import signs

from ..registered import FEATURES, PUSHING, is_coupled
from ..tolerances import EXACT, SINGLE, SLOPE

BY_TOKEN = ("ngrams", "random_probe")  # signs and noise that know tokens by their numbers
REDUCED = [{"name": "ngrams", "order": 3, "size": 40}, {"name": "max_pool", "rank": 16}]


def random_case(
    seed: int, n: int = 4, S: int = 5, V: int = 11, share: float = 0.7
) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, S, V, generator=g, dtype=torch.float64) * 2
    return logits, torch.randint(0, V, (n, S), generator=g), torch.rand(n, S, generator=g) < share


@st.composite
def cases(draw) -> dict:
    """Logits of every awkward kind, in groups."""
    groups, n, S = draw(st.integers(1, 2)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    V = draw(st.sampled_from([2, 4, 11, 40]))
    logits, tokens, masked = random_case(
        draw(st.integers(0, 10**6)), groups * n, S, V, draw(st.sampled_from([0.0, 0.5, 1.0]))
    )
    kind = draw(
        st.sampled_from(
            ["plain", "identical", "one-hot", "ties", "-inf", "one masked", "committed rows"]
        )
    )
    if kind == "identical":
        logits, tokens, masked = (x[:1].expand_as(x).contiguous() for x in (logits, tokens, masked))
    elif kind == "one-hot":
        logits = logits * 40
    elif kind == "ties":
        logits = logits.round()
    elif kind == "-inf":
        logits = logits.masked_fill(logits < 0.5, -math.inf)
        logits[..., 1] = 0.0
    elif kind == "one masked":
        masked = torch.zeros_like(masked)
        masked[:, 0] = True
    elif kind == "committed rows":
        masked[::2] = False
    protected = draw(st.sampled_from([(), (0,), (int(logits[0, 0].argmax()), 1)]))
    options = {
        "objective": draw(st.sampled_from(PUSHING)),
        "feature": draw(st.sampled_from([*FEATURES, *REDUCED])),
    }
    options |= {
        "duplicates": draw(st.sampled_from(["break", "skip"])),
        "alpha": draw(st.sampled_from([0.5, 16.0])),
    }
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    batch = {"logits": logits.to(dtype), "tokens": tokens, "masked": masked, "n": n}
    return batch | options | {"protected": protected, "seed": 3, "kind": kind}


def run(case: dict, **changes) -> Tensor:
    case = {k: v for k, v in (case | changes).items() if k != "kind"}
    return diversify(case.pop("logits"), case.pop("tokens"), case.pop("masked"), **case)


@given(cases())
def test_every_push_is_finite_bounded_and_only_where_it_may_be(case):
    held = [case[k].clone() for k in ("logits", "tokens", "masked")]
    got = run(case)
    assert all(
        torch.equal(a, case[k]) for a, k in zip(held, ("logits", "tokens", "masked"), strict=True)
    )
    logits, masked = case["logits"], case["masked"]
    assert got.dtype == logits.dtype
    assert torch.equal(got[~masked], logits[~masked])
    assert torch.equal(got.isneginf(), logits.isneginf())
    assert not got.isnan().any()
    assert torch.equal(got[..., list(case["protected"])], logits[..., list(case["protected"])])
    push = (got - logits).nan_to_num(nan=0.0).norm(dim=-1)
    assert push.max() <= case["alpha"] * (1 + 1e-4)
    if case["objective"] != "dpp":
        assert (push.view(-1, case["n"], push.shape[1])[:, 0] == 0).all()


@given(cases())
def test_groups_do_not_see_each_other(case):
    n, groups = case["n"], len(case["logits"]) // case["n"]
    together = run(case, seed=list(range(groups)))
    for g in range(groups):
        part = {k: case[k][g * n : (g + 1) * n] for k in ("logits", "tokens", "masked")}
        torch.testing.assert_close(
            together[g * n : (g + 1) * n], run(case | part, seed=[g]), rtol=1e-4, atol=1e-4
        )


@given(cases())
def test_a_sample_does_not_depend_on_later_ones(case):
    if case["objective"] == "dpp":
        return
    one = {k: case[k][: case["n"]] for k in ("logits", "tokens", "masked")}
    whole = run(case | one)
    m = max(1, case["n"] // 2)
    part = run(case | {k: v[:m] for k, v in one.items()}, n=m)
    torch.testing.assert_close(part, whole[:m], rtol=1e-4, atol=1e-4)


@given(
    st.integers(0, 10**6),
    st.sampled_from([name for name in PUSHING if name not in BY_TOKEN]),
    st.sampled_from([name for name in FEATURES if name not in BY_TOKEN]),
)
def test_permuting_the_vocabulary_permutes_the_answer(seed, objective, feature):
    logits, tokens, masked = random_case(seed)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(seed))
    options = {"objective": objective, "feature": feature, "alpha": 8.0, "duplicates": "skip"}
    straight = diversify(logits, tokens, masked, protected=[2], **options)
    places = order.argsort()
    permuted = diversify(
        logits[..., order], places[tokens], masked, protected=[int(places[2])], **options
    )
    torch.testing.assert_close(permuted, straight[..., order], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("objective", PUSHING)
def test_identical_rows_part_under_break_and_stay_under_skip(objective):
    logits, tokens, masked = (x[:1].repeat(6, *[1] * (x.dim() - 1)) for x in random_case(0, V=50))
    skipped = diversify(logits, tokens, masked, alpha=8.0, objective=objective, duplicates="skip")
    broken, again, other, later = (
        diversify(logits, tokens, masked, alpha=8.0, objective=objective, seed=seed, step=step)
        for seed, step in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    if objective in ("odd", "odd_sequential"):
        assert torch.equal(skipped, logits)
    moved = broken if is_coupled(objective) else broken[1:]
    assert len({tuple(x.flatten().tolist()) for x in moved}) == len(moved)
    assert torch.equal(broken, again)
    assert not torch.equal(broken, other)
    assert not torch.equal(broken, later)


def test_near_duplicates_are_broken_too():
    logits, tokens, masked = random_case(0, n=1, V=50, share=1.0)
    noise = torch.randn(3, 5, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits, tokens, masked = logits + 1e-6 * noise, tokens.expand(3, 5), masked.expand(3, 5)
    broken, skipped, followed = (
        diversify(logits, tokens, masked, alpha=8.0, **rule)
        for rule in ({}, {"duplicates": "skip"}, {"duplicates": "skip", "tolerance": 1e-9})
    )
    assert (broken[1:] - logits[1:]).abs().max() > 1
    assert torch.equal(skipped, logits)
    assert (followed[1:] - logits[1:]).abs().max() > 1


@pytest.mark.parametrize("rule", ["break", "skip"])
@pytest.mark.parametrize("objective", ["odd", "odd_sequential"])
def test_more_samples_than_dimensions(objective, rule):
    """Twelve samples, four tokens: from the fifth on there is no direction left, and rounding must
    not become one.
    """
    logits, tokens, masked = random_case(1, n=12, S=3, V=4, share=1.0)
    got = diversify(logits, tokens, masked, alpha=16.0, objective=objective, duplicates=rule)
    push = (got - logits).norm(dim=-1).amax(dim=-1)
    assert (push[1:3] > 15).all()
    assert (push[4:] == 0).all()


def lengths(got: Tensor, logits: Tensor) -> Tensor:
    """[n]: how far the most moved position of each sample moved."""
    return (got - logits).norm(dim=-1).amax(dim=-1)


@pytest.mark.parametrize("backend", ["reference", "closed_form"])
@pytest.mark.parametrize("enough", [0.05, 0.4, 3.0])
def test_a_push_ends_where_a_sample_is_unlike_enough(backend, enough):
    """Sample 3 repeats sample 1; the others' residuals are written again from the definition."""
    logits, tokens, masked = random_case(5, n=5, S=4, V=30)
    for x in (logits, tokens, masked):
        x[3] = x[1].clone()
    basis, shares = [], []
    for k in range(5):
        v, _ = soft_features(
            logits[k].numpy(), tokens[k].numpy(), masked[k].numpy(), {"pool": "max_pool"}
        )
        v = v / np.linalg.norm(v)
        r = v - sum((np.dot(v, b) * b for b in basis), np.zeros_like(v))
        shares.append(max(0.0, 1 - np.linalg.norm(r) / enough))
        if np.linalg.norm(r) > 1e-3:
            basis.append(r / np.linalg.norm(r))
    full, eased = (
        diversify(
            logits,
            tokens,
            masked,
            alpha=8.0,
            objective={"name": "odd", "enough": e},
            backend=backend,
        )
        for e in (None, enough)
    )
    pushes = torch.tensor(shares)[1:4] * 8.0  # sample 4 meets a drawn direction too
    torch.testing.assert_close(lengths(eased, logits)[1:4], pushes, rtol=1e-9, atol=1e-9)
    assert lengths(eased, logits)[3] == pytest.approx(8.0)
    torch.testing.assert_close(
        eased[1:4] - logits[1:4],
        (full - logits)[1:4] * torch.tensor(shares)[1:4, None, None],
        rtol=1e-9,
        atol=1e-9,
    )
    assert enough != 0.05 or torch.equal(eased[1:3], logits[1:3])


@pytest.mark.parametrize("objective", ["odd", "odd_sequential"])
def test_without_enough_nothing_is_spared(objective):
    logits, tokens, masked = random_case(6, n=5, V=30)
    plain, none, ample = (
        diversify(logits, tokens, masked, alpha=8.0, objective={"name": objective, **option})
        for option in ({}, {"enough": None}, {"enough": 1e9})
    )
    assert torch.equal(plain, none)
    torch.testing.assert_close(ample, plain, rtol=1e-7, atol=1e-7)
    few = diversify(logits, tokens, masked, alpha=8.0, objective={"name": objective, "enough": 1.5})
    assert (lengths(few, logits)[1:] < lengths(plain, logits)[1:]).all()


def soft_features(
    x: np.ndarray, tokens: np.ndarray, masked: np.ndarray, o: dict
) -> tuple[np.ndarray, float]:
    """Feature and quality of one sample, [S, V] -> [D], written again from the definitions."""
    p = np.exp(x - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    p[~masked] = np.eye(x.shape[1])[tokens[~masked]]
    p[:, o.get("ignore_ids", [])] = 0
    if o.get("top_k"):
        for row in p:
            row[np.argsort(-row, kind="stable")[o["top_k"] :]] = 0
    quality = p[masked].max(-1).mean() if masked.any() else 0.0
    z = p @ o["embedding"] if "embedding" in o else p
    if o["pool"] == "positional":
        angle = np.arange(len(x)) * (np.pi / 2) / 64
        v = np.concatenate([np.cos(angle) @ z, np.sin(angle) @ z])
    elif o["pool"] == "ngrams":
        order, size = o.get("order", 2), o.get("size", 256)
        table = (
            signs(z.shape[1], order * size, Purpose.SKETCH, torch.device("cpu")).double().numpy()
        )
        words = [z @ table[:, i * size : (i + 1) * size] for i in range(order)]
        v = sum(
            np.prod([words[i][s + i] for i in range(order) if s + i < len(z)], axis=0)
            for s in range(len(z))
        )
        v = v / np.sqrt(size)
    else:
        v = z.max(0) if o["pool"] == "max_pool" else z.mean(0)
    if o.get("rank"):
        v = (
            v
            @ signs(len(v), o["rank"], Purpose.REDUCTION, torch.device("cpu")).double().numpy()
            / np.sqrt(o["rank"])
        )
    return v, quality


def cleaned(embedding: np.ndarray) -> np.ndarray:
    """Centred, without the leading direction (of fewer than 200), unit rows."""
    x = embedding - embedding.mean(0)
    leading = np.linalg.svd(x, full_matrices=False)[2][:1]
    x = x - x @ leading.T @ leading
    return x / np.linalg.norm(x, axis=1, keepdims=True)


OPTIONS = [
    {"pool": "max_pool"},
    {"pool": "mean_pool", "normalize": False},
    {"pool": "max_pool", "normalize": False, "quality": "none"},
    {"pool": "positional", "quality": "detached"},
    {"pool": "max_pool", "top_k": 3},
    {"pool": "mean_pool", "top_k": 4, "ignore_ids": [1, 5]},
    {"pool": "max_pool", "space": "embedding"},
    {"pool": "mean_pool", "space": "embedding", "quality_scale": 2.5},
    {"pool": "ngrams"},
    {"pool": "ngrams", "size": 7, "order": 3, "quality": "detached"},
    {"pool": "ngrams", "space": "embedding", "size": 12, "objective": "dpp"},
    {"pool": "max_pool", "rank": 5},
    {"pool": "positional", "rank": 8, "top_k": 4},
    {"pool": "ngrams", "rank": 6, "ignore_ids": [2]},
    {"pool": "mean_pool", "space": "semantic"},
    {"pool": "max_pool", "space": "semantic", "rank": 4},
    {"pool": "max_pool", "objective": "dpp", "kernel": "paper"},
    {"pool": "max_pool", "objective": "dpp", "quality_scale": 3.0, "jitter": 1e-2},
    {"pool": "positional", "objective": "dpp", "quality": "none"},
    {"pool": "mean_pool", "objective": "dpp", "quality": "detached", "normalize": False},
]


@pytest.mark.parametrize("o", OPTIONS, ids=str)
def test_the_raw_gradient_is_the_slope_of_the_loss(o):
    logits, tokens, masked = random_case(5, n=3, S=4, V=9)
    g = torch.Generator().manual_seed(1)
    embedding = torch.randn(9, 6, generator=g, dtype=torch.float64) if "space" in o else None
    objective = {
        k: o[k] for k in ("normalize", "quality", "quality_scale", "kernel", "jitter") if k in o
    }
    objective["name"] = o.get("objective", "odd")
    feature = {
        "name": o["pool"],
        **{k: o[k] for k in ("space", "top_k", "ignore_ids", "rank", "size", "order") if k in o},
    }
    got = diversify(
        logits,
        tokens,
        masked,
        alpha=1.0,
        objective=objective,
        feature=feature,
        gradient="raw",
        embedding=embedding,
    )
    slope = (logits - got).numpy()

    x0, t, m = logits.numpy(), tokens.numpy(), masked.numpy()
    settings = dict(o)
    if embedding is not None:
        settings["embedding"] = (
            cleaned(embedding.numpy()) if o["space"] == "semantic" else embedding.numpy()
        )

    def observe(x):
        v, q = (
            np.array(y)
            for y in zip(
                *(soft_features(x[k], t[k], m[k], settings) for k in range(3)), strict=True
            )
        )
        return (v / np.linalg.norm(v, axis=1, keepdims=True) if o.get("normalize", True) else v), q

    u0, q0 = observe(x0)
    basis = []
    for u in u0:
        r = u - sum((np.dot(u, b) * b for b in basis), np.zeros_like(u))
        basis.append(r / np.linalg.norm(r))
    scale = o.get("quality_scale", 1.0)

    def loss(x):
        u, q = observe(x)
        q = {"grad": q, "detached": q0, "none": np.ones(3)}[o.get("quality", "grad")]
        if objective["name"] == "odd":
            return -sum(scale * q[k] * np.dot(u[k], basis[k]) for k in (1, 2))
        pairs, e = scale * np.outer(q, q), o.get("jitter", 1e-4)
        kernel = (u @ u.T) * (pairs if o.get("kernel") == "paper" else 1 + pairs)
        return (
            np.linalg.slogdet(kernel + (1 + e) * np.eye(3))[1]
            - np.linalg.slogdet(kernel + e * np.eye(3))[1]
        )

    for index in np.ndindex(x0.shape):
        up, down = x0.copy(), x0.copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        expected = (loss(up) - loss(down)) / 2e-5 if m[index[:2]] else 0.0
        assert abs(slope[index] - expected) < SLOPE * max(1, abs(expected)), index


@pytest.mark.parametrize("objective", PUSHING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_agrees_with_float64(objective, dtype):
    logits, tokens, masked = random_case(9, n=5, S=6, V=30)
    logits = logits.to(dtype)
    exact = diversify(logits.double(), tokens, masked, alpha=8.0, objective=objective)
    got = diversify(logits, tokens, masked, alpha=8.0, objective=objective)
    assert got.dtype == dtype
    resolution = torch.finfo(dtype).eps * 16
    assert (got.double() - exact).abs().max() < 8.0 * (SINGLE + resolution)


@pytest.mark.parametrize("objective", ["odd", "odd_sequential", "dpp"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_paper_preset_runs_in_the_precision_of_the_logits(objective, dtype):
    logits, tokens, masked = random_case(9, n=5, S=6, V=30)
    got = diversify(
        logits.to(dtype), tokens, masked, alpha=8.0, objective=objective, arithmetic="published"
    )
    exact = diversify(
        logits, tokens, masked, alpha=8.0, objective=objective, duplicates="skip", tolerance=1e-6
    )
    assert got.dtype == dtype
    assert got.isfinite().all()
    if dtype == torch.float64:
        torch.testing.assert_close(got, exact, rtol=EXACT, atol=EXACT)
    else:
        assert (got.double() - exact).abs().max() < 8.0
        assert not torch.equal(got.double(), exact)


def test_rounding_noise_becomes_a_push_only_in_the_paper_preset():
    """Sixteen identical bfloat16 rows: the published arithmetic moves some of them along a rounding
    error.
    """
    logits, tokens, masked = (
        x[:1].repeat(16, *[1] * (x.dim() - 1)) for x in random_case(3, S=8, V=400, share=1.0)
    )
    logits = logits.bfloat16()
    published = diversify(
        logits, tokens, masked, alpha=8.0, objective="odd", arithmetic="published"
    )
    ours = diversify(logits, tokens, masked, objective="odd", alpha=8.0, duplicates="skip")
    assert (published - logits).abs().max() > 0.5
    assert torch.equal(ours, logits)


def test_under_inference_mode_and_no_grad():
    logits, tokens, masked = random_case(2)
    outside = diversify(logits, tokens, masked, alpha=8.0)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            inside = [x.clone() for x in (logits, tokens, masked)]
            assert torch.equal(diversify(*inside, alpha=8.0), outside)
    with torch.inference_mode():
        inside = [x.clone() for x in (logits, tokens, masked)]
        embedding = torch.randn(11, 4, generator=torch.Generator().manual_seed(0)).double()
        for objective in PUSHING:
            feature = {"name": "max_pool", "space": "embedding"}
            pushed = diversify(
                *inside, alpha=8.0, objective=objective, feature=feature, embedding=embedding
            )
            assert not torch.equal(pushed, logits)
    leaf = logits.clone().requires_grad_()
    got = diversify(leaf, tokens, masked, alpha=8.0)
    assert not got.requires_grad
    assert leaf.grad is None


def test_committed_logits_are_never_read():
    logits, tokens, masked = random_case(4)
    reference = diversify(logits, tokens, masked, alpha=8.0)
    for poison in (math.nan, math.inf, -math.inf):
        poisoned = logits.masked_fill(~masked[..., None], poison)
        assert torch.equal(
            diversify(poisoned, tokens, masked, alpha=8.0)[masked], reference[masked]
        )


@pytest.mark.parametrize("schedule", ["linear", "constant", "cosine", "paper"])
def test_alpha_schedules(toy, schedule):
    import oddlm

    forces = []
    oddlm.denoise(
        toy,
        [[5]],
        n=2,
        length=8,
        steps=8,
        guide=oddlm.Repulsion("odd", alpha=10, alpha_schedule=schedule),
        observe=lambda event: forces.append(float(event.force.max())),
    )
    expected = {
        "linear": [10 * (1 - i / 8) for i in range(8)],
        "constant": [10.0] * 8,
        "cosine": [5 * (1 + math.cos(math.pi * i / 8)) for i in range(8)],
        "paper": [10 * (1 - 1 / (8 - i)) for i in range(8)],
    }[schedule]
    assert forces == pytest.approx(expected, rel=1e-6, abs=1e-6)

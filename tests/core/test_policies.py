"""Each policy against its definition, one row at a time, in plain Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oddlm import denoise
from oddlm.core.alarm import Alarm
from oddlm.core.blocks import Blocks
from oddlm.core.policies import POLICIES
from oddlm.core.quota import select
from oddlm.core.step import Prediction, Step

PROBABILITY = st.floats(0.001, 0.999)


def a_step(open_: torch.Tensor, parallel: bool = True) -> Step:
    B = len(open_)
    zeros = torch.zeros_like(open_, dtype=torch.long)
    return Step(0, 4, zeros, Blocks(zeros[:1], 1, open_), B, 0, torch.tensor([0]), parallel)


@given(st.lists(PROBABILITY, min_size=1, max_size=12), st.data())
def test_factor_takes_the_longest_safe_prefix(confidence, data):
    factor = data.draw(st.floats(0.01, 5))
    open_ = data.draw(st.lists(st.booleans(), min_size=len(confidence), max_size=len(confidence)))
    score = POLICIES.build({"name": "factor", "factor": factor})(
        Prediction(torch.zeros(1), torch.tensor([confidence], dtype=torch.float64)),
        a_step(torch.tensor([open_])),
    )
    ranked = sorted((p for p, o in enumerate(open_) if o), key=lambda p: -confidence[p])
    taken = 0
    for m, p in enumerate(ranked, start=1):
        if (m + 1) * (1 - confidence[p]) < factor:
            taken = m
        else:
            break
    assert set(score[0].isposinf().nonzero().flatten().tolist()) == set(ranked[:taken])


@given(st.lists(st.floats(0, 3), min_size=1, max_size=12), st.floats(0, 3))
def test_entropy_bound_takes_the_longest_prefix_within_the_bound(entropy, bound):
    tensor = torch.tensor([entropy], dtype=torch.float64)
    step = a_step(torch.ones(1, len(entropy), dtype=torch.bool))
    score = POLICIES.build({"name": "entropy_bound", "bound": bound})(
        Prediction(tensor, tensor, entropy=tensor), step
    )
    ranked = sorted(range(len(entropy)), key=lambda p: entropy[p])
    expected, spent = set(), 0.0
    for p in ranked:
        if spent > bound + 1e-9:
            break
        expected.add(p)
        spent += entropy[p]
    loose = {p for p in ranked if abs(sum(sorted(entropy)[: ranked.index(p)]) - bound) < 1e-9}
    assert set(score[0].isposinf().nonzero().flatten().tolist()) ^ expected <= loose


def test_threshold_bounds(toy):
    options = {"n": 3, "length": 8, "steps": 4, "temperature": 1.0}
    everything = denoise(toy, [[5]], policy={"name": "threshold", "threshold": 0.0}, **options)
    nothing = denoise(toy, [[5]], policy={"name": "threshold", "threshold": 1.0}, **options)
    fixed = denoise(toy, [[5]], policy="low_confidence", **options)
    assert everything.nfe == 1
    assert torch.equal(nothing.tokens, fixed.tokens)
    assert torch.equal(nothing.commit_step, fixed.commit_step)


def test_parallel_policies_commit_at_least_the_quota_and_differ_by_row(toy):
    def watch(event):
        masked, left = event.step.masked.sum(dim=1), 8 - event.step.index
        assert (event.commit.sum(dim=1) >= (masked + left - 1) // left).all()

    policy = {"name": "threshold", "threshold": 0.1}
    done = denoise(
        toy, [[5], [9, 8]], n=6, length=16, steps=8, policy=policy, temperature=0.5, observe=watch
    )
    counts = {tuple(torch.bincount(row, minlength=8).tolist()) for row in done.commit_step}
    assert done.nfe < 8
    assert len(counts) > 1


def test_margin_and_entropy_are_what_they_are_called(toy):
    def watch(event):
        p = event.pushed_logits.double().softmax(dim=-1)
        top = p.topk(2).values
        want = {
            "margin": top[..., 0] - top[..., 1],
            "entropy": -(p * p.log().nan_to_num(neginf=0)).sum(dim=-1),
        }[name]
        got = getattr(event.prediction, name)
        torch.testing.assert_close(got[event.step.open], want[event.step.open])
        best = (
            (got if name == "margin" else -got)
            .masked_fill(~event.step.open, -math.inf)
            .argmax(dim=1)
        )
        assert event.commit.gather(1, best[:, None]).all()

    for name in ("margin", "entropy"):
        denoise(toy, [[5]], n=3, length=8, steps=8, temperature=1.0, policy=name, observe=watch)


def test_random_order_is_uniform_and_its_own(toy):
    done = denoise(toy, [[5]], n=600, length=4, steps=4, policy="random")
    orders = [tuple(row) for row in done.commit_step.tolist()]
    assert len(set(orders)) == 24
    assert max(orders.count(o) for o in set(orders)) < 60


@given(st.data())
def test_selection_is_the_stable_sort(data):
    L = data.draw(st.integers(1, 10))
    score = torch.tensor(
        [
            data.draw(
                st.lists(
                    st.sampled_from([-math.inf, -1.0, 0.0, 2.0, math.inf]), min_size=L, max_size=L
                )
            )
        ]
    )
    open_ = torch.tensor([data.draw(st.lists(st.booleans(), min_size=L, max_size=L))])
    quota = data.draw(st.integers(0, int(open_.sum())))
    parallel = data.draw(st.booleans())
    got = select(score, torch.tensor([quota]), a_step(open_, parallel), Alarm(patient=False))
    ranked = sorted((p for p in range(L) if open_[0, p]), key=lambda p: -score[0, p])
    expected = set(ranked[:quota]) | {p for p in ranked if parallel and score[0, p] == math.inf}
    assert set(got[0].nonzero().flatten().tolist()) == expected


def test_a_policy_that_returns_nonsense_is_named(toy):
    options = {"n": 1, "length": 4, "steps": 2}
    with pytest.raises(ValueError, match="score is NaN at sample 0, position 0"):
        denoise(
            toy, [[5]], policy=lambda prediction, step: prediction.confidence * math.nan, **options
        )
    with pytest.raises(ValueError, match=r"scores of shape \(1,\), expected \(1, 4\)"):
        denoise(toy, [[5]], policy=lambda prediction, step: prediction.confidence[:, 0], **options)

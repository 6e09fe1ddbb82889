"""A push that ends early: before the end a compressed schedule, after it plain steps."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oddlm import Repulsion, SampleParams, denoise
from oddlm.config import checked
from oddlm.core.blocks import Blocks
from oddlm.core.step import Step
from oddlm.drawing import repulsion
from oddlm.models.toy import Toy
from oddlm.spec import RunSpec

from ..registered import ALPHA_SCHEDULES
from ..tolerances import FUSED, SINGLE

SHAPE = {"n": 3, "length": 8, "steps": 8, "temperature": 0.7, "seed": 3}
PROMPTS = [[5, 6], [7]]
TOY = Toy(vocab_size=60, dtype=torch.float64)
BAD = [0, -0.5, 1.5, math.nan, math.inf]


def watched(guide, **options):
    """Return a run and its events."""
    events = []
    return denoise(TOY, PROMPTS, guide=guide, observe=events.append, **SHAPE | options), events


def a_step(index, total, masked, n=3, **more):
    tokens = torch.arange(masked.numel()).view(masked.shape) % 40
    blocks = Blocks(torch.zeros(1, masked.shape[1], dtype=torch.long), 1, masked)
    seeds = torch.tensor([3] * (len(masked) // n))
    return Step(index, total, tokens, blocks, n, 0, seeds, **more)


@pytest.mark.parametrize("end", [0.25, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("schedule", ALPHA_SCHEDULES)
def test_the_schedule_is_compressed_into_the_share(schedule, end):
    guide = Repulsion("odd", alpha=10, alpha_schedule=schedule, alpha_end=end)
    _, events = watched(guide)
    forces = [float(event.force.max()) for event in events]
    left = [max(0, 1 - i / 8 / end) for i in range(8)]
    expected = {
        "linear": left,
        "constant": [float(t > 0) for t in left],
        "cosine": [0.5 * (1 - math.cos(math.pi * t)) for t in left],
        "paper": [1 - 1 / max(1, t * round(8 * end)) for t in left],
    }
    if schedule in expected:
        assert forces == pytest.approx([10 * f for f in expected[schedule]], rel=1e-6, abs=1e-6)
    assert [force for force, t in zip(forces, left, strict=True) if t == 0 and force != 0] == []


@pytest.mark.parametrize(
    "options",
    [{}, {"block_length": 4}, {"fork": True}, {"top_k": 5}, {"policy": "threshold"}],
    ids=str,
)
def test_after_the_end_the_logits_are_the_networks_own(options):
    guide = Repulsion("odd", alpha=16, alpha_schedule="constant", alpha_end=0.5)
    _, events = watched(guide, **options)
    after = [event for event in events if event.step.index >= 4]
    assert after or options.get("policy") == "threshold"
    for event in after:
        assert event.pushed_logits is event.base_logits
        assert torch.equal(*event.logprobs)
        assert event.plain is event.chosen
    assert float(events[1].force.max()) == pytest.approx(16)


@given(
    end=st.sampled_from([0.2, 0.5, 0.75]),
    objective=st.sampled_from(["odd", "odd_sequential", "dpp"]),
    block_length=st.sampled_from([None, 2, 4]),
    seed=st.integers(0, 50),
)
def test_a_run_is_pushed_and_then_plain(end, objective, block_length, seed):
    """The oracle is a function that calls the reference at the steps before the end alone."""

    def by_hand(logits, step):
        share = step.index / step.total
        if share >= end:
            return logits
        return Repulsion(
            objective, alpha=6 * (1 - share / end), alpha_schedule="constant", backend="reference"
        )(logits, step)

    more = {"block_length": block_length, "seed": seed, "n": 2}
    expected, _ = watched(by_hand, **more)
    found, _ = watched(Repulsion(objective, alpha=6, alpha_end=end), **more)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.commit_step, expected.commit_step)


@given(
    schedule=st.sampled_from(ALPHA_SCHEDULES),
    policy=st.sampled_from(["low_confidence", "threshold"]),
    block_length=st.sampled_from([None, 4]),
)
def test_a_whole_run_is_the_same_to_the_bit(schedule, policy, block_length):
    more = {"policy": policy, "block_length": block_length}
    one, looks = watched(Repulsion(alpha=6, alpha_schedule=schedule), **more)
    other, again = watched(Repulsion(alpha=6, alpha_schedule=schedule, alpha_end=1), **more)
    assert torch.equal(one.tokens, other.tokens)
    for a, b in zip(looks, again, strict=True):
        assert torch.equal(a.pushed_logits[a.step.masked], b.pushed_logits[b.step.masked])


@pytest.mark.parametrize("backend", ["reference", "closed_form", "triton"])
@pytest.mark.parametrize("objective", ["odd", "odd_sequential", "dpp"])
def test_kernels_agree_on_samples_that_end_at_different_steps(backend, objective, monkeypatch):
    """With a parallel policy the end is a share of written positions, another for each sample."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3, 6, 41, generator=generator)
    masked = torch.arange(6) < torch.tensor([[6], [4], [3]])
    step = a_step(1, 6, masked, parallel=True)
    options = {"alpha": 8.0, "alpha_schedule": "constant", "alpha_end": 0.5}
    exact = Repulsion(objective, backend="reference", **options)(logits.double(), step)
    with np.errstate(all="ignore"):
        found = Repulsion(objective, backend=backend, **options)(logits, step)
    torch.testing.assert_close(found.double(), exact, rtol=SINGLE, atol=8 * FUSED)
    assert torch.equal(found[2], logits[2])
    assert not torch.equal(found[1], logits[1])


@pytest.mark.parametrize("backend", ["reference", "closed_form", "triton", "auto"])
def test_an_ended_step_returns_its_input(backend, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    logits = torch.randn(3, 4, 41)
    masked = torch.ones(3, 4, dtype=torch.bool)
    guide = Repulsion(alpha=8, alpha_end=0.07, backend=backend)
    assert guide(logits, a_step(7, 100, masked)) is logits  # 0.07 * 100 is not 7 in binary
    with np.errstate(all="ignore"):
        assert guide(logits, a_step(6, 100, masked)) is not logits


def test_after_the_end_no_kernel_runs(monkeypatch):
    from oddlm.kernels import closed_form

    calls, real = [], closed_form.repel
    monkeypatch.setattr(closed_form, "repel", lambda *args: calls.append(1) or real(*args))
    watched(Repulsion(alpha=8, alpha_end=0.25))
    assert len(calls) == 2


def test_samples_that_have_ended_leave_once_nothing_is_pushed():
    """Before the end of the push, a sample is needed by those that are pushed away from it."""
    model = Toy(vocab_size=12, dtype=torch.float64)
    options = {"n": 6, "length": 32, "steps": 32, "block_length": 4, "temperature": 2.0}
    options |= {"guide": Repulsion(alpha=8, alpha_end=0.25)}
    whole = denoise(model, [[5]], **options)
    short = denoise(model, [[5]], stop_at_end=True, **options)
    ends = torch.isin(whole.tokens, torch.tensor(model.end_ids))
    first = torch.where(ends.any(dim=1), ends.byte().argmax(dim=1), 31)
    last = ((first // 4 + 1) * 4).clamp(min=8)  # no sample needs another after step 8
    assert (first < 28).any()
    assert (short.evaluations <= last).all()
    upto = torch.arange(32) <= first[:, None]
    assert torch.equal(short.tokens[upto], whole.tokens[upto])


def test_a_second_batch_continues_from_the_pushed_steps():
    guide = Repulsion(alpha=16, alpha_end=0.5, remember="exact")
    whole, _ = watched(guide, n=6)
    first, _ = watched(guide)
    second, _ = watched(guide, history=first.history)
    for one, other, both in zip(first.groups(), second.groups(), whole.groups(), strict=True):
        assert torch.equal(torch.cat([one, other]), both)
    assert sorted(first.history.memory.steps) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="no step 4"):
        watched(Repulsion(alpha=16, remember="exact"), history=first.history)


@pytest.mark.parametrize("bad", [*BAD, "half"])
def test_bad_ends_are_refused(bad):
    with pytest.raises(ValueError, match="alpha_end"):
        Repulsion(alpha_end=bad)
    with pytest.raises(ValueError, match="alpha_end"):
        checked(SampleParams, {"alpha_end": bad})


def test_the_settings_reach_the_guide():
    guide = repulsion(SampleParams(alpha_end=0.25))
    assert guide is not None
    assert guide.alpha_end == 0.25


# Ids that version 0.2.0, which had no alpha_end, gave these runs.
OLD = {
    "99f2783254fc": {"alpha": 4},  # its default
    "0c2d25f16c38": {"alpha": 0},
    "f5e7832a990a": {"preset": "paper"},
    "49e5ce38f126": {"alpha": 8, "alpha_schedule": "cosine", "length": 32},
}


@pytest.mark.parametrize("known", OLD)
def test_older_runs_keep_their_ids(known):
    def run(**more):
        params = checked(SampleParams, {**OLD[known], **more})
        return RunSpec(model="toy", task="countdown", params=params, sampler_version=1)

    plain = OLD[known].get("alpha") == 0
    assert run().id == run(alpha_end=1).id == known
    assert (run(alpha_end=0.5).id == known) == plain
    assert run(alpha_end=0.5).params.alpha_end == (1.0 if plain else 0.5)

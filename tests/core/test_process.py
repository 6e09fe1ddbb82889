"""The diffusion processes: absorbing, remasking and uniform."""

from itertools import pairwise

import pytest
import torch

from oddlm import ModelInfo, Proposal, Repulsion, begin, denoise, policy
from oddlm.models.toy import Toy

SHAPE = {"n": 4, "length": 16, "temperature": 1.0, "seed": 2}
PROMPTS = [[5, 6], [7]]


@pytest.fixture(scope="module")
def toy():
    return Toy(vocab_size=60, dtype=torch.float64)


def watched(model, **options):
    events = []
    return denoise(model, PROMPTS, observe=events.append, **SHAPE | options), events


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block_length": 4},
        {"guide": Repulsion(alpha=6)},
        {"policy": {"name": "remdm", "weighted": True}},
    ],
)
@pytest.mark.parametrize("steps", [8, 16, 48])
def test_remasking_takes_tokens_back_and_ends_in_time(toy, steps, options):
    """As many positions are masked before every step as without it, and what is taken back is
    written again.
    """
    done, events = watched(
        toy, **{"steps": steps, "policy": {"name": "remdm", "eta": 0.3}, **options}
    )
    assert len(events) == steps == done.nfe
    assert (done.tokens != toy.mask_id).all()
    assert (done.commit_step >= 0).all()
    taken = torch.stack([event.decision.remask for event in events])
    assert taken.any() or (steps, options) == (8, {"block_length": 4}), (
        "two steps a block leave no time"
    )
    assert not taken[-1].any()
    for before, after in pairwise(events):
        lost = after.step.masked & ~before.step.masked
        assert torch.equal(lost, before.decision.remask)
        assert not (before.decision.remask & before.commit).any()
        assert len(set(after.step.masked.sum(dim=1).tolist())) == 1
    if "block_length" in options:
        block = torch.arange(16) // 4
        for event in events:
            current = event.step.blocks.current
            assert (
                block[event.decision.remask.nonzero()[:, 1]]
                == current[event.decision.remask.nonzero()[:, 0]]
            ).all()


def test_the_share_that_is_taken_back_is_eta(toy):
    events = watched(toy, n=200, steps=16, policy={"name": "remdm", "eta": 0.1})[1]
    rates = [float(e.decision.remask.sum() / e.step.revisable.sum()) for e in events[2:-4]]
    assert sum(rates) / len(rates) == pytest.approx(0.1, abs=0.01)
    weighted = watched(
        toy, n=200, steps=16, policy={"name": "remdm", "eta": 0.1, "weighted": True}
    )[1]
    back = torch.cat([e.step.confidence[e.decision.remask] for e in weighted])
    stay = torch.cat([e.step.confidence[e.step.revisable & ~e.decision.remask] for e in weighted])
    assert back.mean() < stay.mean()


def test_without_eta_it_is_low_confidence(toy):
    options = {"steps": 8, "n": 3, "length": 16, "temperature": 1.0}
    one = denoise(toy, PROMPTS, policy={"name": "remdm", "eta": 0.0}, **options)
    other = denoise(toy, PROMPTS, policy="low_confidence", **options)
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.commit_step, other.commit_step)


def test_a_policy_of_ones_own_takes_back_what_it_may_and_no_more(toy):
    @policy(remasks=True)
    def greedy(prediction, step):
        return Proposal(prediction.confidence.log(), torch.ones_like(step.masked))

    done, events = watched(toy, steps=16, policy=greedy, templates=[[3] + [None] * 15] * 2)
    assert (done.tokens[:, 0] == 3).all()
    assert (done.commit_step[:, 0] == -1).all()
    assert (done.commit_step[:, 1:] >= 0).all()
    for event in events:
        assert (event.decision.remask <= event.step.revisable).all()
        assert (event.decision.remask.sum(dim=1) <= event.step.target).all()


@pytest.mark.parametrize("guide", [None, Repulsion(alpha=6)], ids=["plain", "odd"])
@pytest.mark.parametrize(
    "name", ["low_confidence", "entropy_bound", {"name": "remdm", "eta": 0.3}], ids=str
)
def test_a_uniform_model_sees_random_tokens_that_are_accepted_or_renoised(name, guide):
    model = Toy(vocab_size=60, dtype=torch.float64, process="uniform")
    done, events = watched(model, steps=16, policy=name, guide=guide, suppress=(4, 7))
    assert not torch.isin(done.tokens, torch.tensor([model.mask_id, 4, 7])).any()
    assert (done.commit_step >= 0).all()
    assert not (events[0].step.tokens == model.mask_id).any()
    for before, after in pairwise(events):
        kept = ~before.step.masked & ~after.step.masked
        assert torch.equal(before.step.tokens[kept], after.step.tokens[kept])
        noise = before.step.masked & after.step.masked
        assert (
            not noise.any()
            or (before.step.tokens[noise] != after.step.tokens[noise]).double().mean() > 0.5
        )
        assert not torch.isin(after.step.tokens[noise], torch.tensor([model.mask_id, 4, 7])).any()


def test_noise_is_uniform_and_a_samples_own():
    model = Toy(vocab_size=60, process="uniform")
    state = begin(model, [[5]], n=400, length=64, steps=64, suppress=(4,))
    counts = state.tokens.flatten().bincount(minlength=60)
    assert counts[4] == counts[model.mask_id] == 0
    allowed = counts[[i for i in range(60) if i not in (4, model.mask_id)]].double()
    assert ((allowed - allowed.mean()) / allowed.mean().sqrt()).abs().max() < 5
    alone = begin(model, [[5]], n=1, length=64, steps=64, suppress=(4,))
    assert torch.equal(alone.tokens[0], state.tokens[0])


def test_an_absorbing_model_has_a_mask():
    with pytest.raises(ValueError, match="mask_id"):
        begin(ModelInfo(20, None), [[5]], n=1, length=4, steps=4)
    assert (
        begin(ModelInfo(20, None, process="uniform"), [[5]], n=1, length=4, steps=4).query
        is not None
    )

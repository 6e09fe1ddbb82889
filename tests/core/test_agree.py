"""Parallel policies under a guide: a push makes nothing certain that is not certain without it."""

import pytest
import torch

import oddlm
from oddlm.core.agree import agreed
from oddlm.core.policies import POLICIES
from oddlm.core.step import Prediction, Proposal

SHAPE = {"n": 6, "length": 16, "steps": 8, "temperature": 0.5, "seed": 3}
PARALLEL = [name for name in POLICIES.names if getattr(POLICIES.find(name), "parallel", False)]
EAGER = {"threshold": 0.1, "factor": 2.0, "entropy_bound": 3.0, "joint_threshold": 0.1}


def eager(name):
    """A policy with an option that lets the toy model commit several tokens at once."""
    (option, *_) = POLICIES.options(name)
    return {"name": name, option: EAGER.get(name, 0.1)}


def quota(step):
    masked, left = step.masked.sum(dim=1), max(1, SHAPE["steps"] - step.index)
    return (masked + left - 1) // left


@pytest.mark.parametrize("name", PARALLEL)
def test_what_exceeds_the_quota_is_what_plain_sampling_would_commit_too(toy, name):
    pushed = []

    def watch(event):
        written = event.commit & event.step.masked
        plain = event.plain
        same = plain.commit & (plain.tokens == event.prediction.tokens)
        assert ((written & ~same).sum(dim=1) <= quota(event.step)).all()
        pushed.append(not torch.equal(event.base_logits, event.pushed_logits))

    guide = oddlm.Repulsion("odd", alpha=30)
    done = oddlm.denoise(
        toy, [[5], [9, 8]], policy=eager(name), guide=guide, observe=watch, **SHAPE
    )
    assert any(pushed)
    assert (done.tokens != toy.mask_id).all()


def test_a_push_that_changes_every_choice_leaves_the_quota(toy):
    def guide(logits, step):
        lifted = logits.clone()
        lifted[..., 7] += 100.0
        return lifted

    policy = {"name": "threshold", "threshold": 0.5}
    fixed = oddlm.denoise(toy, [[5]], policy="low_confidence", guide=guide, **SHAPE)
    done = oddlm.denoise(toy, [[5]], policy=policy, guide=guide, **SHAPE)
    assert torch.equal(done.commit_step, fixed.commit_step)
    assert done.nfe == SHAPE["steps"]


def test_a_push_that_changes_no_choice_changes_nothing(toy):
    policy = eager("threshold")
    plain = oddlm.denoise(toy, [[5]], policy=policy, **SHAPE)
    shifted = oddlm.denoise(toy, [[5]], policy=policy, guide=lambda x, _: x + 1.0, **SHAPE)
    assert plain.nfe < SHAPE["steps"]
    assert torch.equal(plain.tokens, shifted.tokens)
    assert torch.equal(plain.commit_step, shifted.commit_step)


def test_positions_held_back_come_before_the_others_the_most_confident_first():
    inf = torch.inf
    confidence = torch.tensor([[0.9, 0.95, 0.99, 0.3]], dtype=torch.float64)
    tokens, own = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 9, 4]])
    score = Proposal(torch.tensor([[inf, inf, inf, 5.0]]))
    plain = Proposal(torch.tensor([[inf, -2.0, inf, 5.0]]))
    got = agreed((Prediction(tokens, confidence), score), (Prediction(own, confidence), plain))
    assert got.isposinf().tolist() == [[True, False, False, False]]
    assert got[0].argsort(descending=True).tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("name", ["threshold", "factor", "entropy_bound"])
def test_late_ids_are_committed_together_once_nothing_else_is_open(name):
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    logits[2:, 1] = 20.0

    class Fixed:
        mask_id, vocab_size, end_ids = 8, 9, (1,)

        def __call__(self, tokens, start, prompt_lengths):
            return logits.expand(len(tokens), -1, -1).clone()

    shape = {"n": 1, "length": 6, "steps": 6, "temperature": 0.0}
    done = oddlm.denoise(Fixed(), [[0]], policy=name, suppress_confidence=[1], **shape)
    assert done.commit_step[0, :2].max() < 2
    assert done.commit_step[0, 2:].tolist() == [2] * 4

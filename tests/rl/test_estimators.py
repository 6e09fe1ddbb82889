"""Estimates of the likelihood: exact where they claim to be, finite and seeded for all."""

from dataclasses import replace

import pytest
import torch

from oddlm.config import checked
from oddlm.lm import LM
from oddlm.models.mini import MiniTokenizer
from oddlm.models.native import Native
from oddlm.rl.config import RlConfig
from oddlm.rl.estimators import ESTIMATORS
from oddlm.rl.losses import ADVANTAGES, LOSSES, tilted
from oddlm.rl.trainer import Objective, batch_of
from oddlm.rolling import rollouts

from .conftest import tiny

TOKENIZER = MiniTokenizer()
BASE = {"task": "countdown", "steps": 1, "learning_rate": 1e-3}


def lm_of(network) -> LM:
    model = Native(
        network,
        name="tiny",
        mask_id=TOKENIZER.mask_id,
        end_ids=(TOKENIZER.eos_id, TOKENIZER.pad_id),
        tokenizer=TOKENIZER,
    )
    return LM(model, TOKENIZER)


def drawn(network, **settings):
    lm = lm_of(network)
    settings = {"length": 8, "steps": 4, "temperature": 1.0, "alpha": 0, **settings}
    rolled = rollouts(lm, ["1,2,3", "4,50,6,70"], 3, trajectories=True, **settings)
    batch = batch_of(rolled, torch.arange(6.0), rolled.mask.float(), lm.info.mask_id)
    return rolled, batch


def objective(network, **changes) -> Objective:
    return Objective(network, checked(RlConfig, {**BASE, **changes}))


@pytest.mark.parametrize("block_length", [None, 4])
def test_a_replayed_trajectory_has_the_log_probabilities_of_the_rollout(block_length):
    network = tiny(block_length)
    rolled, batch = drawn(network)
    found = objective(network, estimator="trace").logprobs(batch, 0)
    torch.testing.assert_close(found, rolled.base_logprobs * rolled.mask, rtol=1e-4, atol=1e-5)
    joined = objective(network, estimator={"name": "trace", "join": 4}).logprobs(batch, 0)
    assert (found - joined).abs().max() > 1e-4
    with pytest.raises(ValueError, match="join"):
        objective(network, estimator={"name": "trace", "join": 0}).logprobs(batch, 0)


def test_one_masked_pass_is_the_first_step_of_a_run():
    network = tiny()
    rolled, batch = drawn(network)
    found = objective(network, estimator={"name": "d1", "prompt_mask": 0}).logprobs(batch, 0)
    first = batch.counted & (batch.commit_step == 0)
    torch.testing.assert_close(found[first], rolled.base_logprobs[first], rtol=1e-4, atol=1e-5)


def test_complementary_masks_show_every_token_hidden_once():
    _, batch = drawn(tiny())
    seen = []

    def look(prompts, answers):
        seen.append(answers == batch.mask_id)
        return torch.full(answers.shape, float(len(seen)))

    found = ESTIMATORS.find("coupled")(batch, look, torch.Generator().manual_seed(0))
    whole, first, second = seen
    assert whole.all()
    assert torch.equal(first, ~second)
    assert first.any()
    assert second.any()
    assert torch.equal(found, torch.where(first, 1.5, 2.0))


@pytest.mark.parametrize("estimator", ESTIMATORS.names)
@pytest.mark.parametrize("loss", LOSSES.names)
def test_a_step_makes_better_samples_likelier(estimator, loss):
    network = tiny()
    _, batch = drawn(network)
    batch = replace(batch, advantages=torch.tensor([1.0, -1, 1, -1, 1, -1]))
    ours = objective(network, estimator=estimator, loss=loss)
    before = ours.logprobs(batch, 1).sum(dim=1)
    ours(batch, 1, None, None).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.02 * parameter.grad / (parameter.grad.norm() + 1e-9)
    gain = ours.logprobs(batch, 1).sum(dim=1) - before
    assert (gain * batch.advantages).sum() > 0


def test_recomputing_changes_no_gradient():
    gradients = []
    for recompute in (False, True):
        network = tiny()
        _, batch = drawn(network)
        objective(network, recompute=recompute)(batch, 1, None, None).backward()
        gradients.append([p.grad for p in network.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_weights_multiply_and_zero_weights_teach_nothing():
    network = tiny()
    _, batch = drawn(network)
    ours = objective(network)
    loss = ours(batch, 1, None, None)
    torch.testing.assert_close(
        ours(replace(batch, weights=3 * batch.weights), 1, None, None), 3 * loss
    )
    assert ours(replace(batch, weights=0 * batch.weights), 1, None, None) == 0


def test_the_ratio_is_clipped_on_the_side_that_gains():
    _, batch = drawn(tiny())
    batch = replace(batch, advantages=torch.tensor([1.0, -1, 1, -1, 1, -1]))
    now = torch.full(batch.tokens.shape, 2.0).log()
    found = LOSSES.find("grpo")(now, torch.zeros_like(now), batch)
    assert found[:, 0].tolist() == pytest.approx([-1.2, 2, -1.2, 2, -1.2, 2])


def test_the_penalty_is_zero_at_the_first_weights_and_positive_elsewhere():
    network = tiny()
    _, batch = drawn(network)
    ours = objective(network, kl=1.0)
    batch = replace(batch, advantages=torch.zeros(6))
    now = ours.logprobs(batch, 1).detach()
    assert ours(batch, 1, None, now) == 0
    assert ours(batch, 1, None, now + 0.3) > 0


@pytest.mark.parametrize("name", ADVANTAGES.names)
def test_advantages_compare_with_the_group_alone(name):
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]])
    found = ADVANTAGES.find(name)(rewards)
    assert found[1].tolist() == [0, 0, 0, 0]
    assert found[0, 0] > 0 > found[0, 1] == found[0, 3]
    assert abs(found[0].sum()) < 1e-5
    halved = tilted(found, 0.5)
    assert torch.equal(halved[0, 1:], found[0, 1:] / 2)
    assert halved[0, 0] == found[0, 0]

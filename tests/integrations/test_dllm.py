"""The sampler for dLLM's trainers: what they set, pass and expect, as dLLM 0.1.0 publishes it."""

from dataclasses import dataclass

import pytest
import torch

from oddlm.integrations.dllm import DiverseSampler

from .bidirectional import EOS, MASK, PAD, network, tokenizer


@dataclass
class Config:
    """The fields of MDLMSamplerConfig that a GRPO run sets."""

    steps: int = 4
    max_new_tokens: int = 8
    block_size: int = 64
    temperature: float = 0.9
    cfg_scale: float = 0.0
    remasking: str = "low_confidence"
    return_dict: bool = False


PROMPTS = [[PAD, PAD, 5, 6]] * 3 + [[7, 8, 9, 10]] * 3
PUSH = {"alpha": 6.0, "alpha_end": 1.0}


def batch(rows=PROMPTS):
    return list(torch.tensor(rows))


def test_rows_come_back_with_completions_that_end_as_the_trainer_reads_them():
    sampler = DiverseSampler(network(), tokenizer(), **PUSH)
    found = torch.cat([sampler.sample(batch(), Config(temperature=3.0)) for _ in range(4)])
    assert found.shape == (24, 12)
    assert torch.equal(found[:, :4], torch.tensor(PROMPTS * 4))
    answers = found[:, 4:]
    assert not (answers == MASK).any()
    ended = answers == EOS
    assert ended.any(dim=1).any()
    assert not ended.all()
    after = ended.cumsum(dim=1) > 0  # the trainer counts up to the first end token
    later = after.roll(1, dims=1)
    later[:, 0] = False
    assert (answers[later] == EOS).all()
    for first in range(0, 24, 3):
        assert len({tuple(x) for x in answers[first : first + 3].tolist()}) > 1


def test_each_call_draws_anew_and_one_seed_gives_one_run():
    samplers = [DiverseSampler(network(), tokenizer(), seed=seed, **PUSH) for seed in (1, 1, 2)]
    first, again, other = (sampler.sample(batch(), Config()) for sampler in samplers)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, samplers[0].sample(batch(), Config()))


def test_the_trainer_sets_the_network():
    sampler, other = DiverseSampler(network(), tokenizer()), network(seed=1).train()
    before = sampler.lm
    sampler.model = other
    assert sampler.lm is not before
    assert sampler.lm.model.network is other
    sampler.sample(batch(), Config())
    assert other.training


def test_settings_of_the_config_hold_unless_given():
    sampler = DiverseSampler(network(), tokenizer(), temperature=0.5, alpha=0.0)
    found = sampler.sample(batch(), Config(return_dict=True, block_size=4), steps=2)
    assert len(found.histories) == 3
    assert torch.equal(found.histories[-1], found.sequences)
    first, second = (x[:, 4:] for x in found.histories[:2])
    assert (first == MASK).all()
    assert (second[:, :4] != MASK).all(), "blocks of 4"
    params = sampler._params({name: getattr(Config(block_size=4), name) for name in vars(Config())})
    assert (params.temperature, params.length, params.block_length) == (0.5, 8, 4)
    assert sampler.sample([[5, 6], [7]], Config()).shape == (2, 10)


def test_bad_input():
    sampler = DiverseSampler(network(), tokenizer())
    for rows, config, named in (
        ([[PAD, PAD]], Config(), "padding"),
        ([[5]], Config(remasking="best"), "'best'"),
        ([[5]], Config(block_size=3), "block_length 3"),
        ([[5]], Config(max_new_tokens=128), "context of 64"),
    ):
        with pytest.raises(ValueError, match=named):
            sampler.sample(rows, config)

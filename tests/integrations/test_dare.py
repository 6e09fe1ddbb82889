"""Responses for DARE: its published checks, and a replay that gives the log-probabilities again."""

import pytest
import torch

from oddlm import rollouts
from oddlm.integrations.dare import dare_responses
from oddlm.likelihood import hidden_logprobs
from oddlm.models.toy import Toy

from ..models.test_block_cache import BLOCK, ENDS, PROMPTS, model

PUSH = {"alpha": 6.0, "alpha_end": 1.0, "fork": False, "temperature": 1.0}


@pytest.mark.parametrize("options", [{}, {"policy": "threshold"}, {"steps": 6, "temperature": 2.0}])
def test_the_responses_replay_the_run(options):
    network = model()
    settings = {"length": 12, **PUSH, **options}
    rolled = rollouts(network, PROMPTS, 4, **settings)
    ended = 0
    for row, response in enumerate(dare_responses(rolled, BLOCK)):
        meta, prompt = response["meta_info"], PROMPTS[row // 4]
        tokens, local = meta["dllm_replay_token_ids"], meta["dllm_replay_step_maps"]
        stop = meta["dllm_stop_length"]
        assert meta["dllm_replay_contract_version"] == 1
        assert response["token_ids"] == tokens[:stop] == rolled.tokens[row, :stop].tolist()
        assert meta["step_maps"] == local[:stop]
        assert len(tokens) == len(local)
        assert (len(prompt) + len(tokens)) % BLOCK == 0
        assert 0 <= len(tokens) - stop < BLOCK
        assert not set(ENDS) & set(tokens[: stop - 1])
        ended += tokens[stop - 1] in ENDS
        blocks = [(len(prompt) + j) // BLOCK for j in range(len(tokens))]
        for block in set(blocks):
            steps = [s for s, b in zip(local, blocks, strict=True) if b == block]
            assert set(steps) == set(range(1, max(steps) + 1))
        expected = rolled.base_logprobs[row, : len(tokens)].double()
        found = torch.zeros_like(expected)
        answer, local, blocks = (torch.tensor([x]) for x in (tokens, local, blocks))
        for step in range(1, int(local.max()) + 1):
            logprobs = hidden_logprobs(network, [prompt], answer, local >= step)[0]
            found = torch.where(local[0] == step, logprobs, found)
        assert (found - expected).abs().max() < 1e-4
    assert ended


def test_bad_input():
    rolled = rollouts(Toy(), [[5, 6, 7]], 1, length=4, steps=4)
    with pytest.raises(ValueError, match=r"sample 0 .* block of 8"):
        dare_responses(rolled, 8)
    with pytest.raises(ValueError, match="block_length"):
        dare_responses(rolled, 0)
    given = rollouts(Toy(), [[5, 6, 7, 8]], 1, templates=[["t9", 3]])
    with pytest.raises(ValueError, match=r"sample 0 .* no step wrote"):
        dare_responses(given, 4)

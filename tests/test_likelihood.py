"""Probabilities of hidden tokens: what a run saw when it wrote them."""

import pytest
import torch

from oddlm import denoise
from oddlm.likelihood import hidden_logprobs
from oddlm.models.toy import Toy

from .models.test_block_cache import PROMPTS, SHAPES, model
from .tolerances import EXACT

BLOCK_MODELS = {f"blocks, {shape}": lambda shape=shape: model(shape) for shape in SHAPES}
MODELS = {"toy": lambda: Toy(vocab_size=60, dtype=torch.float64), **BLOCK_MODELS}


@pytest.mark.parametrize("kind", MODELS)
def test_a_hidden_token_has_the_probability_that_its_step_saw(kind):
    network = MODELS[kind]()
    seen = {}

    def watch(event):
        base, _ = event.logprobs
        for b, j in event.commit.nonzero().tolist():
            seen[b, j] = float(base[b, j])

    done = denoise(
        network,
        PROMPTS,
        n=2,
        length=8,
        steps=8,
        temperature=1.0,
        seed=3,
        block_length=None if kind == "toy" else 4,
        observe=watch,
    )
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    for step in range(int(done.commit_step.max()) + 1):
        hidden = done.commit_step >= step
        found = hidden_logprobs(network, prompts, done.tokens, hidden)
        assert (found[~hidden] == 0).all()
        for b, j in (done.commit_step == step).nonzero().tolist():
            assert found[b, j] == pytest.approx(seen[b, j], abs=1e-4)


def test_an_answer_does_not_depend_on_those_beside_it(toy):
    answers = torch.tensor([[5, 6, 7, 8], [9, 9, 4, 3]])
    hidden = torch.tensor([[True, False, True, False], [True, True, True, True]])
    prompts = [[5], [6, 7, 8]]
    together = hidden_logprobs(toy, prompts, answers, hidden)
    for i, prompt in enumerate(prompts):
        alone = hidden_logprobs(toy, [prompt], answers[i : i + 1], hidden[i : i + 1])
        assert (together[i] - alone[0]).abs().max() < EXACT


def test_bad_input(toy):
    answers = torch.full((2, 3), 5)
    uniform = Toy(process="uniform")
    with pytest.raises(ValueError, match="mask"):
        hidden_logprobs(uniform, [[5]], answers[:1], answers[:1] > 0)
    for hidden in (torch.ones(2, 4, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"\(2, 3\)"):
            hidden_logprobs(toy, [[5], [6]], answers, hidden)
    with pytest.raises(ValueError, match="1 prompts"):
        hidden_logprobs(toy, [[5]], answers, answers > 0)

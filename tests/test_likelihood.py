"""Probabilities of hidden tokens: what a run saw when it wrote them, and bounds made of them."""

from itertools import combinations, product

import pytest
import torch

from oddlm import LM, denoise, load
from oddlm.likelihood import hidden_logprobs, loglikelihood_bound
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


class Joint:
    """A network whose predictions are the conditionals of one joint distribution of 4 tokens."""

    vocab_size, mask_id, end_ids = 4, 3, ()

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.texts = torch.tensor(list(product(range(3), repeat=4)))  # [S, L]
        scores = torch.randn(len(self.texts), generator=generator, dtype=torch.float64)
        self.logprobs = scores.log_softmax(dim=0)

    def __call__(self, tokens, start, prompt_lengths):
        seen = tokens[:, None, start:]  # [B, 1, L]
        fits = ((seen == self.texts) | (seen == self.mask_id)).all(dim=2)  # [B, S]
        joint = self.logprobs.where(fits, -torch.inf)[:, :, None, None]  # [B, S, 1, 1]
        here = self.texts[..., None] == torch.arange(4)  # [S, L, V]
        return joint.where(here, -torch.inf).logsumexp(dim=1)  # [B, L, V]


def expected_bound(network, prompt, answer, block_length):
    """The mean of the bound's draws, over all sets of hidden positions of every block."""
    total, row = 0.0, torch.tensor([answer])
    for first in range(0, len(answer), block_length):
        block = range(first, min(first + block_length, len(answer)))
        for size in range(1, len(block) + 1):
            sets = list(combinations(block, size))
            hidden = torch.zeros(len(sets), len(answer), dtype=torch.bool)
            for one, places in zip(hidden, sets, strict=True):
                one[list(places)] = True
            rows = row.expand(len(sets), -1)
            found = hidden_logprobs(network, [prompt] * len(sets), rows, hidden)
            total += float(found.sum(dim=1).mean()) / size
    return total


def test_the_bound_of_consistent_predictions_is_the_exact_value():
    network = Joint()
    for text, exact in list(zip(network.texts.tolist(), network.logprobs, strict=True))[::9]:
        assert expected_bound(network, [0], text, 4) == pytest.approx(float(exact))
        found = loglikelihood_bound(network, [0], text, draws=400, seed=1)
        assert abs(found.value - float(exact)) < 4 * found.standard_error
        assert 0 < found.standard_error < 0.25
        assert (found.tokens, found.draws) == (4, 400)


@pytest.mark.parametrize("kind", MODELS)
def test_the_bound_is_estimated_without_bias(kind):
    network = MODELS[kind]()
    prompt, answer = PROMPTS[0], [7, 8, 30, 9, 11, 20]  # absolute blocks of 2 and 4 tokens
    size = network.info.block_length
    if network.info.align == "absolute":
        lead = size - len(prompt) % size
        first = expected_bound(network, prompt, answer[:lead], size)
        exact = first + expected_bound(network, prompt + answer[:lead], answer[lead:], size)
    else:
        exact = expected_bound(network, prompt, answer, size or len(answer))
    found = loglikelihood_bound(network, prompt, answer, draws=300, seed=2)
    assert abs(found.value - exact) < 4 * found.standard_error
    again = loglikelihood_bound(network, prompt, answer, draws=300, seed=2, max_batch=7)
    assert again.value == pytest.approx(found.value, abs=1e-4)
    assert loglikelihood_bound(network, prompt, answer, draws=300, seed=3).value != found.value


def test_a_single_token_has_an_exact_value(toy):
    found = loglikelihood_bound(toy, [5], [9], draws=2)
    every = torch.ones(1, 1, dtype=torch.bool)
    exact = hidden_logprobs(toy, [[5]], torch.tensor([[9]]), every)
    assert (found.value, found.standard_error) == (pytest.approx(float(exact)), 0.0)


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_answers_are_those_that_sampling_writes(kind):
    network = MODELS[kind]()
    settings = {"length": 8, "steps": 8, "temperature": 0.0, "stop_at_end": False}
    (greedy,) = denoise(
        network, PROMPTS[:1], n=1, block_length=network.info.block_length, **settings
    ).tokens.tolist()
    assert loglikelihood_bound(network, PROMPTS[0], greedy, draws=2).is_greedy
    for place in (0, 7):
        other = [*greedy]
        other[place] = 40 if greedy[place] != 40 else 41
        assert not loglikelihood_bound(network, PROMPTS[0], other, draws=2).is_greedy


def test_the_bound_of_an_lm_encodes_as_sampling_does():
    lm = load("mini")
    found = lm.loglikelihood_bound("2,87,96,9,16", "9-2=7", draws=4, seed=5)
    ids = lm.tokenizer.chat([{"role": "user", "content": "2,87,96,9,16"}])
    tokens = lm.tokenizer.encode("9-2=7")
    assert found == loglikelihood_bound(lm.model, ids, tokens, draws=4, seed=5)
    assert found == lm.loglikelihood_bound(ids, tokens, draws=4, seed=5, max_batch=4)
    assert found.tokens == len(tokens)


def test_a_bound_of_bad_input(toy):
    lm = LM(toy, toy.tokenizer)
    with pytest.raises(ValueError, match="draws"):
        lm.loglikelihood_bound("t5", "t6", draws=1)
    for answer in ("", [60], [toy.mask_id]):
        with pytest.raises(ValueError, match="answer"):
            lm.loglikelihood_bound("t5", answer)
    with pytest.raises(ValueError, match="1024"):
        lm.loglikelihood_bound("t5", [5] * 1024)
    uniform = Toy(process="uniform")
    with pytest.raises(ValueError, match="mask"):
        LM(uniform, uniform.tokenizer).loglikelihood_bound("t5", "t6")

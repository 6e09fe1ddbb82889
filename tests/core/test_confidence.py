"""What confidence is taken from: the full distribution, or the sampled one as Dream's authors have
it.
"""

import pytest
import torch

import oddlm
from oddlm import ModelInfo, Repulsion, denoise
from oddlm.config import checked
from oddlm.models.families.published import SAMPLING
from oddlm.models.wrappers import ClassifierFree, MicroBatch
from oddlm.params import SampleParams
from oddlm.serve.schema import CompletionRequest
from oddlm.spec import RunSpec

from ..models import published_layout as layout

POLICIES = {"low_confidence": None, "margin": "margin", "entropy": "entropy"}
LENGTH, VOCAB = 12, 90


class Table:
    """A network that says the same whatever it sees."""

    end_ids = ()
    mask_id = VOCAB - 1
    vocab_size = VOCAB

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, tokens, start, prompt_lengths):
        return self.logits.expand(len(tokens), -1, -1)


class DreamTable(Table):
    @property
    def info(self):
        return ModelInfo(self.vocab_size, self.mask_id, confidence="sampled")


def table(dtype, seed=0):
    """Rows from flat to one-hot, with ties, in no order."""
    g = torch.Generator().manual_seed(seed)
    sharpness = torch.logspace(-1, 1.7, LENGTH)[torch.randperm(LENGTH, generator=g)]
    logits = torch.randn(LENGTH, VOCAB, generator=g) * sharpness[:, None] + 12
    logits[3, 5] = logits[3].max()
    logits[7] = logits[7].round()
    return logits.to(dtype)


def rising():
    """Every position is unsure, but not at temperature 0.1, and each is surer than the one before
    it.
    """
    logits = torch.zeros(LENGTH, VOCAB)
    logits[torch.arange(LENGTH), 1 + torch.arange(LENGTH)] = torch.arange(LENGTH) / 16 + 1.125
    return logits


def published_probabilities(row, temperature, top_p, top_k):
    """One position's distribution, step by step in the precision of its logits."""
    z = row / temperature if temperature else row
    lowest = torch.finfo(z.dtype).min
    if top_p is not None and top_p < 1:
        order = z.argsort(descending=True, stable=True)
        mass = z[order].softmax(0).cumsum(0)
        kept = order[
            [True, *(mass <= top_p)[:-1].tolist()]
        ]  # the first token that passes top_p is the last to stay
        outside = torch.ones(len(z), dtype=torch.bool)
        outside[kept] = False
        z = z.masked_fill(outside, lowest)
    if top_k is not None:
        z = z.masked_fill(z < sorted(z.tolist())[-top_k], lowest)
    return z.softmax(0)


def published_score(policy, p, token):
    """How soon a position is committed."""
    if policy == "margin":
        first, second = p.sort(descending=True).values[:2]
        return (first - second).item()
    if policy == "entropy":
        return (p * (p + 1e-10).log()).sum().item()
    return p[token].item()


CASES = [
    (temperature, top_p, top_k)
    for temperature in (0.0, 0.1, 0.2, 1.0)
    for top_p, top_k in ((None, None), (0.9, None), (0.95, 3), (None, 2), (0.99, None))
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("temperature", "top_p", "top_k"), CASES)
@pytest.mark.parametrize("guide", [None, Repulsion(alpha=8)], ids=["plain", "pushed"])
def test_the_order_is_the_published_one(dtype, policy, temperature, top_p, top_k, guide):
    events = []
    options = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "policy": policy,
        "guide": guide,
    }
    denoise(
        Table(table(dtype)),
        [[0]],
        n=2,
        length=LENGTH,
        steps=LENGTH,
        confidence="sampled",
        observe=events.append,
        **options,
    )
    for event in events:
        for row in range(2):
            places = event.step.open[row].nonzero().squeeze(1).tolist()
            scores = []
            for place in places:
                p = published_probabilities(
                    event.pushed_logits[row, place], temperature, top_p, top_k
                )
                token = int(event.prediction.tokens[row, place])
                assert p[token] > 0, "drawn from what the filters leave"
                scores.append(published_score(policy, p, token))
                told = event.prediction.confidence[row, place]
                assert told == p[token].item()
            assert event.commit[row].nonzero().tolist() == [[places[scores.index(max(scores))]]], (
                "of equal ones the leftmost"
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_saturated_positions_are_committed_from_left_to_right(dtype):
    """And without a filter that is rounding: float32 tells apart what bfloat16 cannot."""
    model, shape = (
        Table(rising().to(dtype)),
        {"n": 1, "length": LENGTH, "steps": LENGTH, "temperature": 0.1},
    )
    full = denoise(model, [[0]], **shape, confidence="full")
    assert full.commit_step.tolist() == [list(range(LENGTH))[::-1]], "the likeliest first"
    sampled = denoise(model, [[0]], **shape, confidence="sampled", policy="low_confidence")
    in_order = sampled.commit_step.tolist() == [list(range(LENGTH))]
    assert in_order == (dtype is torch.bfloat16)
    for policy in POLICIES:
        done = denoise(model, [[0]], **shape, confidence="sampled", policy=policy, top_p=0.9)
        assert done.commit_step.tolist() == [list(range(LENGTH))]


def test_filters_come_after_the_temperature():
    """At temperature 0.1 the likeliest of two tokens, 0.6 to 0.4, has 98 % and fills a nucleus of
    0.9 by itself.
    """
    logits = torch.full((LENGTH, VOCAB), -torch.inf)
    logits[:, 4], logits[:, 5] = torch.tensor(0.6).log(), torch.tensor(0.4).log()
    shape = {"n": 100, "length": LENGTH, "steps": 1, "temperature": 0.1, "top_p": 0.9}
    drawn = {
        rule: denoise(Table(logits), [[0]], **shape, confidence=rule).tokens.unique().tolist()
        for rule in ("full", "sampled")
    }
    assert drawn == {"full": [4, 5], "sampled": [4]}


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("policy", POLICIES)
def test_cold_temperatures_and_narrow_types_overflow_nothing(temperature, dtype, policy):
    logits = table(torch.float32).to(dtype)
    logits[2] -= 500.0
    logits[4] *= 50.0
    shape = {"n": 1, "length": LENGTH, "steps": 3, "policy": policy, "temperature": temperature}
    done = denoise(Table(logits), [[0]], **shape, confidence="sampled")
    written = logits.gather(1, done.tokens[0, :, None]).squeeze(1)
    assert torch.equal(written, logits[:, :-1].amax(dim=1)), "one of the likeliest, MASK apart"


def test_the_model_says_which_rule_is_its_own():
    logits = table(torch.bfloat16)
    shape = {
        "n": 2,
        "length": LENGTH,
        "steps": LENGTH,
        "temperature": 0.2,
        "top_p": 0.9,
        "policy": "entropy",
    }

    def order(model, **options):
        return denoise(model, [[0]], **shape, **options).commit_step.tolist()

    full, sampled = (order(Table(logits), confidence=rule) for rule in ("full", "sampled"))
    assert full != sampled
    assert order(Table(logits)) == order(DreamTable(logits), confidence="full") == full
    assert order(DreamTable(logits)) == sampled
    for around in (
        MicroBatch(DreamTable(logits), 1),
        ClassifierFree(DreamTable(logits), 0),
    ):
        assert order(around) == sampled


@pytest.mark.parametrize("policy", ["threshold", "factor", "entropy_bound"])
def test_a_parallel_policy_is_not_flooded(policy):
    """It compares confidences with a bound that was meant for the full distribution; a sampled one
    would pass it everywhere.
    """
    shape = {
        "n": 1,
        "length": LENGTH,
        "steps": LENGTH,
        "temperature": 0.1,
        "top_p": 0.9,
        "policy": policy,
    }
    logits = rising()
    assert (
        denoise(DreamTable(logits), [[0]], **shape).nfe
        == denoise(Table(logits), [[0]], **shape).nfe
        > 1
    )
    assert denoise(DreamTable(logits), [[0]], **shape, confidence="sampled").nfe == 1


def test_unknown_rules_are_refused():
    shape = {"n": 1, "length": LENGTH, "steps": 1}
    with pytest.raises(ValueError, match="confidence must be one of full, sampled, not 'network'"):
        denoise(Table(table(torch.float32)), [[0]], **shape, confidence="network")

    with pytest.raises(
        ValueError, match="confidence: Input should be 'full' or 'sampled', not 'network'"
    ):
        checked(SampleParams, {"confidence": "network"})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    writers = {
        "dream": layout.write_dream,
        "llada": layout.write_llada,
        "qwen3": layout.write_qwen3,
    }
    return {name: str(write(tmp_path_factory.mktemp(name))) for name, write in writers.items()}


@pytest.mark.parametrize("alpha", [0, 8])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_dream_decodes_from_left_to_right_where_it_is_sure(tmp_path, dtype, alpha):
    """The published settings: entropies are all 0 at temperature 0.1, but not those of the full
    distribution.
    """
    network = layout.qwen2(seed=1)
    network.lm_head.weight.data *= 8  # sure of itself
    lm = oddlm.load(str(layout.write_dream(tmp_path, network)), device="cpu", dtype=dtype)
    published = {
        **SAMPLING["Dream-org/Dream-v0-Instruct-7B"],
        "length": 16,
        "objective": "odd",
        "alpha": alpha,
        "fork": False,
    }
    published["progress"] = False
    in_order = tuple(range(16))
    (own,) = lm.generate("the end", 2, **published)
    assert [sample.commit_steps for sample in own] == [in_order] * 2
    (full,) = lm.generate("the end", 2, **published, confidence="full")
    assert all(sample.commit_steps != in_order for sample in full)


def test_the_families_rules(folders):
    rules = {
        name: oddlm.load(folder, device="cpu").model.confidence for name, folder in folders.items()
    }
    assert rules == {"dream": "sampled", "llada": "full", "qwen3": "full"}
    assert oddlm.load("mini").model.confidence == "full"


def test_a_wrapped_dream_is_sampled_as_a_native_one():
    network = layout.qwen2()
    tokenizer = oddlm.load("toy").tokenizer
    forward = network.forward

    def listening(input_ids):
        T = input_ids.shape[1]
        return forward(
            input_ids=input_ids,
            attention_mask=torch.zeros(len(input_ids), 1, T, T, dtype=torch.float64),
        )

    network.forward = listening
    assert oddlm.wrap(network, tokenizer, mask_id=3).model.confidence == "full"
    network.config.model_type = "Dream"
    assert oddlm.wrap(network, tokenizer, mask_id=3, shift=True).model.confidence == "sampled"


def test_a_run_that_uses_it_has_it_in_its_id():
    def run(**params):
        return checked(
            RunSpec, {"model": "Dream-org/Dream-v0-Instruct-7B", "task": "gsm8k", "params": params}
        )

    assert (
        len(
            {run(**params).id for params in ({}, {"confidence": "full"}, {"confidence": "sampled"})}
        )
        == 3
    )
    assert run().id == run(confidence=None).id
    again = checked(RunSpec, run(confidence="sampled").model_dump(mode="json"))
    assert again.params.confidence == "sampled"


def test_the_published_settings_are_settings():
    for settings in SAMPLING.values():
        assert checked(SampleParams, settings).model_dump().items() >= settings.items()


def test_the_server_takes_it():
    request = CompletionRequest(model="x", prompt="y", confidence="sampled")
    assert request.settings()["confidence"] == "sampled"
    with pytest.raises(ValueError, match="confidence"):
        CompletionRequest(model="x", prompt="y", confidence="network")

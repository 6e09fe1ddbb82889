"""What only a GPU can show: nothing waits for the host, large shapes give the same bits twice, and
features those of a CPU.
"""

import pickle

import pytest
import torch

import oddlm
from oddlm import ModelInfo, Repulsion, denoise
from oddlm.models.native import Native
from oddlm.models.transformer import Transformer, TransformerConfig

from ..registered import FUSED
from ..tolerances import SINGLE
from .test_analytic import WIDE, random_batch, random_embedding

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]


class Small(Native):
    """A random transformer over a large vocabulary."""

    def __init__(self, dtype=torch.bfloat16):
        torch.manual_seed(0)
        network = Transformer(
            TransformerConfig(126464, width=128, layers=2, heads=2, hidden=256)
        ).to("cuda", dtype)
        network.embed.weight.data.mul_(20)
        super().__init__(network, name="small", mask_id=0, end_ids=(1, 2))


@pytest.mark.parametrize("objective", FUSED)
def test_nothing_waits_inside_the_loop(objective):
    """From the first step to the last; every new shape compiles once, before."""
    model = Small()
    for steps in (2, 16):
        run = oddlm.denoise_steps(
            model,
            [[5, 6]],
            n=4,
            length=16,
            steps=steps,
            temperature=1.0,
            guide=Repulsion(objective, alpha=8),
        )
        next(run)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if steps == 16 else "default")
        try:
            for _ in range(steps - 2):
                next(run)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        next(run)  # the last one looks whether all numbers were good
        with pytest.raises(StopIteration) as end:
            next(run)
        assert (end.value.value.tokens != model.mask_id).all()


@pytest.mark.parametrize("objective", FUSED)
def test_two_runs_have_the_same_bits(objective):
    model, events = Small(), []
    runs = [
        denoise(
            model,
            [[5, 6]],
            n=16,
            length=24,
            steps=4,
            temperature=1.0,
            guide=Repulsion(objective, alpha=8),
            observe=events.append,
        )
        for _ in range(2)
    ]
    assert torch.equal(runs[0].tokens, runs[1].tokens)
    for a, b in zip(events[:4], events[4:], strict=True):
        assert torch.equal(a.prediction.confidence, b.prediction.confidence)
    assert len({tuple(row) for row in runs[0].tokens.tolist()}) > 8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("feature", WIDE, ids=str)
def test_features_are_pushed_as_on_a_cpu(feature, dtype):
    logits, tokens, masked = random_batch(3, 8, 12, 300, dtype)
    embedding = random_embedding(300, H=40)
    exact = oddlm.diversify(
        logits.double(),
        tokens,
        masked,
        objective="odd",
        alpha=8.0,
        feature=feature,
        embedding=embedding,
    )
    there = [x.cuda() for x in (logits, tokens, masked)]
    got = oddlm.diversify(
        *there, objective="odd", alpha=8.0, feature=feature, embedding=embedding.cuda()
    )
    assert got.dtype == dtype
    assert (got.cpu().double() - exact).abs().max() < 8.0 * (SINGLE + 16 * torch.finfo(dtype).eps)


class Said:
    """A network on the GPU that says the same whatever it sees: flat at the even positions, the
    flatter the further right, and sure of one token at the odd ones, the surer the further right.
    """

    vocab_size = 152064

    def __init__(self, device, dtype=torch.bfloat16, length=12):
        place = torch.arange(length)
        logits = torch.randn(length, self.vocab_size, generator=torch.Generator().manual_seed(0))
        logits[place, 7 + place] = torch.where(place % 2 == 0, 12 - 0.3 * place, 20.0 + place)
        self.logits = logits.to(device, dtype)
        self.info = ModelInfo(
            self.vocab_size, 0, (1, 2), name="said", device=self.logits.device, dtype=dtype
        )

    def __call__(self, tokens, start, prompt_lengths):
        return self.logits.expand(len(tokens), -1, -1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("policy", ["low_confidence", "margin", "entropy"])
@pytest.mark.parametrize(
    ("temperature", "top_p"), [(0.1, 0.9), (0.2, 0.95), (1.0, None), (0.0, 0.9)]
)
def test_sampled_confidence_is_that_of_the_cpu(policy, temperature, top_p, dtype):
    options = {
        "n": 2,
        "length": 12,
        "steps": 12,
        "temperature": temperature,
        "top_p": top_p,
        "policy": policy,
    }
    events = {"cpu": [], "cuda": []}
    for device, seen in events.items():
        denoise(Said(device, dtype), [[5]], confidence="sampled", observe=seen.append, **options)
    close = max(4 * torch.finfo(dtype).eps, 1e-4)  # a sum over the vocabulary in another order
    for there, here in zip(events["cuda"], events["cpu"], strict=True):
        assert torch.equal(there.prediction.tokens.cpu(), here.prediction.tokens)
        torch.testing.assert_close(
            there.prediction.confidence.cpu(), here.prediction.confidence, rtol=close, atol=0
        )
        assert torch.equal(there.commit.cpu(), here.commit)


def test_dreams_rule_writes_from_left_to_right_and_keeps_the_fused_push():
    events = []
    options = {
        "n": 4,
        "length": 12,
        "steps": 12,
        "temperature": 0.1,
        "top_p": 0.9,
        "policy": "entropy",
    }
    for guide in (None, Repulsion(alpha=2)):
        sampled = denoise(
            Said("cuda"), [[5]], confidence="sampled", guide=guide, observe=events.append, **options
        )
        assert sampled.commit_step[0].tolist() == list(range(12)), (
            "of which sample 0 is never pushed"
        )
        full = denoise(Said("cuda"), [[5]], confidence="full", guide=guide, **options)
        assert full.commit_step[0].tolist() != list(range(12))
    assert all(event.logits.pushed is None for event in events[:12])
    assert all(event.logits.pushed.push is not None for event in events[12:])


def test_a_late_nan_is_still_an_error():
    class Bad(Small):
        def session(self, query):
            answer = super().session(query)

            def spoilt(query):
                logits = answer(query)
                logits[2, 7, 100] = torch.nan
                return logits

            return spoilt

    with pytest.raises(ValueError, match="logits hold NaN at sample 2, position 7"):
        denoise(Bad(), [[5, 6]], n=4, length=16, steps=2, guide=Repulsion(alpha=8))


@pytest.mark.parametrize("begun", [0, 1, 5, 11])
@pytest.mark.parametrize("remember", [None, "exact"])
def test_a_run_moves_to_another_device_and_back(begun, remember):
    """With the same logits it writes the same tokens there, and the backend is the best of each
    place.
    """
    options = {
        "n": 4,
        "length": 12,
        "steps": 12,
        "temperature": 0.7,
        "guide": Repulsion(alpha=4, remember=remember),
    }
    models = {name: Said(name) for name in ("cuda", "cpu")}
    wanted = denoise(models["cpu"], [[5]], **options).tokens
    state = oddlm.begin(models["cuda"], [[5]], **options)
    for index in range(12):
        if index == begun:
            state = pickle.loads(pickle.dumps(state)).to("cpu")
            assert str(state.backend) == "closed_form"
        if index == begun + 2:
            state = state.to("cuda")
            assert str(state.backend) == "triton"
        query = state.query
        logits = models[query.tokens.device.type](query.tokens, query.start, query.prompt_lengths)
        state, _ = oddlm.advance(state, logits, query=query)
    assert torch.equal(state.result.tokens.cpu(), wanted)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_cached_sample_does_not_depend_on_its_company_here_either(cache):
    model = Small(torch.float32)
    model.cache = cache
    settings = {
        "n": 2,
        "length": 16,
        "steps": 16,
        "block_length": 4,
        "temperature": 1.0,
        "policy": "threshold",
    }
    prompts = [[5 + i + j for j in range(1 + i)] for i in range(6)]
    together = denoise(model, prompts, seed=list(range(6)), **settings)
    for i, tokens in enumerate(together.groups()):
        assert torch.equal(denoise(model, [prompts[i]], seed=[i], **settings).tokens, tokens)
